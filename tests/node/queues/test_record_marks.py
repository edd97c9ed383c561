"""The lane of each record, however its batch was read."""

from array import array

import pytest

from penstock.batch import Record, build_batch
from penstock.node.queues.delivery_headers import DELAY_MS, scan_batches
from penstock.node.queues.record_marks import RecordLanes, RecordMarks
from penstock.queue.values import ScanResult
from penstock.ring import SLOTS, slot_of

NOW_MS = 1_762_000_000_000
KEYS = [b"alice", None, b"bob", b"", b"alice", b"carol"]
ZSTD = 4


def scan(batch: bytes, start: int, marks: RecordMarks | None = None) -> tuple[int, ScanResult]:
    return scan_batches(batch, start, marks or RecordLanes())


def expected(first: int, *keys: bytes | None) -> "array[int]":
    lanes = (offset % SLOTS if key is None else slot_of(key) for offset, key in enumerate(keys, first))
    return array("H", lanes)


def records(base: int, *, headers: tuple[tuple[str, bytes], ...] = ()) -> list[Record]:
    return [Record(base + at, NOW_MS, key, b"v", headers) for at, key in enumerate(KEYS)]


@pytest.mark.parametrize("compression", [0, ZSTD])
@pytest.mark.parametrize("headers", [(), (("trace", b"1"),), ((DELAY_MS, b"500"),)])
def test_a_lane_is_the_slot_of_the_key_or_of_the_offset_without_a_key(
    compression: int, headers: tuple[tuple[str, bytes], ...]
) -> None:
    batch = build_batch(records(5_000, headers=headers), base_offset=5_000, compression=compression)
    end, found = scan(batch, 5_000)
    assert end == 5_006
    assert found.lanes == expected(5_000, *KEYS)
    assert len(found.deferred) == (6 if (DELAY_MS, b"500") in headers else 0)


def test_reading_may_begin_within_a_batch() -> None:
    batch = build_batch(records(100), base_offset=100)
    assert scan(batch, 103)[1].lanes == expected(103, *KEYS[3:])


def test_gaps_have_lanes_that_count_for_nothing() -> None:
    some = [each for each in records(0) if each.offset not in (1, 5)]
    end, found = scan(build_batch(some, last_offset_delta=5) + build_batch(records(8), base_offset=8), 0)
    assert (end, found.gaps) == (14, [(1, 1), (5, 5), (6, 7)])
    assert found.lanes is not None
    assert len(found.lanes) == 14
    assert found.lanes[2:5] == expected(2, *KEYS[2:5])
    assert found.lanes[8:] == expected(8, *KEYS)


def test_a_batch_that_cannot_be_read_is_spread_by_offsets() -> None:
    batch = bytearray(build_batch(records(0)))
    batch[-3] ^= 0xFF
    assert scan(bytes(batch), 0)[1].lanes == expected(0, *[None] * 6)


def test_other_queues_do_not_open_records_for_lanes() -> None:
    found = scan(build_batch(records(0)), 0, RecordMarks())[1]
    assert (found.lanes, found.keys) == (None, ())
