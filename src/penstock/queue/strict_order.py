"""Strict order: how far a queue may deliver when no message may overtake another (invariant 9 in `partition.py`).

All offsets from the start offset on are checked in order, up to the first that blocks:

    DONE                        passes
    LEASED, first delivery      passes if the same member holds it: this member gets the messages behind it, in order
    LEASED, any later one       blocks until it is done: it failed before, and may fail again
    LEASED, to a transaction    blocks until the transaction ends: it may be aborted
    AVAILABLE, never delivered  may be delivered, and so may the messages behind it
    AVAILABLE, came back        may be delivered, and nothing behind it
    any other state             not due, delayed, waiting for its key or dying: blocks

Runs of offsets are compared as bytes, so the check takes a few microseconds for each chunk up to the blocking offset;
the offsets that are leased or available to one consumer are seldom in more than a few chunks.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.queue.chunk import Chunk
from penstock.queue.leases import Leases
from penstock.queue.offset_table import OffsetTable
from penstock.queue.states import AVAILABLE, CHUNK_SIZE, DONE, LEASED, run_end, runs


class Deliverable(NamedTuple):
    """How many offsets are available before `end`, where delivery must stop."""

    available: int
    end: int


def find_deliverable(table: OffsetTable, leases: Leases, member: str | None = None) -> Deliverable:
    """The offsets that this member may get; without a member, those that one with all the leases may get."""
    count = 0
    for chunk, start, stop, state in _undone(table):
        if state == AVAILABLE:
            fresh = start if chunk.deliveries[start] else run_end(chunk.deliveries, start, stop)
            count += fresh - start
            if fresh < stop:
                return Deliverable(count + 1, chunk.base + fresh + 1)
        elif state != LEASED or not _is_passed(leases, chunk, start, stop, member):
            return Deliverable(count, chunk.base + start)
    return Deliverable(count, table.next_offset)


def _undone(table: OffsetTable) -> Iterator[tuple[Chunk, int, int, int]]:
    """Runs of one state that were read and are not done, lowest first. Chunks are looked up one by one, because mostly
    the first few decide."""
    for number in range(table.start_offset // CHUNK_SIZE, -(-table.next_offset // CHUNK_SIZE)):
        chunk = table.chunks.get(number)
        if chunk is not None:
            for start, stop, state in runs(chunk.state, 0, min(CHUNK_SIZE, table.next_offset - chunk.base)):
                if state != DONE:
                    yield chunk, start, stop, state


def _is_passed(leases: Leases, chunk: Chunk, start: int, stop: int, member: str | None) -> bool:
    """Whether this member holds all of a leased run in its first delivery. If it holds only a part, stopping before the
    run loses nothing: no offset in it is available."""
    if chunk.deliveries[start] != 1 or run_end(chunk.deliveries, start, stop) < stop:
        return False
    assert chunk.owners is not None
    while start < stop:
        lease = leases.at(chunk.owners[start])
        if lease.until_ms is None or (member is not None and lease.member != member):
            return False
        start = chunk.lease_end(start, stop)
    return True
