"""Arrow columns of every type and slice become the columns that the encoder reads."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import Record, read_records
from penstock.batch.outgoing import pack_batch
from penstock.batch.producing import Column, RowColumns, encode_columns
from penstock.spark.sink_rows import BadRow, column_of, header_column_of, partitions_of, times_of, topics_of
from penstock.spark.sink_sender import GATHERED_BYTES, gathered

NOW_MS = 1_700_000_000_000
UNTIMED = settings(deadline=None)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KINDS = [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()]

values = st.none() | st.text("abc\u00e9", max_size=12)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text("xyz", max_size=3), "value": st.none() | st.binary(max_size=9)}),
    max_size=3,
)


def read_back(columns: RowColumns) -> list[Record]:
    return read_records(pack_batch(encode_columns(columns, b"", 0, 1 << 30, NOW_MS)))


@UNTIMED
@given(items=st.lists(values, min_size=1, max_size=20), kind=st.sampled_from(KINDS), data=st.data())
def test_any_slice_of_a_column_is_read_as_it_is(
    items: list[str | None], kind: pa.DataType, data: st.DataObject
) -> None:
    array = pa.array([None if item is None else item.encode() for item in items], pa.binary()).cast(kind)
    start = data.draw(st.integers(0, len(items) - 1))
    stop = data.draw(st.integers(start + 1, len(items)))
    column = column_of(array.slice(start, stop - start))
    found = [record.value for record in read_back(RowColumns(stop - start, Column(), column))]
    assert found == [None if item is None else item.encode() for item in items[start:stop]]


@UNTIMED
@given(lists=st.lists(headers, min_size=1, max_size=12), data=st.data())
def test_any_slice_of_headers_is_read_as_it_is(
    lists: list[list[dict[str, object]] | None], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(lists) - 1))
    stop = data.draw(st.integers(start + 1, len(lists)))
    array = pa.array(lists, HEADERS).slice(start, stop - start)
    columns = RowColumns(stop - start, Column(), Column(), header_column_of(array))
    expected = [tuple((each["key"], each["value"]) for each in row or ()) for row in lists[start:stop]]
    assert [record.headers for record in read_back(columns)] == expected


def test_a_null_list_that_has_entries_beneath_is_empty() -> None:
    ends = pa.array([0, 1, 2], pa.int32())
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], HEADERS.value_type)
    array = pa.ListArray.from_arrays(ends, entries, type=HEADERS, mask=pa.array([True, False]))
    columns = RowColumns(2, Column(), Column(), header_column_of(array))
    assert [record.headers for record in read_back(columns)] == [(), (("b", b"2"),)]


def test_a_header_without_a_name_is_refused() -> None:
    with pytest.raises(BadRow, match="headers: a header without a key"):
        header_column_of(pa.array([[{"key": None, "value": b"1"}]], HEADERS))


def test_a_column_of_nulls_is_accepted() -> None:
    for array in (pa.nulls(2), pa.nulls(2, pa.binary()), pa.nulls(2, pa.string())):
        assert [record.value for record in read_back(RowColumns(2, Column(), column_of(array)))] == [
            None,
            None,
        ]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Rome"), pa.timestamp("us")]
)
def test_times_become_milliseconds_and_missing_ones_the_present(kind: pa.DataType) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_912, tzinfo=datetime.UTC)
    array = pa.array([moment, None], pa.timestamp("us", "UTC")).cast(kind)
    columns = RowColumns(2, Column(), Column(), None, times_of(array, NOW_MS))
    assert [record.timestamp for record in read_back(columns)] == [1_767_323_045_678, NOW_MS]


def test_rows_are_grouped_by_topic_and_a_null_topic_is_refused_by_row() -> None:
    topics, which = topics_of(pa.array(["b", "a", "b"]))
    assert (topics, which) == (["b", "a"], bytes([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]))
    with pytest.raises(BadRow, match=r"topic: null in row 1 of a batch of 2; .* the option topic"):
        topics_of(pa.array(["b", None]))


def int32s(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def test_a_rows_own_partition_wins_over_that_of_its_key() -> None:
    column = pa.array([9, 2, None, 0], pa.int32()).slice(1)
    assert partitions_of(column, int32s(1, 1, 1), b"", "t", 3) == int32s(2, 1, 0)
    assert partitions_of(column, int32s(1, 1), int32s(2, 1), "t", 3) == int32s(0, 1)
    assert partitions_of(pa.nulls(2, pa.int32()), int32s(1, 1), b"", "t", 3) == int32s(1, 1)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_the_topic_does_not_have_is_refused(wrong: int) -> None:
    with pytest.raises(BadRow, match=rf"partition={wrong}: expected 0 \.\. 2, the partitions of topic 't'"):
        partitions_of(pa.array([0, wrong, 1], pa.int32()), int32s(1, 1, 1), b"", "t", 3)


def test_small_batches_are_joined_and_large_ones_are_not() -> None:
    small = pa.record_batch({"value": [b"x" * 1000] * 100})
    large = pa.record_batch({"value": [b"x" * 1000] * 3000})
    found = list(gathered([small] * 50 + [large, small]))
    assert sum(batch.num_rows for batch in found) == 5000 + 3000 + 100
    assert all(batch.nbytes >= GATHERED_BYTES for batch in found[:-1])
    assert len(found) == 4
