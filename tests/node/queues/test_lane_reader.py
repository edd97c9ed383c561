"""The log is read until the owner that asks has messages, however many are available to others."""

from typing import cast
from uuid import UUID

import pytest

from penstock.batch import Record, build_batch
from penstock.errors import StorageError
from penstock.node.queues.lane_reader import LaneReader
from penstock.node.queues.log_reader import EXTENDS_PER_TURN, READ_AHEAD_BYTES
from penstock.node.queues.retention_notices import RetentionNotices
from penstock.node.queues.stats import QueueStats
from penstock.node.queues.values import LeasedBatches
from penstock.node.replication.partition import Partition
from penstock.queue import QueueKey
from penstock.queue.lanes import LaneTable
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings
from penstock.ring import SLOTS, slot_of
from penstock.types import Isolation, Term
from tests.node.queues.test_log_reader import ACCEPT, EVERYTHING, NOW, StoredBatches, offsets

ANN, BEN = b"ann's key", b"ben's key"


class KeyedBatches(StoredBatches):
    """Batches of records with keys, as many as there are lists."""

    def __init__(self, *batches: list[bytes], value: bytes = b"v") -> None:
        super().__init__([])
        base = 0
        for keys in batches:
            rows = [Record(base + at, NOW, key, value, ()) for at, key in enumerate(keys)]
            self.batches.append((base, build_batch(rows, base_offset=base)))
            base += len(keys)
        self.high_watermark = base


class LaneReaderHarness:
    """The lane of one key belongs to ann, all others to ben."""

    def __init__(self, stored: StoredBatches, **settings: int) -> None:
        wanted = QueueSettings(lanes=SLOTS, **settings)
        self.core = QueuePartition(wanted, term=Term(1), start_offset=0)
        owners = ["ben"] * SLOTS
        owners[slot_of(ANN)] = "ann"
        self.core.assign(NOW, LaneTable(epoch=1, owners=owners, epochs=[1] * SLOTS))
        for name in ("ann", "ben"):
            self.core.attach(name, name)
        partition = cast(Partition, stored)
        notices = RetentionNotices(QueueKey("clique", UUID(int=1), 0), partition, QueueStats("clique", "t"))
        self.log = LaneReader(self.core, partition, Isolation.READ_UNCOMMITTED, notices=notices)

    def deliver(self, member: str, most: int = 100, max_bytes: int = EVERYTHING) -> LeasedBatches:
        return self.log.deliver(NOW, member, most, max_bytes, others=3, whole_batches=True, max_unpacked=None)


def test_an_owner_gets_its_records_from_batches_that_it_shares_with_others() -> None:
    harness = LaneReaderHarness(KeyedBatches([ANN, BEN, BEN, ANN], [BEN, ANN]))
    delivery = harness.deliver("ann")
    assert offsets(delivery) == [0, 3, 5]
    assert offsets(harness.deliver("ben")) == [1, 2, 4]


def test_reading_goes_on_beyond_records_of_others_until_the_owner_has_some() -> None:
    value = bytes(READ_AHEAD_BYTES // 2)
    batches = [[BEN]] * 9 + [[ANN]]
    harness = LaneReaderHarness(KeyedBatches(*batches, value=value))
    assert offsets(harness.deliver("ann")) == [9]
    assert harness.core.available_count == 9


def test_one_turn_reads_a_bounded_amount() -> None:
    value = bytes(READ_AHEAD_BYTES)
    harness = LaneReaderHarness(KeyedBatches(*[[BEN]] * EXTENDS_PER_TURN, [ANN], value=value))
    assert offsets(harness.deliver("ann")) == []
    assert harness.log.is_behind
    assert offsets(harness.deliver("ann")) == [EXTENDS_PER_TURN]


def test_reading_stops_when_too_many_records_of_others_are_available() -> None:
    batches = KeyedBatches(*[[BEN] * 5] * 4, [ANN], value=bytes(READ_AHEAD_BYTES // 5))
    harness = LaneReaderHarness(batches, max_ahead=8)
    assert offsets(harness.deliver("ann")) == []
    assert harness.core.available_count == 10
    assert not harness.log.is_behind
    harness.deliver("ben", 5)
    harness.deliver("ann")
    assert harness.core.available_count == 10, "two batches, then one more for that which ben took"


def test_records_that_do_not_fit_are_not_leased() -> None:
    harness = LaneReaderHarness(KeyedBatches(*[[ANN, BEN]] * 50, value=bytes(1_000)))
    harness.log.read_until(NOW, lambda: False)
    delivery = harness.deliver("ann", max_bytes=20_000)
    assert 10 <= len(offsets(delivery)) <= 30, "two owners: twice the bytes"
    assert harness.core.leased_count == len(offsets(delivery))
    assert harness.core.peek(0, 0)[0].deliveries == 1


def test_records_that_compaction_removed_are_done() -> None:
    stored = KeyedBatches([ANN, BEN], [ANN, ANN], [BEN, ANN], [ANN, BEN])
    harness = LaneReaderHarness(stored)
    harness.log.read_until(NOW, lambda: False)
    stored.compact(2, 5)
    assert offsets(harness.deliver("ann")) == [0, 6]
    assert harness.core.leased_count == 2
    assert offsets(harness.deliver("ben")) == [1, 7]
    for member, offset in (("ann", 0), ("ben", 1), ("ann", 6), ("ben", 7)):
        harness.core.acknowledge(NOW, member, offset, offset, ACCEPT)
    assert harness.core.start_offset == 8


def test_a_read_that_fails_leaves_nothing_leased_and_counts_no_delivery() -> None:
    stored = KeyedBatches([ANN, BEN], [ANN], value=bytes(20_000))
    harness = LaneReaderHarness(stored)
    harness.log.read_until(NOW, lambda: False)
    harness.log._record_bytes = 32  # as if they were small: each batch needs a read of its own
    stored.broken_from = 0
    with pytest.raises(StorageError):
        harness.deliver("ann")
    assert (harness.core.leased_count, harness.core.peek(0, 0)[0].deliveries) == (0, 0)
    stored.broken_from = 2
    assert offsets(harness.deliver("ann")) == [0], "what can be read is delivered"
    assert harness.core.leased_count == 1


def test_a_record_in_a_batch_that_does_not_fit_comes_with_the_next_delivery() -> None:
    harness = LaneReaderHarness(KeyedBatches([ANN] * 3, [ANN], [ANN], value=bytes(20_000)))
    harness.log.read_until(NOW, lambda: False)
    harness.log._record_bytes = 32  # as if they were small: each batch needs a read of its own
    assert offsets(harness.deliver("ann", max_bytes=35_000)) == [0, 1, 2]
    assert offsets(harness.deliver("ann", max_bytes=35_000)) == [3, 4]
    assert {run.deliveries for run in harness.core.peek(0, 4)} == {1}


def test_markers_between_the_messages_of_owners_are_nothing_to_deliver() -> None:
    stored = StoredBatches([])
    stored.mark(commit=True)
    stored.add(1, key=BEN)
    stored.mark(commit=True)
    stored.add(1, key=ANN)
    stored.mark(commit=False)
    harness = LaneReaderHarness(stored)
    for name, offset in (("ann", 3), ("ben", 1)):
        delivery = harness.log.deliver(
            NOW, name, 10, EVERYTHING, others=0, whole_batches=False, max_unpacked=None
        )
        assert offsets(delivery) == [offset]
    assert harness.core.next_offset == 5
