"""Disks that are full, fail or have damaged bytes: the client gets an error, everything else continues."""

import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.config import GroupSettings
from penstock.errors import DiskFull, ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.kafka.raw import PATIENCE_SECONDS, RawClient
from tests.node.faulty_disk import FaultyDisk


def produce(client: RawClient, topic: str, value: bytes, acks: int = -1) -> int:
    batch = bytearray(build_batch([Record(0, 1_700_000_000_000, None, value, ())]))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    answer = client.call(ApiKey.PRODUCE, 9, ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[data]))
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


def fetch(client: RawClient, topic: str) -> tuple[int, bytes]:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    answer = client.call(
        ApiKey.FETCH, 11, FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=topics)
    )
    assert isinstance(answer, FetchResponse)
    found = answer.responses[0].partitions[0]
    return found.error_code, bytes(found.records or b"")


def create(client: RawClient, *names: str) -> list[int]:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = client.call(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics))
    assert isinstance(answer, CreateTopicsResponse)
    return [topic.error_code for topic in answer.topics]


def spoil(folder: Path, pattern: bytes) -> Path:
    """Changes a byte in the middle of a log, and removes the files with which recovery would skip it."""
    segment = next(folder.glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[content.index(pattern)] ^= 0xFF
    segment.write_bytes(content)
    for leftover in folder.iterdir():
        if leftover.suffix in (".index", ".timeindex", ".snapshot"):
            leftover.unlink()
    return segment


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path / "data")


@pytest.fixture
def client(tmp_path: Path, disk: FaultyDisk) -> Iterator[RawClient]:
    with Broker(data_dir=tmp_path / "data", disk=disk) as broker, RawClient(broker) as connected:
        create(connected, "one", "two")
        yield connected


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_by_itself(
    client: RawClient, disk: FaultyDisk
) -> None:
    assert produce(client, "one", b"before") == ErrorCode.NONE
    disk.full = True
    for acks in (-1, 1):
        assert produce(client, "one", b"refused", acks) == ErrorCode.KAFKA_STORAGE_ERROR
    assert create(client, "three") == [ErrorCode.KAFKA_STORAGE_ERROR]
    code, records = fetch(client, "one")
    assert code == ErrorCode.NONE
    assert b"before" in records
    disk.full = False
    assert produce(client, "one", b"after") == ErrorCode.NONE
    assert create(client, "three") == [ErrorCode.NONE]
    _, records = fetch(client, "one")
    assert b"after" in records
    assert b"refused" not in records


def test_a_failed_flush_halts_its_partition_and_no_other(client: RawClient, disk: FaultyDisk) -> None:
    assert produce(client, "one", b"before") == ErrorCode.NONE
    disk.broken_flush = "one-0"
    assert produce(client, "one", b"lost") == ErrorCode.KAFKA_STORAGE_ERROR
    disk.broken_flush = None
    assert produce(client, "one", b"never again until restart") == ErrorCode.KAFKA_STORAGE_ERROR
    code, records = fetch(client, "one")
    assert code == ErrorCode.NONE
    assert b"before" in records
    assert b"lost" not in records
    assert produce(client, "two", b"fine") == ErrorCode.NONE


def test_a_failed_write_ends_the_requests_that_wait_for_a_flush(
    tmp_path: Path, client: RawClient, disk: FaultyDisk
) -> None:
    disk.may_flush.clear()
    disk.broken_write = b"broken"
    try:
        for value in (b"in the flush under way", b"in the next one", b"broken"):
            batch = bytearray(build_batch([Record(0, 1_700_000_000_000, None, value, ())]))
            data = TopicProduceData(name="one", partition_data=[PartitionProduceData(index=0, records=batch)])
            request = ProduceRequest(acks=-1, timeout_ms=600_000, topic_data=[data])
            client.request(ApiKey.PRODUCE, 9, request)
        segment = tmp_path / "data/topics/one-0/00000000000000000000.log"
        while not segment.exists() or b"in the next one" not in segment.read_bytes():
            threading.Event().wait(0.01)
    finally:
        disk.may_flush.set()
    codes = []
    for _ in range(3):
        answer = client.answer(ApiKey.PRODUCE, 9)[1]
        assert isinstance(answer, ProduceResponse)
        codes.append(answer.responses[0].partition_responses[0].error_code)
    assert codes[1:] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert produce(client, "two", b"not affected") == ErrorCode.NONE


