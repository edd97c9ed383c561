"""Which records pushed filters make a batch read skip, and which filters are left to Spark."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.spark.filters import Pruning, prune
from penstock.types import TopicPartition

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("offset",), 7)], Pruning(offset_from=7, offset_to=8)),
        ([GreaterThan(("offset",), 7), LessThan(("offset",), 9)], Pruning(offset_from=8, offset_to=9)),
        ([GreaterThanOrEqual(("offset",), 7)], Pruning(offset_from=7)),
        ([LessThanOrEqual(("offset",), 7), LessThan(("offset",), 100)], Pruning(offset_to=8)),
        ([EqualTo(("partition",), 2)], Pruning(partitions=frozenset([2]))),
        ([In(("partition",), (1, 2)), In(("partition",), (2, 3))], Pruning(partitions=frozenset([2]))),
        ([EqualTo(("topic",), "orders")], Pruning(topics=frozenset(["orders"]))),
        ([GreaterThanOrEqual(("timestamp",), NOON)], Pruning(time_from_us=NOON_US)),
        ([LessThan(("timestamp",), NOON)], Pruning(time_to_us=NOON_US)),
    ],
)
def test_these_filters_reduce_the_read(filters: list[Filter], expected: Pruning) -> None:
    assert prune(filters) == (expected, [])


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("key",), b"x"),
        Not(EqualTo(("offset",), 7)),
        IsNotNull(("offset",)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("value", "offset"), 7),
        EqualTo(("offset",), 7.5),
        EqualTo(("timestamp",), NOON.replace(tzinfo=None)),
        EqualTo(("offset",), None),
    ],
)
def test_these_filters_are_left_to_spark(each: Any) -> None:
    assert prune([each]) == (Pruning(), [each])


def test_a_time_within_a_millisecond_starts_at_the_next_one() -> None:
    assert Pruning(time_from_us=1_500).from_ms == 2
    assert Pruning(time_from_us=2_000).from_ms == 2
    assert Pruning(time_from_us=-5).from_ms is None
    assert Pruning().from_ms is None


def test_partitions_and_topics_are_both_asked() -> None:
    pruning = Pruning(partitions=frozenset([1]), topics=frozenset(["a"]))
    assert pruning.allows(TopicPartition("a", 1))
    assert not pruning.allows(TopicPartition("a", 0))
    assert not pruning.allows(TopicPartition("b", 1))
