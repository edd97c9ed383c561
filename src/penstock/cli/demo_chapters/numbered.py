"""Numbered messages: sent while something is killed, and counted afterwards."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from penstock.cli.connection import Connection
from penstock.cli.problem import Problem

KILL_AT = 0.4
"""The kill comes when this share of the messages is acknowledged; the rest is in flight or not sent yet."""
IN_FLIGHT_MOST = 0.2
"""The share of the messages that may be in flight; otherwise a fast producer would have sent all before the kill."""
TIMEOUT_S = 45.0


def send(producer: Producer, topic: str, value: bytes, key: bytes, **more: Any) -> None:
    """Waits while librdkafka's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, **more)
            break
        except BufferError:
            producer.poll(0.01)
    producer.poll(0)


class Numbered:
    """Sends numbers as keys with an idempotent producer, which is not told about the kill: it retries until it finds a
    leader again."""

    def __init__(self, connection: Connection, topic: str, messages: int, **settings: Any) -> None:
        self.acknowledged: list[int] = []
        self.killed_at: float | None = None
        self.acked_before = 0
        """How many were acknowledged when the kill came."""
        self.after_kill: Callable[[Message], None] = lambda message: None
        """Told of every acknowledgement after the kill."""
        self._topic = topic
        self._messages = messages
        self._failed = 0
        self.producer = connection.producer(
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            queue_buffering_max_messages=max(100, int(messages * IN_FLIGHT_MOST)),
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            **settings,
        )

    def send_all(
        self, kill: Callable[[], None], after: Callable[[], None], partitions: int | None = None
    ) -> None:
        """Calls `kill` on the way, and `after` when the acknowledgements from before have come."""
        for number in range(self._messages):
            where = {} if partitions is None else {"partition": number % partitions}
            key = str(number).encode()
            send(self.producer, self._topic, b"paid", key, on_delivery=self._delivered, **where)
            if self.killed_at is None and len(self.acknowledged) >= self._messages * KILL_AT:
                self.acked_before = len(self.acknowledged)
                kill()
                while self.producer.poll(0):  # acknowledgements from before
                    pass
                self.killed_at = time.perf_counter()
                after()
        if self.producer.flush(TIMEOUT_S) or self._failed:
            raise Problem("the producer could not deliver everything after the kill")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed += 1
            return
        self.acknowledged.append(int(message.key() or b"0"))
        if self.killed_at is not None:
            self.after_kill(message)

    def count(self, connection: Connection, partitions: int) -> tuple[int, int, int]:
        """How many are stored, how many acknowledged ones are lost, and how many are stored more than once."""
        stored = _read_numbers(connection, self._topic, partitions)
        lost = sum(1 for number in self.acknowledged if not stored[number])
        repeated = sum(1 for count in stored.values() if count > 1)
        if lost or repeated or len(stored) != self._messages:
            raise Problem(
                f"{lost:,} acknowledged messages are lost and {repeated:,} are there more than once"
            )
        return len(stored), lost, repeated


def _read_numbers(connection: Connection, topic: str, partitions: int) -> Counter[int]:
    """The numbers that a topic's messages have as keys, and how often each occurs."""
    consumer = connection.consumer(group_id="demo-count", enable_auto_commit=False)
    where = [TopicPartition(topic, number) for number in range(partitions)]
    left = sum(consumer.get_watermark_offsets(each)[1] for each in where)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    stored: Counter[int] = Counter()
    deadline = time.perf_counter() + TIMEOUT_S
    while left > 0 and time.perf_counter() < deadline:
        messages = [each for each in consumer.consume(min(10_000, left), 0.5) if not each.error()]
        stored.update(int(message.key() or b"0") for message in messages)
        left -= len(messages)
    consumer.close()
    return stored
