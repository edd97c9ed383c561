"""Filters on offset, partition, topic and timestamp that let a batch read skip records.

Spark does not evaluate a filter again that is fully applied here. All others go back to Spark: filters on other
columns, negated ones, and values of a type that does not compare.

Offsets cut the ranges. A lower bound of the timestamp skips whole batches by their header and moves the start by the
broker's time index; an upper one only drops rows, since a log is in the order of arrival and not of its timestamps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.types import TopicPartition

MAX: Final = 2**63 - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """The records that remain to be read. Ends are exclusive; times are microseconds since 1970."""

    offset_from: int = 0
    offset_to: int = MAX
    time_from_us: int = -MAX
    time_to_us: int = MAX
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None

    def allows(self, tp: TopicPartition) -> bool:
        return (self.partitions is None or tp.partition in self.partitions) and (
            self.topics is None or tp.topic in self.topics
        )

    @property
    def by_time(self) -> bool:
        return self.time_from_us > -MAX or self.time_to_us < MAX

    @property
    def from_ms(self) -> int | None:
        """The first millisecond that may be wanted; None where records without a time (-1) may be too."""
        return -(-self.time_from_us // 1000) if self.time_from_us > 0 else None


EVERYTHING: Final = Pruning()


def prune(filters: Iterable[Filter]) -> tuple[Pruning, list[Filter]]:
    """The records to read, and the filters that Spark must still evaluate."""
    pruning, left = EVERYTHING, []
    for each in filters:
        served = _serve(pruning, each)
        if served is None:
            left.append(each)
        else:
            pruning = served
    return pruning, left


def _serve(pruning: Pruning, each: Filter) -> Pruning | None:
    path: Sequence[str] = getattr(each, "attribute", ())
    value = getattr(each, "value", None)
    if len(path) != 1 or value is None:
        return None
    name = path[0]
    if name in ("partition", "topic"):
        return _among(pruning, name, each)
    if name == "offset" and _is_int(value):
        return _between(pruning, "offset_from", "offset_to", each, value)
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return _between(
            pruning, "time_from_us", "time_to_us", each, (value - EPOCH) // timedelta(microseconds=1)
        )
    return None


def _between(pruning: Pruning, low: str, high: str, each: Filter, value: int) -> Pruning | None:
    # By type: the least and the first value too large that the filter lets through.
    bounds: dict[type[Filter], tuple[int | None, int | None]] = {
        EqualTo: (value, value + 1),
        GreaterThan: (value + 1, None),
        GreaterThanOrEqual: (value, None),
        LessThan: (None, value),
        LessThanOrEqual: (None, value + 1),
    }
    if type(each) not in bounds:
        return None
    least, past = bounds[type(each)]
    changes: dict[str, Any] = {}
    if least is not None:
        changes[low] = max(getattr(pruning, low), least)
    if past is not None:
        changes[high] = min(getattr(pruning, high), past)
    return replace(pruning, **changes)


def _among(pruning: Pruning, name: str, each: Filter) -> Pruning | None:
    fits: Callable[[object], bool] = _is_int if name == "partition" else lambda value: isinstance(value, str)
    if isinstance(each, EqualTo) and fits(each.value):
        wanted = frozenset([each.value])
    elif isinstance(each, In) and all(map(fits, each.value)):
        wanted = frozenset(each.value)
    else:
        return None
    field = "partitions" if name == "partition" else "topics"
    known = getattr(pruning, field)
    changes: dict[str, Any] = {field: wanted if known is None else known & wanted}
    return replace(pruning, **changes)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
