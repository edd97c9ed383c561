"""What may become of an offset: one byte each, so that a range is a slice and C does the work.

    state      means                                                 becomes
    UNREAD     the log was not read so far                           AVAILABLE, WAITING, DEFERRED, DONE, DYING
    AVAILABLE  to be had by the next who asks                        LEASED, DONE
    LEASED     a member has it until its lease ends                  AVAILABLE, DEFERRED, DYING, REJECTED, DONE
    DEFERRED   not due yet: deliver-at, or a retry with delay        AVAILABLE, WAITING, DONE
    WAITING    due, but a message of its key before it is not done   AVAILABLE, DONE
    DYING      to the dead letters: was delivered too often          DONE
    REJECTED   to the dead letters: its consumer would not have it   DONE
    DONE       nobody gets it any more                               nothing

Whatever is in any state, retention may make it DONE. UNREAD becomes DYING, and REJECTED exists in UNREAD's place, only
when a partition is restored: both are known from what was stored, before the log is read.
"""

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import cache

CHUNK_SIZE = 4096
"""Offsets in one chunk: what is read, stored and forgotten together. A scan of as many bytes takes less than a
microsecond, a bitmap of them is 512 bytes, and a million offsets are 245 records in the state topic."""


class State(IntEnum):
    """One byte of a chunk's states, for those who look from outside."""

    UNREAD = 0
    AVAILABLE = 1
    LEASED = 2
    DEFERRED = 3
    WAITING = 4
    DYING = 5
    REJECTED = 6
    DONE = 7


# As plain integers and bytes: an enum's members cost several times as much in the paths that run for every range.
UNREAD, AVAILABLE, LEASED, DEFERRED, WAITING, DYING, REJECTED, DONE = (int(state) for state in State)
BYTE = tuple(bytes((value,)) for value in range(256))
ALL_DONE = BYTE[DONE] * CHUNK_SIZE


@cache
def _run_of(value: int) -> re.Pattern[bytes]:
    return re.compile(re.escape(BYTE[value]) + b"+")


def run_end(cells: bytearray, start: int, stop: int) -> int:
    """The end of the run of equal bytes that begins at `start`, at most `stop`."""
    value = cells[start]
    # A single one, or all of it: by far the most frequent cases, and the cheapest to find out.
    if start + 1 == stop or cells[start + 1] != value:
        return start + 1
    if cells[start:stop] == BYTE[value] * (stop - start):
        return stop
    match = _run_of(value).match(cells, start, stop)
    assert match is not None  # it begins with the byte that was looked at
    return match.end()


def runs(cells: bytearray, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The runs of equal bytes from `start` to `stop`, as (start, stop, value). The bytes of a run may be changed while
    it is looked at, those behind it may not."""
    while start < stop:
        value = cells[start]
        end = run_end(cells, start, stop)
        yield start, end, value
        start = end
