"""How many offsets one batch reads, and how they are split into tasks. Pure arithmetic, as in the Kafka connector."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from penstock.types import TopicPartition

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetRange:
    """The offsets from `start` up to but not with `end` of one partition."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def limited(start: Positions, end: Positions, most: int) -> dict[TopicPartition, int]:
    """`end`, reduced so that about `most` offsets are read: from each partition in proportion to its backlog.

    A share below one offset counts as one, so that a small partition makes progress next to a huge one.
    """
    waiting = {tp: max(0, last - start[tp]) for tp, last in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    out = {}
    for tp, last in end.items():
        share = most * waiting[tp] / total
        taken = math.ceil(share) if share < 1 else math.floor(share)
        out[tp] = min(last, start[tp] + taken)
    return out


def split(
    ranges: list[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Splits large ranges so that there are about `min_partitions` tasks, none with more than `max_records`."""
    ranges = [each for each in ranges if each.size > 0]
    if max_records is not None:
        ranges = [part for each in ranges for part in cut(each, -(-each.size // max_records))]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    total = sum(each.size for each in ranges)
    return [part for each in ranges for part in cut(each, round(each.size / total * min_partitions))]


def cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Equal pieces in order, none of them empty."""
    pieces = max(1, min(pieces, whole.size))
    edges = [whole.start + whole.size * number // pieces for number in range(pieces + 1)]
    return [
        OffsetRange(topic_partition=whole.topic_partition, start=start, end=end)
        for start, end in pairwise(edges)
    ]
