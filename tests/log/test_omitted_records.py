"""Batches without their duplicates, and empty batches, are stored like any others."""

import pytest

from penstock.batch import check_batch
from penstock.log import Disk, Log, MemoryDisk
from penstock.node.dedup.message_ids import emptied, without_records
from penstock.types import Offset, Term
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    append,
    append_entries,
    batch,
    compact,
    config,
    flush,
    offsets,
    producer_state,
)

KEEPS = config(segment_bytes=400, index_interval_bytes=64)
COMPACTS = config(
    segment_bytes=400, index_interval_bytes=64, cleanup_compact=True, cleanup_delete=False, retention_ms=-1
)


class LastingDisk(MemoryDisk):
    """Its files survive reopening the log."""

    volatile = False


@pytest.fixture
def disk() -> Disk:
    made = LastingDisk()
    made.make_dir("topics")
    return made


def thinned(log: Log, sequence: int, timestamp: int) -> None:
    """Three records, of which the second alone is new."""
    data, header = batch(
        b"a", b"b", b"c", keys=[b"1", b"2", b"3"], producer=(7, 0, sequence), timestamp=timestamp
    )
    kept, kept_header = without_records(memoryview(data), header, {0, 2}, 10**6)
    assert log.writer.append(kept, kept_header, Term(1), NOW_MS).last_offset == log.end_offset - 1


def empty(log: Log, sequence: int, timestamp: int) -> None:
    _, header = batch(b"a", b"b", producer=(7, 0, sequence))
    bare, bare_header = emptied(header, timestamp)
    log.writer.append(bare, bare_header, Term(1), NOW_MS)


def filled(disk: Disk, settings: object) -> Log:
    """Offsets 0 and 10k + (0: a record, 1-3: thinned, 4-9: three empty batches)."""
    log = Log.open(disk, FOLDER, settings)  # type: ignore[arg-type]
    for number in range(5):
        append(log, b"v", key=b"%d" % number, timestamp=NOW_MS + 10 * number)
        thinned(log, number * 9, NOW_MS + 10 * number)
        for nth in range(3):
            empty(log, number * 9 + 3 + 2 * nth, NOW_MS + 10 * number)
    return log


RECORDS = [offset for number in range(5) for offset in (10 * number, 10 * number + 2)]


def test_a_reader_gets_the_records_and_a_restart_changes_nothing(disk: Disk) -> None:
    log = filled(disk, KEEPS)
    assert (offsets(log), log.end_offset) == (RECORDS, 50)
    known = producer_state(log)
    flush(log)
    again = Log.open(disk, FOLDER, KEEPS)  # as after a kill: nothing was closed
    assert (offsets(again), again.end_offset, producer_state(again)) == (RECORDS, 50, known)
    assert again.segment_count > 3


def test_records_are_found_by_time_across_empty_batches(disk: Disk) -> None:
    log = filled(disk, KEEPS)
    end = log.end_offset
    assert log.find_timestamp(NOW_MS + 10, end) == (NOW_MS + 10, 10, 1)
    assert log.find_timestamp(NOW_MS + 11, end) == (NOW_MS + 11, 12, 1)
    assert log.max_timestamp(end) == (NOW_MS + 41, 42, 1)


def test_segments_of_empty_batches_age_like_others(disk: Disk) -> None:
    log = filled(disk, config(segment_bytes=130, index_interval_bytes=64, retention_ms=1000))
    assert log.segment_count > 10
    flush(log)
    log.retention.apply(NOW_MS + 10_000_000)
    assert (offsets(log), log.start_offset) == ([], 50)


def test_compaction_handles_them_and_keeps_the_last_batch_of_a_producer(disk: Disk) -> None:
    log = filled(disk, COMPACTS)
    append(log, b"end", key=b"end")
    flush(log)
    known = producer_state(log)
    assert compact(log, NOW_MS + 10)
    kept = offsets(log)
    assert kept[-1] == 50
    assert kept.count(2) == 0, "key 2 was written again"
    assert set(kept) <= {*RECORDS, 50}
    again = Log.open(disk, FOLDER, COMPACTS)
    assert [row[-1][-1] for row in producer_state(again)] == [row[-1][-1] for row in known]
    data, header = batch(b"next", producer=(7, 0, 45))
    assert again.writer.append(data, header, Term(1), NOW_MS).base_offset == 51


def test_another_replica_stores_them_unchanged(disk: Disk) -> None:
    log, other = filled(disk, KEEPS), Log.open(disk, "topics/replica-0", KEEPS)
    index = log.entries.first_index
    while index < log.entries.end_index:
        data, index = log.entries.read_entries(index, 500)
        append_entries(other, data, NOW_MS)
    assert (offsets(other), other.end_offset) == (RECORDS, Offset(50))
    assert producer_state(other) == producer_state(log)
    assert check_batch(other.read(Offset(4), 100, limit=Offset(6))).record_count == 0
