"""Consumers of one group with librdkafka, polled in turn by one thread, for tests of the consumer protocol."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE_SECONDS = 60.0
FAST: dict[str, str | int | float] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 20,
}


class Members:
    """The members of a group that live in this process, and what they have read."""

    def __init__(self, bootstrap_servers: str, group: str, topics: list[str]) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.group = group
        self.topics = topics
        self.values: list[bytes] = []
        self.errors: list[object] = []
        self.consumers: list[Consumer] = []

    def join(self, protocol: str = "consumer", **settings: object) -> Consumer:
        times = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 200} if protocol == "classic" else {}
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": self.group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **times,
                **FAST,
                **settings,
            }
        )
        consumer.subscribe(self.topics)
        self.consumers.append(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def poll(self) -> None:
        for consumer in self.consumers:
            message = consumer.poll(0.02)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(message.error())
                assert not message.error().fatal(), message.error()
                continue
            self.values.append(message.value())

    def poll_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, (self.shares(), len(set(self.values)), self.errors)
            self.poll()

    def shares(self) -> list[list[TopicPartition]]:
        return [consumer.assignment() for consumer in self.consumers]

    def has_shares(self, *sizes: int) -> bool:
        return sorted(map(len, self.shares())) == sorted(sizes)

    def commit(self) -> None:
        for consumer in self.consumers:
            with suppress(KafkaException):  # one that has read nothing has nothing to commit
                consumer.commit(asynchronous=False)


@contextmanager
def members_of(bootstrap_servers: str, group: str, *topics: str) -> Iterator[Members]:
    members = Members(bootstrap_servers, group, list(topics))
    try:
        yield members
    finally:
        for consumer in members.consumers:
            consumer.close()


def make_topic(bootstrap_servers: str, name: str, partitions: int, replicas: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(PATIENCE_SECONDS)
    return name


def produce(bootstrap_servers: str, topic: str, partitions: int, numbers: range) -> set[bytes]:
    producer = Producer({"bootstrap.servers": bootstrap_servers, **FAST})
    values = {f"{topic} {number}".encode() for number in numbers}
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return values
