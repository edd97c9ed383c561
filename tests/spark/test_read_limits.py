"""The size of a batch and its split into tasks, for any numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.read_limits import OffsetRange, cut, limited, split
from penstock.types import TopicPartition

PLACES = [TopicPartition("t", number) for number in range(6)]
positions = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=6)


@given(positions, st.integers(1, 20_000))
def test_a_limit_never_passes_the_end_and_never_goes_back(sizes: list[tuple[int, int]], most: int) -> None:
    start = {tp: first for tp, (first, _) in zip(PLACES, sizes, strict=False)}
    end = {tp: first + size for tp, (first, size) in zip(PLACES, sizes, strict=False)}
    taken = limited(start, end, most)
    assert taken.keys() == end.keys()
    assert all(start[tp] <= taken[tp] <= end[tp] for tp in end)
    # Each partition that has something moves, so that none starves; that may be one offset more for each.
    assert all(taken[tp] > start[tp] for tp in end if end[tp] > start[tp])
    assert sum(taken[tp] - start[tp] for tp in end) <= most + len(end)


def test_records_within_the_limit_are_all_taken() -> None:
    start, end = {PLACES[0]: 5, PLACES[1]: 0}, {PLACES[0]: 15, PLACES[1]: 90}
    assert limited(start, end, 100) == end


def test_a_limit_is_shared_in_proportion() -> None:
    start, end = {PLACES[0]: 0, PLACES[1]: 0}, {PLACES[0]: 100, PLACES[1]: 300}
    assert limited(start, end, 40) == {PLACES[0]: 10, PLACES[1]: 30}


@given(st.integers(0, 1000), st.integers(1, 5000), st.integers(0, 64))
def test_pieces_cover_a_range_exactly_and_none_is_empty(start: int, size: int, pieces: int) -> None:
    parts = cut(OffsetRange(topic_partition=PLACES[0], start=start, end=start + size), pieces)
    assert [parts[0].start, parts[-1].end] == [start, start + size]
    assert all(left.end == right.start for left, right in pairwise(parts))
    assert all(part.size > 0 for part in parts)
    assert len(parts) == max(1, min(pieces, size))


@given(positions, st.integers(1, 40), st.one_of(st.none(), st.integers(1, 5000)))
def test_a_split_reads_the_same_offsets(
    sizes: list[tuple[int, int]], least: int, most_records: int | None
) -> None:
    ranges = [
        OffsetRange(topic_partition=tp, start=first, end=first + size)
        for tp, (first, size) in zip(PLACES, sizes, strict=False)
    ]
    parts = split(ranges, min_partitions=least, max_records=most_records)
    for whole in ranges:
        mine = [part for part in parts if part.topic_partition == whole.topic_partition]
        assert sum(part.size for part in mine) == whole.size
    if most_records is not None:
        assert all(part.size <= most_records for part in parts)


def test_by_default_each_partition_is_one_task_and_empty_ones_none() -> None:
    ranges = [
        OffsetRange(topic_partition=PLACES[0], start=0, end=9),
        OffsetRange(topic_partition=PLACES[1], start=4, end=4),
    ]
    assert split(ranges, min_partitions=None, max_records=None) == ranges[:1]


def test_a_skewed_topic_is_split_where_its_records_are() -> None:
    ranges = [
        OffsetRange(topic_partition=PLACES[0], start=0, end=9000),
        OffsetRange(topic_partition=PLACES[1], start=0, end=1000),
    ]
    parts = split(ranges, min_partitions=10, max_records=None)
    assert [part.topic_partition.partition for part in parts] == [0] * 9 + [1]
