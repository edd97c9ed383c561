"""Records with unique numbers, and how many of them a topic or a folder has.

Values are of about a kilobyte: a few thousand make several fetches and several produce requests, so that a fault in
the middle finds some of them written and some not.
"""

import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer

from penstock.client.wire import LATEST, ClientSettings, Cluster
from penstock.types import TopicPartition
from tests.spark.committed import committed_values
from tests.spark.test_sink import read_topic

VALUE_BYTES = 1_000
PAUSE_S = 0.002
"""Between the records of a flood, which must leave the machine enough time for the query."""
NUMBER = "cast(substring(cast(value as string), 1, 8) as int) as n"
"""The number of a record, in Spark's SQL."""


def fill(
    servers: str, topic: str, numbers: Iterable[int], partitions: int, value_bytes: int = VALUE_BYTES
) -> None:
    """One record for each number, round robin over the partitions; returns when all are acknowledged."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    for number in numbers:
        key = b"%08d" % number
        producer.produce(topic, value=key.ljust(value_bytes, b"."), key=key, partition=number % partitions)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


class Flood:
    """Records that keep coming, numbered from 0: number n is record n // partitions of partition n % partitions."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})
        self._topic = topic
        self._partitions = partitions
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            for _ in range(self._partitions):
                self._producer.produce(
                    self._topic, b"%08d" % self.sent, partition=self.sent % self._partitions
                )
                self.sent += 1
            assert self._producer.flush(60) == 0  # so that records arrive as a stream
            time.sleep(PAUSE_S)


def create(servers: str, topic: str, partitions: int) -> str:
    with Cluster(ClientSettings(bootstrap_servers=servers)) as cluster:
        cluster.create_topic(topic, partitions)
    return topic


def ends(cluster: Cluster, topic: str) -> dict[TopicPartition, int]:
    """The end offsets of a topic's partitions."""
    topic_partitions = [TopicPartition(topic, index) for index in cluster.topics([topic])[topic].partitions]
    found = cluster.offsets(dict.fromkeys(topic_partitions, LATEST))
    return {tp: each.offset for tp, each in found.items()}


def count(servers: str, topic: str) -> int:
    with Cluster(ClientSettings(bootstrap_servers=servers)) as cluster:
        return sum(ends(cluster, topic).values())


def committed(servers: str, group: str) -> dict[TopicPartition, int]:
    with Cluster(ClientSettings(bootstrap_servers=servers)) as cluster:
        return cluster.committed(group)


def numbers_in(servers: str, topic: str, partitions: int) -> list[int]:
    """All of a topic, sorted, as librdkafka reads it."""
    return sorted(int((record.value or b"")[:8]) for record in read_topic(servers, topic, partitions))


def committed_in(servers: str, topic: str, partitions: int) -> list[int]:
    """The same for a reader of committed records."""
    return sorted(int(value[:8]) for value in committed_values(servers, topic, partitions))


def all_have_written(servers: str, topic: str, partitions: int) -> bool:
    """Whether each task has written to a topic, if each reads one partition of a source that `fill` has filled."""
    if count(servers, topic) < partitions:
        return False  # called often, and counting is cheaper than reading
    return len({number % partitions for number in numbers_in(servers, topic, partitions)}) == partitions


def logged(checkpoint: Path, kind: str) -> list[int]:
    """The batches that a checkpoint has offsets or commits of."""
    return sorted(int(path.name) for path in (checkpoint / kind).glob("[0-9]*"))


def planned(checkpoint: Path, batch: int) -> dict[str, Any]:
    """The end of a batch as the source has reported it to Spark: the last line of Spark's file."""
    found = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
    assert isinstance(found, dict)
    return found
