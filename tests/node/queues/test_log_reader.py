"""Reading the log for a queue: deleted and compacted records block no consumer, and existing records are never lost."""

import gzip
from typing import Any, cast
from uuid import UUID

import pytest
from crc32c import crc32c

from penstock.batch import (
    HEADER_SIZE,
    EndMarker,
    Record,
    build_batch,
    build_marker,
    iter_headers,
    read_records,
)
from penstock.errors import BatchError, StorageError
from penstock.log.aborted import AbortedTransaction
from penstock.node.queues.delivery_headers import most_unpacked, scan_batches
from penstock.node.queues.log_reader import LogReader
from penstock.node.queues.record_marks import KeyHashes
from penstock.node.queues.retention_notices import RetentionNotices
from penstock.node.queues.stats import QueueStats
from penstock.node.queues.values import LeasedBatches
from penstock.node.replication.partition import Partition
from penstock.queue import QueueKey
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings
from penstock.types import Isolation, Term, TopicPartition

NOW, ME = 1_000, "me"
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
ACCEPT, RELEASE = b"\x01", b"\x02"
EVERYTHING = 1 << 30


class StoredBatches:
    """A partition whose batches can be removed, as retention and compaction do."""

    def __init__(self, sizes: list[int], value: bytes = b"x", compression: int = 0) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.name = TopicPartition("jobs", 0)
        self.start_offset = 0
        self.high_watermark = 0
        self.broken_from = 1 << 62
        self.stable_offset = 1 << 62
        self.aborted: list[AbortedTransaction] = []
        for size in sizes:
            rows = [Record(self.high_watermark + at, NOW, None, value, ()) for at in range(size)]
            batch = build_batch(rows, base_offset=self.high_watermark, compression=compression)
            self.batches.append((self.high_watermark, batch))
            self.high_watermark += size

    def compact(self, first: int, last: int) -> None:
        self.batches = [(base, batch) for base, batch in self.batches if not first <= base <= last]

    def mark(self, *, commit: bool) -> None:
        """The marker of a transaction follows."""
        made = build_marker(
            EndMarker(commit, 0),
            producer_id=7,
            producer_epoch=0,
            timestamp_ms=NOW,
            offset=self.high_watermark,
        )
        self.batches.append((self.high_watermark, bytes(made)))
        self.high_watermark += 1

    def add(self, size: int, *, producer_id: int = -1, key: bytes | None = None) -> None:
        """A batch follows; of a producer: in a transaction."""
        rows = [Record(self.high_watermark + at, NOW, key, b"x", ()) for at in range(size)]
        has_producer = producer_id >= 0
        batch = build_batch(
            rows,
            base_offset=self.high_watermark,
            producer_id=producer_id,
            producer_epoch=0 if has_producer else -1,
            base_sequence=0 if has_producer else -1,
            transactional=has_producer,
        )
        self.batches.append((self.high_watermark, batch))
        self.high_watermark += size

    def aborted_in(self, offset: int, data: bytes) -> list[AbortedTransaction]:
        return self.aborted

    def end_for(self, isolation: Isolation) -> int:
        return min(self.high_watermark, self.stable_offset) if isolation else self.high_watermark

    def read(self, offset: int, max_bytes: int, *, end: int, at_least_one: bool) -> bytes:
        assert offset >= self.start_offset, "out of range"
        if offset >= self.broken_from:
            raise StorageError("the disk cannot be read")
        found = b""
        for base, batch in self.batches:
            if next(iter_headers(batch))[1].next_offset <= offset or base >= end:
                continue
            if len(found) + len(batch) > max_bytes and not (at_least_one and not found):
                break
            found += batch
        return found


class ReaderHarness:
    def __init__(self, stored: StoredBatches, **settings: Any) -> None:
        self.stored = stored
        wanted = QueueSettings(lease_ms=1_000, delivery_limit=5, max_leased=10_000, **settings)
        self.core = QueuePartition(wanted, term=Term(1), start_offset=0)
        partition = cast(Partition, stored)
        self.stats = QueueStats("workers", "jobs")
        notices = RetentionNotices(QueueKey("workers", UUID(int=1), 0), partition, self.stats)
        self.log = LogReader(self.core, partition, Isolation.READ_UNCOMMITTED, notices=notices)

    def deliver(
        self, most: int, max_bytes: int = EVERYTHING, max_unpacked: int | None = None, member: str = ME
    ) -> LeasedBatches:
        self.log.read_ahead(NOW, most)
        acquired = self.core.acquire(NOW, member, most)
        if not acquired:
            return LeasedBatches(b"", [])
        return self.log.fetch(
            NOW, member, acquired, max_bytes, whole_batches=False, max_unpacked=max_unpacked
        )


