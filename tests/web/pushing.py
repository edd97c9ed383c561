"""A subscriber as an application would write it: the `websockets` package and JSON."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

PATIENCE_SECONDS = 60.0

Json = dict[str, Any]


class Subscriber:
    """One connection. Frames that a test does not ask for are kept until it does."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[Json] = []
        self._frames: list[Json] = []

    def say(self, **frame: Any) -> None:
        self.socket.send(json.dumps(frame))

    def hear(self) -> Json:
        """The next frame."""
        frame: Json = json.loads(self.socket.recv(timeout=PATIENCE_SECONDS))
        return frame

    def hear_of(self, kind: str) -> Json:
        """The next frame of this type; messages on the way are kept."""
        while True:
            frame = self.hear()
            if frame["type"] == "messages":
                self.messages += frame["messages"]
            if frame["type"] == kind:
                return frame

    def subscribe(self, name: str, *topics: str, **more: Any) -> Json:
        """The broker's response to it."""
        self.say(type="subscribe", subscription=name, topics=list(topics), **more)
        return self.hear()

    def take(self, count: int) -> list[Json]:
        """So many messages, as they come."""
        while len(self.messages) < count:
            frame = self.hear()
            if frame["type"] == "messages":
                self.messages += frame["messages"]
            else:
                assert frame["type"] == "acked", frame
        taken, self.messages = self.messages[:count], self.messages[count:]
        return taken

    def ack(self, message: Json) -> None:
        self.say(type="ack", topic=message["topic"], partition=message["partition"], offset=message["offset"])

    def ack_durably(self, message: Json) -> None:
        """Returns when the broker has confirmed that the ack is durable."""
        self.ack(message)
        place = {
            "topic": message["topic"],
            "partition": message["partition"],
            "offset": message["offset"] + 1,
        }
        while place not in self.hear_of("acked")["positions"]:
            pass

    def nothing_more(self) -> bool:
        """Whether nothing was pushed by the time that a ping is answered."""
        self.say(type="ping")
        self.hear_of("pong")
        return not self.messages

    def closed(self) -> tuple[int, str]:
        """How the broker closed it, once it has."""
        try:
            while True:
                self.socket.recv(timeout=PATIENCE_SECONDS)
        except ConnectionClosed as end:
            return (end.rcvd.code, end.rcvd.reason) if end.rcvd is not None else (0, "without a word")


@contextmanager
def subscriber(http_url: str, **options: Any) -> Iterator[Subscriber]:
    with connect(push_url(http_url), open_timeout=PATIENCE_SECONDS, close_timeout=1, **options) as socket:
        yield Subscriber(socket)


def push_url(http_url: str) -> str:
    return http_url.replace("http://", "ws://") + "/v1/push"


# --- Kafka clients


def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    replication = -1
    new = NewTopic(
        topic,
        partitions,
        replication,
        config={key.replace("_", "."): value for key, value in configs.items()},
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([new]).values():
        future.result(PATIENCE_SECONDS)


def produce(bootstrap: str, topic: str, values: Iterable[object], **how: Any) -> None:
    """Values as text, acked by the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
    failed: list[object] = []
    for value in values:
        producer.produce(
            topic,
            str(value).encode(),
            on_delivery=lambda error, _: failed.append(error) if error else None,
            **how,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert not failed


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """The group's committed offset as Kafka tools see it; -1001 if there is none."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [future] = admin.list_consumer_group_offsets([wanted]).values()
    return int(future.result(PATIENCE_SECONDS).topic_partitions[0].offset)


def values(messages: Iterable[Json]) -> list[Any]:
    return [message["value"] for message in messages]
