"""File descriptors: logs, connections and the process itself have shares, and none takes those of another."""

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.errors import ErrorCode, TooManyOpenFiles
from penstock.node.limits import descriptors
from tests.kafka import requests
from tests.kafka.raw import PATIENCE_SECONDS, RawClient
from tests.node.processes import BrokerProcess

TOPICS = 150


@pytest.mark.parametrize("limit", [16, 128, 200, 1024, 1_048_576])
def test_the_shares_leave_a_part_to_the_process_itself(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _kind: (limit, limit))
    shares = (2 * descriptors.for_logs(), descriptors.for_http(), descriptors.for_kafka())
    assert min(shares) > 0
    assert limit - sum(shares) >= min(limit // 4, descriptors.OWN_MOST)


def test_without_a_limit_there_is_none_for_any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr("resource.getrlimit", lambda _kind: infinite)
    assert min(descriptors.for_logs(), descriptors.for_http(), descriptors.for_kafka()) > 2**40


@contextmanager
def limited(data_dir: Path, files_max: int) -> Iterator[BrokerProcess]:
    process = BrokerProcess(data_dir, files_max=files_max)
    process.start()
    try:
        yield process
    finally:
        assert process.stop() == 0


def produce_to_all(process: BrokerProcess, topics: list[str], value: str) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": process.bootstrap_servers, "enable.idempotence": True})
    for topic in topics:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failures == []


def read_all(process: BrokerProcess, topics: list[str], count: int) -> dict[str, list[bytes]]:
    consumer = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
    found: dict[str, list[bytes]] = {topic: [] for topic in topics}
    left = count * len(topics)
    while left:
        messages = consumer.consume(left, timeout=PATIENCE_SECONDS)
        assert messages
        for message in messages:
            assert message.error() is None
            found[message.topic()].append(message.value())
        left -= len(messages)
    consumer.close()
    return found


def test_150_topics_are_written_and_read_by_a_process_with_128_files(tmp_path: Path) -> None:
    topics = [f"topic-{number}" for number in range(TOPICS)]
    with limited(tmp_path / "data", 128) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
        for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            created.result(PATIENCE_SECONDS)
        for value in ("first", "second"):
            produce_to_all(process, topics, value)
        expected = {key: [b"first", b"second"] for key in topics}
        assert read_all(process, topics, 2) == expected
    with limited(tmp_path / "data", 128) as process:
        assert read_all(process, topics, 2) == expected
        produce_to_all(process, topics, "third")
    with limited(tmp_path / "data", 128) as process:
        assert read_all(process, topics, 3) == {key: [b"first", b"second", b"third"] for key in topics}


class Scarcity:
    """While it lasts, the system refuses to open files of topics."""

    def __init__(self, topics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._topics = f"{topics}/t-"
        self.lasts = True
        for name in ("open", "listdir"):
            monkeypatch.setattr(os, name, partial(self._call, getattr(os, name)))

    def _call(self, real: Callable[..., object], path: str, *arguments: object) -> object:
        if self.lasts and str(path).startswith(self._topics):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *arguments)


def test_partitions_that_met_too_many_open_files_come_back_when_there_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(http=None, data_dir=tmp_path) as broker, RawClient(broker) as client:
        for number in range(5):
            requests.create(client, f"t-{number}", replicas=1)
            requests.write(client, f"t-{number}", b"kept")
    scarcity = Scarcity(tmp_path / "topics", monkeypatch)
    with Broker(http=None, data_dir=tmp_path) as broker, RawClient(broker) as client:
        node = broker._thread.service.node
        assert node.partitions.offline_count() == 5
        assert isinstance(node.partitions.offline_reason("t-0", 0), TooManyOpenFiles)
        assert requests.read(client, "t-0").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        scarcity.lasts = False
        until(lambda: node.partitions.offline_count() == 0)
        for number in range(5):
            until(lambda name=f"t-{number}": node.partitions.get(name, 0).leads)  # type: ignore[misc]
            assert b"kept" in bytes(requests.read(client, f"t-{number}").records or b"")
            assert requests.write(client, f"t-{number}", b"more").error_code == ErrorCode.NONE


def test_writes_that_met_too_many_open_files_are_taken_when_there_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(http=None, data_dir=tmp_path) as broker, RawClient(broker) as client:
        requests.create(client, "t-0", replicas=1)
        scarcity = Scarcity(tmp_path / "topics", monkeypatch)
        assert requests.write(client, "t-0").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        scarcity.lasts = False
        assert requests.write(client, "t-0").error_code == ErrorCode.NONE
        assert requests.offset_at(client, "t-0").offset == 1


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