def offsets(delivery: LeasedBatches) -> list[int]:
    return [offset for one in delivery.acquired for offset in range(one.first, one.last + 1)]


def test_deleted_records_are_done_and_the_others_are_delivered() -> None:
    harness = ReaderHarness(StoredBatches([1] * 40))
    harness.log.read_ahead(NOW, 40)
    harness.stored.start_offset = 25
    delivery = harness.deliver(100)
    assert offsets(delivery) == list(range(25, 40))
    assert {one.deliveries for one in delivery.acquired} == {1}
    assert harness.core.start_offset == 25
    assert harness.stats.deleted == {0: 25}


def test_a_queue_of_committed_records_stops_at_the_last_stable_offset() -> None:
    harness = ReaderHarness(StoredBatches([1] * 10))
    harness.stored.stable_offset = 4
    harness.log.isolation = Isolation.READ_COMMITTED
    assert offsets(harness.deliver(100)) == [0, 1, 2, 3]
    assert not harness.log.is_behind
    harness.stored.stable_offset = 7
    assert offsets(harness.deliver(100)) == [4, 5, 6]


@pytest.mark.parametrize("most", [1, 100])
def test_markers_are_nothing_to_deliver_and_hold_nothing_back(most: int) -> None:
    stored = StoredBatches([])
    stored.mark(commit=True)
    stored.add(2)
    stored.mark(commit=True)
    stored.mark(commit=False)
    stored.add(1)
    stored.mark(commit=True)
    harness = ReaderHarness(stored)
    got: list[int] = []
    while found := offsets(harness.deliver(most)):
        got += found
        harness.core.acknowledge(NOW, ME, found[0], found[-1], ACCEPT * len(found)) if most == 1 else None
    assert got == [1, 2, 5]
    assert harness.core.next_offset == 7
    assert harness.core.backlog(NOW, 7).available == 0
    if most == 1:
        assert harness.core.start_offset == 7, "all is done, up to the last marker"


def test_a_queue_of_committed_records_does_not_deliver_aborted_ones() -> None:
    stored = StoredBatches([])
    stored.add(1, producer_id=7)
    stored.add(1)
    stored.add(1, producer_id=7)
    stored.mark(commit=False)
    stored.add(1, producer_id=7)
    stored.mark(commit=True)
    stored.aborted = [AbortedTransaction(7, 0, 3, 4)]
    harness = ReaderHarness(stored)
    harness.log.isolation = Isolation.READ_COMMITTED
    assert offsets(harness.deliver(100)) == [1, 4]
    assert harness.core.backlog(NOW, 6).available == 0


def test_a_consumer_that_takes_one_message_at_a_time_skips_compacted_records() -> None:
    harness = ReaderHarness(StoredBatches([1] * 40))
    harness.log.read_ahead(NOW, 40)
    harness.stored.compact(3, 37)
    got: list[int] = []
    for _ in range(8):
        got += offsets(harness.deliver(1))
    assert got == [0, 1, 2, 38, 39]
    assert harness.core.available_count == 0


def test_compacted_records_at_the_end_do_not_stay_available() -> None:
    harness = ReaderHarness(StoredBatches([1] * 10))
    harness.log.read_ahead(NOW, 10)
    harness.stored.compact(4, 9)
    got = [offset for _ in range(6) for offset in offsets(harness.deliver(1))]
    assert got == [0, 1, 2, 3]
    assert harness.core.available_count == 0


def test_all_remaining_records_may_be_deleted_before_they_are_read() -> None:
    harness = ReaderHarness(StoredBatches([1] * 10))
    harness.stored.compact(0, 9)
    assert offsets(harness.deliver(5)) == []
    assert harness.core.next_offset == 10
    assert not harness.log.is_behind


