"""The states of an offset: one byte each, so that a range is a slice and C code does the work.

    state      meaning                                               next states
    UNREAD     the log has not been read up to it                    AVAILABLE, WAITING, DEFERRED, DONE, DYING
    AVAILABLE  the next request may lease it                         LEASED, DONE
    LEASED     a member holds it until its lease ends                AVAILABLE, DEFERRED, DYING, REJECTED, DONE
    DEFERRED   not due yet: deliver-at, or a retry with delay        AVAILABLE, WAITING, DONE
    WAITING    due, but an earlier message of its key is not done    AVAILABLE, DONE
    DYING      to the dead letters: delivered too often              DONE
    REJECTED   to the dead letters: a consumer rejected it           DONE
    DONE       never delivered again                                 none

Retention may make an offset DONE in any state. UNREAD becomes DYING, and REJECTED takes the place of UNREAD, only when
a partition is restored: the stored state says so before the log is read.
"""

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import cache

CHUNK_SIZE = 4096
"""Offsets in one chunk, the unit of reading, storing and dropping. A scan of as many bytes takes less than a
microsecond, a bitmap of them is 512 bytes, and a million offsets are 245 records in the state topic."""


class State(IntEnum):
    """The state of an offset, for callers outside of this package."""

    UNREAD = 0
    AVAILABLE = 1
    LEASED = 2
    DEFERRED = 3
    WAITING = 4
    DYING = 5
    REJECTED = 6
    DONE = 7


# As plain integers and bytes: enum members cost several times as much in code that runs for every range.
UNREAD, AVAILABLE, LEASED, DEFERRED, WAITING, DYING, REJECTED, DONE = (int(state) for state in State)
BYTE = tuple(bytes((value,)) for value in range(256))
ALL_DONE = BYTE[DONE] * CHUNK_SIZE


@cache
def _run_of(value: int) -> re.Pattern[bytes]:
    return re.compile(re.escape(BYTE[value]) + b"+")


def run_end(cells: bytearray, start: int, stop: int) -> int:
    """The end of the run of equal bytes that starts at `start`, at most `stop`."""
    value = cells[start]
    # A single byte, or the whole range: by far the most frequent cases, and the cheapest to check.
    if start + 1 == stop or cells[start + 1] != value:
        return start + 1
    if cells[start:stop] == BYTE[value] * (stop - start):
        return stop
    match = _run_of(value).match(cells, start, stop)
    assert match is not None  # it starts with the byte at `start`
    return match.end()


def runs(cells: bytearray, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The runs of equal bytes from `start` to `stop`, as (start, stop, value). The caller may change the bytes of the
    run that it was given, and no bytes behind it."""
    while start < stop:
        value = cells[start]
        end = run_end(cells, start, stop)
        yield start, end, value
        start = end
