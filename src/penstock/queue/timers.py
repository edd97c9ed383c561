"""The timers of one chunk: when its offsets become due or expire.

One sorted array of 64-bit numbers per chunk, eight bytes an event, which is dropped with its chunk:

    time in ms (50 bits) | kind (1 bit) | index in the chunk (12 bits)

A million deferred messages are 8 MB in 245 arrays. One array for the whole partition, or buckets of time, would have to
be searched for messages that are done early; this one is dropped with its chunk. Times are exact to the millisecond, so
no event is early, and none is late by more than its caller's clock.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.queue.states import CHUNK_SIZE

EXPIRES = 0
DUE = 1
MAX_TIME_MS = (1 << 50) - 1
"""Some 35,000 years. A later time is lowered to this one."""
_UNIT = 2 * CHUNK_SIZE

Range = tuple[int, int]
"""Indexes of a chunk: the first, and the last plus one."""


def event(at_ms: int, kind: int, index: int) -> int:
    return min(max(at_ms, 0), MAX_TIME_MS) * _UNIT + kind * CHUNK_SIZE + index


class ChunkTimers:
    """The events of one chunk, soonest first."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events = array("q")

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Sequence[int]) -> None:
        """Adds events in any order."""
        mine = self._events
        if len(events) == 1:
            insort(mine, events[0])
            return
        in_order = not mine or mine[-1] <= events[0]
        mine.extend(events)
        if not in_order or any(a > b for a, b in pairwise(events)):
            self._events = array("q", sorted(mine))

    @property
    def next_ms(self) -> int | None:
        return self._events[0] // _UNIT if self._events else None

    def pending(self) -> Iterator[tuple[int, int, int]]:
        """All events as (time in ms, kind, index), soonest first."""
        for each in self._events:
            at_ms, rest = divmod(each, _UNIT)
            yield (at_ms, *divmod(rest, CHUNK_SIZE))

    def take_due(self, now_ms: int) -> tuple[list[Range], list[Range]]:
        """Removes and returns the ranges that have expired, and those that are due. Their order does not matter: a
        message that is both has expired."""
        end = bisect_left(self._events, (now_ms + 1) * _UNIT)
        taken = sorted(each % _UNIT for each in self._events[:end])
        del self._events[:end]
        border = bisect_left(taken, CHUNK_SIZE)
        return _ranges(taken[:border]), _ranges([each - CHUNK_SIZE for each in taken[border:]])


def _ranges(indexes: list[int]) -> list[Range]:
    """Adjacent indexes become one range: a million messages that are due at midnight are a few hundred ranges."""
    ranges: list[Range] = []
    start = stop = -1
    for index in indexes:
        if index != stop:
            if start >= 0:
                ranges.append((start, stop))
            start = index
        stop = index + 1
    if start >= 0:
        ranges.append((start, stop))
    return ranges
