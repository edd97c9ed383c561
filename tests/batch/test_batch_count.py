"""Counting the records of a batch, compiled and as plain Python from the same source: no wrong count passes."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import HEADER_SIZE, Record, _count, build_batch
from penstock.errors import BatchError, ErrorCode
from tests.batch.batch_strategies import record_lists
from tests.batch.test_batch_scan import PLAIN_SCAN as SCAN
from tests.batch.test_batch_scan import from_source, outcome

PLAIN = from_source("_count")
both = pytest.mark.parametrize("counter", [_count, PLAIN], ids=["installed", "plain"])


def records_of(rows: list[Record]) -> bytes:
    return build_batch(rows)[HEADER_SIZE:]


def passes(counter: ModuleType, records: bytes, count: int) -> bool:
    try:
        counter.check_count(memoryview(records), count)
    except BatchError:
        return False
    return True


@both
def test_a_wrong_count_is_an_invalid_record(counter: ModuleType) -> None:
    with pytest.raises(BatchError, match="record_count=2: expected the number of records") as wrong:
        counter.check_count(memoryview(records_of([Record(0, 1000)])), 2)
    assert wrong.value.code == ErrorCode.INVALID_RECORD


@both
@given(rows=record_lists(), claimed=st.integers(0, 40))
def test_only_the_right_count_passes(counter: ModuleType, rows: list[Record], claimed: int) -> None:
    assert passes(counter, records_of(rows), len(rows))
    assert passes(counter, records_of(rows), claimed) == (claimed == len(rows))


@both
@given(rows=record_lists(gaps=True))
def test_offset_deltas_must_be_the_indexes(counter: ModuleType, rows: list[Record]) -> None:
    first = rows[0].offset
    is_dense = [row.offset - first for row in rows] == list(range(len(rows)))
    assert (
        passes(counter, records_of([row._replace(offset=row.offset - first) for row in rows]), len(rows))
        == is_dense
    )


@given(rows=record_lists(), place=st.integers(0, 500), byte=st.integers(0, 255), cut=st.integers(0, 40))
def test_damaged_records_are_judged_alike_and_what_the_scan_accepts_passes(
    rows: list[Record], place: int, byte: int, cut: int
) -> None:
    damaged = bytearray(records_of(rows))
    damaged[place % len(damaged)] = byte
    records = bytes(damaged[: len(damaged) - cut])
    counted = passes(_count, records, len(rows))
    assert counted == passes(PLAIN, records, len(rows))
    scanned = outcome(SCAN, records, len(rows), len(rows) - 1)
    assert counted or isinstance(scanned[0], ErrorCode) or scanned[0] != len(rows)


@both
@pytest.mark.parametrize("size", [0, 1, 90, 5_000, 65_530, 65_536, 70_000, 200_000])
def test_records_that_cross_windows_are_counted(counter: ModuleType, size: int) -> None:
    count = max(3, 200_000 // (size + 10))
    records = records_of([Record(index, 1000 + index, None, bytes(size)) for index in range(count)])
    assert len(records) > 2 * _count.WINDOW
    for claimed in (count - 1, count, count + 1):
        assert passes(counter, records, claimed) == (claimed == count)
    for cut in (1, 20, len(records) // 2):
        assert not passes(counter, records[:-cut], count)
    assert not passes(counter, records + b"\0", count)


@both
@pytest.mark.parametrize(
    "records",
    [
        b"",
        b"\x0e",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x80\x80\x80\x80\x10\0\0\0\1\1\0",
        b"\x0d\0\0\0\1\1\0",  # a negative length
        b"\x0c\0\xff\xff\xff\xff\xff\xff",
        b"\x02\0",
    ],
)
def test_bytes_that_are_no_record_do_not_pass(counter: ModuleType, records: bytes) -> None:
    assert not passes(counter, records, 1)
