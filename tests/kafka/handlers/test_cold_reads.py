"""Records that are not in the system's cache: a thread loads them, and all clients get them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from penstock import Broker
from penstock.log.os_disk import OsFile

PATIENCE_SECONDS = 60
TOPIC = "old"
PARTITIONS = 3
MESSAGES = 300


class ColdFiles:
    """Takes every range for cold until it was loaded, and notes who loads and who reads."""

    def __init__(self) -> None:
        self.loaded: set[tuple[str, int]] = set()
        self.loading_threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def is_cached(self, file: OsFile, position: int, count: int) -> bool:
        return (file.path, position) in self.loaded

    def load(self, file: OsFile, position: int, count: int) -> None:
        self.loading_threads.add(threading.current_thread().name)
        assert self.gate.wait(PATIENCE_SECONDS)
        self.loaded.add((file.path, position))


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> ColdFiles:
    found = ColdFiles()
    monkeypatch.setattr(OsFile, "is_cached", lambda *arguments: found.is_cached(*arguments))
    monkeypatch.setattr(OsFile, "load", lambda *arguments: found.load(*arguments))
    return found


@pytest.fixture
def broker(tmp_path: Path, cold: ColdFiles) -> Iterator[Broker]:
    """A broker that was started again: the bytes of its logs were written by another process, as it were."""
    with Broker(data_dir=tmp_path / "data") as before:
        admin = AdminClient({"bootstrap.servers": before.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE_SECONDS)
        produce(before, range(MESSAGES))
    with Broker(data_dir=tmp_path / "data") as running:
        yield running


def produce(broker: Broker, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in numbers:
        producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0


def read_all(broker: Broker) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: list[int] = []
    while len(found) < MESSAGES:
        for message in consumer.consume(MESSAGES, timeout=PATIENCE_SECONDS):
            assert message.error() is None
            found.append(int(message.value()))
    consumer.close()
    return found


def test_a_thread_loads_cold_records_and_the_reader_gets_all_of_them(broker: Broker, cold: ColdFiles) -> None:
    assert sorted(read_all(broker)) == [*range(MESSAGES)]
    assert cold.loaded
    assert all(name.startswith("penstock-cold-read") for name in cold.loading_threads)


def test_consumers_with_fetch_sessions_get_cold_records_too(broker: Broker, cold: ColdFiles) -> None:
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        metadata_max_age_ms=1000,
    )
    found: list[int] = []
    while len(found) < MESSAGES:
        for records in consumer.poll(timeout_ms=1000).values():
            found += [int(record.value) for record in records]
    consumer.close()
    assert sorted(found) == [*range(MESSAGES)]
    assert cold.loaded


def test_while_a_reader_waits_for_the_disk_others_are_served(broker: Broker, cold: ColdFiles) -> None:
    cold.gate.clear()
    reader = threading.Thread(target=read_all, args=(broker,))
    reader.start()
    try:
        produce(
            broker, range(MESSAGES, MESSAGES + 100)
        )  # each is acknowledged while the thread stands at the gate
        assert reader.is_alive()
    finally:
        cold.gate.set()
        reader.join(PATIENCE_SECONDS)
    assert not reader.is_alive()


def test_a_reader_that_goes_away_while_its_records_are_loaded_leaves_no_trace(
    broker: Broker, cold: ColdFiles
) -> None:
    cold.gate.clear()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "gone"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while not cold.loading_threads:
        consumer.poll(0.01)
    consumer.close()
    cold.gate.set()
    assert sorted(read_all(broker)) == [*range(MESSAGES)]