def test_a_gap_behind_a_batch_that_did_not_fit_does_not_hide_it() -> None:
    """A large batch does not fit beside the first one, and is released; behind it compaction has left a gap."""
    stored = StoredBatches([1] * 6)
    large = build_batch([Record(1, NOW, None, b"y" * 5_000, ())], base_offset=1)
    stored.batches[1] = (1, large)
    harness = ReaderHarness(stored)
    harness.log.read_ahead(NOW, 6)
    harness.core.acquire(NOW, "other", 5)
    harness.core.hand_back(NOW, "other", 0, 1)
    harness.core.acknowledge(NOW, "other", 2, 4, RELEASE)  # their second delivery is a separate range
    stored.compact(2, 4)
    got = offsets(harness.deliver(5, max_bytes=2_000))
    got += offsets(harness.deliver(5))
    got += offsets(harness.deliver(5))
    assert got == [0, 1, 5]


def test_unreadable_messages_are_released_and_do_not_count_as_delivered() -> None:
    harness = ReaderHarness(StoredBatches([1] * 4))
    harness.log.read_ahead(NOW, 4)
    harness.stored.broken_from = 0
    for _ in range(10):
        with pytest.raises(StorageError):
            harness.deliver(4)
    harness.stored.broken_from = 1 << 62
    delivery = harness.deliver(4)
    assert offsets(delivery) == [0, 1, 2, 3]
    assert {one.deliveries for one in delivery.acquired} == {1}


def test_readable_messages_are_delivered_before_unreadable_ones() -> None:
    harness = ReaderHarness(StoredBatches([1] * 4))
    harness.log.read_ahead(NOW, 4)
    held = harness.core.acquire(NOW, "other", 2)
    harness.core.acknowledge(NOW, "other", 1, 1, ACCEPT)
    harness.core.hand_back(NOW, "other", 0, 0)
    assert held
    harness.stored.broken_from = 2
    assert offsets(harness.deliver(4)) == [0]
    harness.stored.broken_from = 1 << 62
    assert offsets(harness.deliver(4)) == [2, 3]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_delivery_is_bounded_by_its_unpacked_size(codec: int) -> None:
    megabyte = bytes(1_000_000)
    harness = ReaderHarness(StoredBatches([1] * 10, megabyte, codec))
    assert len(harness.stored.batches[0][1]) < 60_000
    got: list[int] = []
    while delivery := offsets(harness.deliver(10, max_unpacked=3_500_000)):
        assert 1 <= len(delivery) <= 3
        got += delivery
    assert got == list(range(10))


def test_a_batch_that_is_too_large_by_itself_is_delivered_alone() -> None:
    harness = ReaderHarness(StoredBatches([1] * 3, bytes(1_000_000), ZSTD))
    assert [offsets(harness.deliver(3, max_unpacked=10)) for _ in range(3)] == [[0], [1], [2]]


def test_reading_ahead_unpacks_a_bounded_amount_at_once() -> None:
    stored = StoredBatches([1] * 30, bytes(4_000_000), ZSTD)
    data = b"".join(batch for _, batch in stored.batches)
    end, _ = scan_batches(data, 0, KeyHashes())
    assert 1 <= end <= 4
    harness = ReaderHarness(stored)
    harness.log.read_ahead(NOW, 30, reads=1)
    assert harness.log.is_behind
    harness.log.read_ahead(NOW, 30)
    assert harness.core.next_offset == 30
    assert not harness.log.is_behind


def test_a_batch_that_unpacks_to_more_than_it_says_is_not_opened() -> None:
    """Two gzip members: the size in the trailer is that of the last one only."""
    plain = build_batch([Record(0, NOW, b"key", bytes(1_000_000), ())])
    records = plain[HEADER_SIZE:]
    payload = gzip.compress(records[:-9_000]) + gzip.compress(records[-9_000:])
    covered = GZIP.to_bytes(2, "big") + plain[23:HEADER_SIZE] + payload
    batch = plain[:8] + (9 + len(covered)).to_bytes(4, "big") + plain[12:17]
    batch += crc32c(covered).to_bytes(4, "big") + covered
    assert len(read_records(batch)) == 1
    with pytest.raises(BatchError):
        read_records(batch, max_bytes=most_unpacked(batch, 0, next(iter_headers(batch))[1]))