def test_a_damaged_segment_is_reported_and_takes_no_other_topic_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        create(client, "rotten", "sound")
        for topic in ("rotten", "sound"):
            for number in range(20):
                assert produce(client, topic, b"value %d" % number) == ErrorCode.NONE
    segment = spoil(tmp_path / "topics" / "rotten-0", b"value 7")
    with caplog.at_level(logging.ERROR), Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        assert fetch(client, "rotten")[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(client, "rotten", b"x") == ErrorCode.KAFKA_STORAGE_ERROR
        assert b"value 19" in fetch(client, "sound")[1]
        assert produce(client, "sound", b"x") == ErrorCode.NONE
    assert segment.name in caplog.text
    assert "byte" in caplog.text


def test_bytes_that_a_disk_has_changed_are_not_served_and_the_consumer_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        create(client, "rotten")
        for number in range(20):
            assert produce(client, "rotten", b"value %d" % number) == ErrorCode.NONE
    segment = next((tmp_path / "topics" / "rotten-0").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[content.index(b"value 7")] ^= 0xFF
    segment.write_bytes(content)
    with caplog.at_level(logging.ERROR), Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        code, records = fetch(client, "rotten")
        assert (code, records.count(b"value")) == (ErrorCode.NONE, 7)
        reader = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        reader.assign([TopicPartition("rotten", 0, 0)])
        values: list[bytes] = []
        while (message := reader.poll(PATIENCE_SECONDS)) is not None and message.error() is None:
            values.append(message.value())
        assert message is not None
        assert message.error().code() == ErrorCode.CORRUPT_MESSAGE
        assert values == [b"value %d" % number for number in range(7)]
        reader.seek(TopicPartition("rotten", 0, 8))
        while (message := reader.poll(PATIENCE_SECONDS)) is not None and message.error() is not None:
            pass
        assert message is not None
        assert message.value() == b"value 8"
        reader.close()
        assert produce(client, "rotten", b"taken") == ErrorCode.NONE
    assert caplog.text.count(segment.name) == 1


def test_an_unexpected_error_in_a_flush_is_answered_and_the_broker_still_stops(
    client: RawClient, disk: FaultyDisk
) -> None:
    names = [f"many-{index}" for index in range(8)]
    create(client, *names)
    disk.surprise = True
    batches = [bytearray(build_batch([Record(0, 1_700_000_000_000, None, b"x", ())])) for _ in names]
    data = [
        TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch)])
        for name, batch in zip(names, batches, strict=True)
    ]
    answer = client.call(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=data))
    assert isinstance(answer, ProduceResponse)
    codes = {row.partition_responses[0].error_code for row in answer.responses}
    assert codes == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert produce(client, "one", b"others are flushed") == ErrorCode.NONE


def test_a_full_disk_does_not_keep_the_broker_from_closing(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    broker = Broker(data_dir=tmp_path, disk=disk)
    with RawClient(broker) as client:
        create(client, "one", "two")
        for topic in ("one", "two"):
            assert produce(client, topic, b"kept") == ErrorCode.NONE
    disk.full = True
    with suppress(DiskFull):
        broker.close()
    disk.full = False
    with Broker(data_dir=tmp_path) as again, RawClient(again) as client:
        for topic in ("one", "two"):
            assert b"kept" in fetch(client, topic)[1]


def test_a_broker_starts_on_a_full_disk_serves_reads_and_accepts_writes_when_there_is_space(
    tmp_path: Path,
) -> None:
    with Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        create(client, "t")
        produce(client, "t", b"before")
    disk = FaultyDisk(tmp_path)
    disk.full = True
    with Broker(data_dir=tmp_path, disk=disk) as broker, RawClient(broker) as client:
        assert b"before" in fetch(client, "t")[1]
        assert produce(client, "t", b"refused") == ErrorCode.KAFKA_STORAGE_ERROR
        disk.full = False
        assert produce(client, "t", b"after") == ErrorCode.NONE


def test_the_name_of_a_deleted_topic_is_free_even_if_its_log_could_not_be_opened(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        create(client, "t")
        for number in range(20):
            produce(client, "t", b"old %d" % number)
    spoil(tmp_path / "topics" / "t-0", b"old 7")
    with Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        assert fetch(client, "t")[0] == ErrorCode.KAFKA_STORAGE_ERROR
        request = DeleteTopicsRequest(topic_names=["t"])
        answer = client.call(ApiKey.DELETE_TOPICS, 4, request)
        assert isinstance(answer, DeleteTopicsResponse)
        assert answer.responses[0].error_code == ErrorCode.NONE
        create(client, "t")
        assert fetch(client, "t") == (ErrorCode.NONE, b"")


def test_a_damaged_offsets_partition_takes_its_coordinator_offline_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one_home = GroupSettings(offsets_topic_partitions=1)
    with Broker(data_dir=tmp_path, groups=one_home) as broker, RawClient(broker) as client:
        create(client, "t")
        for number in range(5):
            commit(client, "t", number)
    segment = next((tmp_path / "topics" / "__consumer_offsets-0").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[content.index(b"readers")] ^= 0xFF
    segment.write_bytes(content)
    with caplog.at_level(logging.ERROR), Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        assert commit(client, "t", 9) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert produce(client, "t", b"x") == ErrorCode.NONE
    assert "__consumer_offsets-0" in caplog.text


def commit(client: RawClient, topic: str, offset: int) -> int:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[row])]
    request = OffsetCommitRequest(group_id="readers", topics=topics)
    answer = client.call(ApiKey.OFFSET_COMMIT, 7, request)
    assert isinstance(answer, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_file_system_that_is_really_full_behaves_the_same(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount is not allowed here: {mounted.stderr.decode().strip()}")
    try:
        _fill_and_free(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def _fill_and_free(folder: Path) -> None:
    ballast = folder / "ballast"
    with Broker(data_dir=folder / "data") as broker, RawClient(broker) as client:
        create(client, "t")
        assert produce(client, "t", b"first") == ErrorCode.NONE
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        ballast.write_bytes(b"\0" * (free - 64 * 1024))
        codes = [produce(client, "t", b"x" * 100_000) for _ in range(3)]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        assert b"first" in fetch(client, "t")[1]
        ballast.unlink()
        assert produce(client, "t", b"after") == ErrorCode.NONE
        assert b"after" in fetch(client, "t")[1]
