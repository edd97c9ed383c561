"""acks=1 is answered before the flush. A client that has this answer finds its records: where the log ends, at their
times, and for deletion. Readers see only flushed records all the same."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from penstock import Broker
from penstock.client.wire import LATEST, ClientSettings, Cluster
from penstock.errors import ErrorCode
from penstock.kafka.handlers import offsets, topics
from penstock.types import TopicPartition as WirePartition
from tests.node.faulty_disk import FaultyDisk

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
FLUSH_SECONDS = 0.1
"""Far longer than a client needs to ask for the end after it has its answer."""
ROUNDS = 5


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path / "data")


@pytest.fixture
def slow(tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker on a disk that takes long to flush, when a test says so."""
    for handlers in (offsets, topics):
        monkeypatch.setattr(handlers, "FLUSH_WAIT_SECONDS", PATIENCE_SECONDS)
    with Broker(data_dir=tmp_path / "data", disk=disk) as running:
        yield running
        disk.flush_seconds = 0
        disk.may_flush.set()


@pytest.fixture
def admin(slow: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": slow.bootstrap_servers})


@pytest.fixture
def topic(admin: AdminClient, disk: FaultyDisk) -> str:
    admin.create_topics([NewTopic("unflushed", 1, 1)])["unflushed"].result(PATIENCE_SECONDS)
    disk.flush_seconds = FLUSH_SECONDS
    return "unflushed"


@pytest.fixture
def sender(slow: Broker) -> Producer:
    return Producer({"bootstrap.servers": slow.bootstrap_servers, "acks": "1", "linger.ms": 0})


def send(sender: Producer, topic: str) -> int:
    """The offset in the answer to acks=1."""
    answered: list[int] = []

    def note(error: object, message: object) -> None:
        assert error is None, error
        answered.append(message.offset())  # type: ignore[attr-defined]

    sender.produce(topic, b"value", on_delivery=note)
    assert sender.flush(PATIENCE_SECONDS) == 0
    [offset] = answered
    return offset


def end_of(admin: AdminClient, topic: str, spec: OffsetSpec | None = None) -> int:
    partition = TopicPartition(topic, 0)
    [found] = admin.list_offsets({partition: spec or OffsetSpec.latest()}).values()
    return int(found.result(PATIENCE_SECONDS).offset)


def delete_before(admin: AdminClient, topic: str, offset: int) -> int:
    [deleted] = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    return int(deleted.result(PATIENCE_SECONDS).low_watermark)


def test_librdkafka_finds_the_end_after_its_own_records(
    admin: AdminClient, sender: Producer, topic: str
) -> None:
    for _ in range(ROUNDS):
        sent = send(sender, topic)
        assert end_of(admin, topic) == sent + 1
    assert end_of(admin, topic, OffsetSpec.max_timestamp()) == sent


def test_librdkafka_reads_up_to_the_end_that_it_was_told(
    slow: Broker, admin: AdminClient, sender: Producer, topic: str
) -> None:
    for _ in range(ROUNDS):
        send(sender, topic)
    reader = Consumer({"bootstrap.servers": slow.bootstrap_servers, "group.id": "g"})
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS)
    reader.assign([TopicPartition(topic, 0, 0)])
    found = reader.consume(end, timeout=PATIENCE_SECONDS)
    reader.close()
    assert [message.offset() for message in found] == list(range(ROUNDS))


def test_records_can_be_deleted_as_soon_as_they_are_answered(
    admin: AdminClient, sender: Producer, topic: str
) -> None:
    for _ in range(ROUNDS):
        end = send(sender, topic) + 1
        assert delete_before(admin, topic, end) == end
    end = send(sender, topic) + 1
    assert delete_before(admin, topic, -1) == end


def test_kafka_python_finds_its_records_by_end_and_by_time(slow: Broker, topic: str) -> None:
    writer = KafkaProducer(bootstrap_servers=slow.bootstrap_servers, acks=1)
    reader = KafkaConsumer(bootstrap_servers=slow.bootstrap_servers)
    partition = PythonPartition(topic, 0)
    try:
        for number in range(ROUNDS):
            writer.send(topic, b"value", timestamp_ms=1000 + number).get(PATIENCE_SECONDS)
            assert reader.end_offsets([partition]) == {partition: number + 1}
        writer.send(topic, b"last", timestamp_ms=9000).get(PATIENCE_SECONDS)
        found = reader.offsets_for_times({partition: 9000})[partition]
        assert found is not None
        assert found.offset == ROUNDS
    finally:
        writer.close()
        reader.close()


def test_the_http_api_and_our_own_client_tell_the_same_end(
    slow: Broker, sender: Producer, topic: str
) -> None:
    with httpx.Client(base_url=slow.http_url, timeout=PATIENCE_SECONDS) as http:
        sent = send(sender, topic)
        [facts] = http.get(f"/v1/topics/{topic}").raise_for_status().json()["partitions"]
        assert facts["latest_offset"] == sent + 1
    wire = Cluster(ClientSettings(bootstrap_servers=slow.bootstrap_servers))
    partition = WirePartition(topic, 0)
    sent = send(sender, topic)
    assert wire.offsets({partition: LATEST})[partition].offset == sent + 1
    wire.close()


def test_a_disk_that_does_not_flush_delays_the_answer_only_for_a_while(
    slow: Broker,
    admin: AdminClient,
    sender: Producer,
    disk: FaultyDisk,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed = send(sender, topic) + 1
    assert end_of(admin, topic) == flushed
    disk.may_flush.clear()
    monkeypatch.setattr(offsets, "FLUSH_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(topics, "FLUSH_WAIT_SECONDS", 0.2)
    unflushed = send(sender, topic) + 1
    assert end_of(admin, topic) == flushed
    with pytest.raises(KafkaException) as refused:
        delete_before(admin, topic, unflushed)
    assert refused.value.args[0].code() == ErrorCode.OFFSET_OUT_OF_RANGE
    reader = Consumer({"bootstrap.servers": slow.bootstrap_servers, "group.id": "g"})
    reader.assign([TopicPartition(topic, 0, flushed)])
    assert reader.poll(0.5) is None, "a reader sees nothing that a power cut could take back"
    disk.may_flush.set()
    message = reader.poll(PATIENCE_SECONDS)
    reader.close()
    assert message is not None
    assert message.offset() == flushed
    assert end_of(admin, topic) == unflushed


def test_a_failed_disk_delays_nothing(
    admin: AdminClient, sender: Producer, disk: FaultyDisk, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "FLUSH_WAIT_SECONDS", 10 * PATIENCE_SECONDS)
    flushed = send(sender, topic) + 1
    assert end_of(admin, topic) == flushed
    disk.broken_flush = topic
    send(sender, topic)
    assert end_of(admin, topic) == flushed, "told when the flush has failed"
    assert end_of(admin, topic) == flushed, "told at once"
