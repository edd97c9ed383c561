"""Clients that run while nodes fail: idempotent producers with acks=all, which record every ack.

Each value is unique and tells its producer and its place in that producer's order, so that the checks need nothing
but what is stored.
"""

import threading
from typing import NamedTuple

from confluent_kafka import KafkaException, Message, Producer

from tests.faults.clients import settings
from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS

BURST = 10
PAUSE_SECONDS = 0.02
"""Five hundred records a second from each producer: enough to have records under way at any moment, not so much that
the nodes of a small machine starve."""
QUEUE_MOST = 2000
BATCH_MOST_BYTES = 8 * 1024
"""After a failover many records wait: they should be sent in many batches, as without a failover."""
REQUEST_MOST_MS = 4000
"""A paused node keeps its connections: only this timeout makes a client look for another leader."""


class Promise(NamedTuple):
    """An acknowledged record."""

    value: bytes
    partition: int
    offset: int | None
    """None if the broker only answered that it had the record already."""


class Work:
    """One producer in a thread of its own."""

    def __init__(self, name: str, cluster: Cluster, topic: str, partitions: int, keys: int) -> None:
        self.name = name
        self._topic = topic
        self._partitions = partitions
        self._keys = keys
        self._producer = Producer(
            settings(
                cluster.bootstrap_servers,
                enable_idempotence=True,
                acks="all",
                linger_ms=5,
                batch_size=BATCH_MOST_BYTES,
                socket_timeout_ms=REQUEST_MOST_MS,
                message_timeout_ms=int(PATIENCE_SECONDS * 1000),
                queue_buffering_max_messages=QUEUE_MOST,
            )
        )
        self.promises: list[Promise] = []
        self.last_by_key: dict[bytes, int] = {}
        """The highest acknowledged number of each key."""
        self.refused: list[str] = []
        self.progress = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_more(self, count: int) -> None:
        """Returns when `count` more records have been acked."""
        with self.progress:
            target = len(self.promises) + count
            self.progress.wait_for(lambda: len(self.promises) >= target or self.refused, PATIENCE_SECONDS)
            assert self.refused == []
            assert len(self.promises) >= target, f"{self.name}: {count} more acks did not come"

    def stop(self, *, give_up: bool = False) -> None:
        """Sends no more; waits until all sent records are answered, or discards those that are not."""
        self._stopping.set()
        if give_up:
            self._producer.purge()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._produce()
        except KafkaException as fatal:  # librdkafka gives up: a sequence that makes no sense, for one
            self._refuse(fatal)
        self._producer.flush(PATIENCE_SECONDS)

    def _produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                for _ in range(BURST):
                    self._send(number)
                    number += 1
            except BufferError:
                self._producer.poll(PAUSE_SECONDS)
            self._producer.poll(0)
            self._stopping.wait(PAUSE_SECONDS)

    def _send(self, number: int) -> None:
        key = number % self._keys
        self._producer.produce(
            self._topic,
            f"{self.name}:{number}",
            key=f"{self.name}-{key}",
            partition=key % self._partitions,
            on_delivery=self._delivered,
        )

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self._refuse(error)
            return
        value, key = message.value() or b"", message.key() or b""
        with self.progress:
            self.promises.append(Promise(value, message.partition() or 0, message.offset()))
            self.last_by_key[key] = max(self.last_by_key.get(key, -1), number_of(value))
            self.progress.notify_all()

    def _refuse(self, why: object) -> None:
        with self.progress:
            self.refused.append(str(why))
            self.progress.notify_all()


class Load:
    """Some producers on one topic, from here to the end of the `with` block at the latest."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        partitions: int = 1,
        producers: int = 2,
        keys: int = 12,
        name: str = "",
    ) -> None:
        """`name`: tells the values of several loads on one topic apart."""
        self.topic = topic
        self.partitions = partitions
        self.works = [
            Work(f"{name or topic}-{index}", cluster, topic, partitions, keys) for index in range(producers)
        ]

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop(give_up=any(exc))

    def wait_for_more(self, count: int) -> None:
        """Each producer gets `count` more acks."""
        for work in self.works:
            work.wait_for_more(count)

    def stop(self, *, give_up: bool = False) -> None:
        for work in self.works:
            work.stop(give_up=give_up)

    @property
    def promises(self) -> list[Promise]:
        return [promise for work in self.works for promise in work.promises]

    @property
    def refused(self) -> list[str]:
        return [words for work in self.works for words in work.refused]

    @property
    def last_by_key(self) -> dict[bytes, int]:
        return {key: number for work in self.works for key, number in work.last_by_key.items()}


def producer_of(value: bytes) -> bytes:
    return value.rpartition(b":")[0]


def number_of(value: bytes) -> int:
    return int(value.rpartition(b":")[2])
