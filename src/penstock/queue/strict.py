"""Strict order: how far a queue may be handed out when nothing is to overtake anything (invariant 9 in `partition.py`).

Everything from the start offset on is looked at in its order, up to the first that stands in the way:

    DONE                        is passed
    LEASED, first delivery      is passed if it is in the same hands: whoever has it gets more behind it, in order
    LEASED, any later one       stands in the way until it is done: it failed before, and may again
    AVAILABLE, never delivered  may be had, and so may what follows
    AVAILABLE, came back        may be had, and nothing behind it
    whatever else               not due, resting, waiting for its key or dying: stands in the way

Runs of offsets are compared as bytes, so a look costs a few microseconds for each chunk up to that place; and what is
leased or available to one consumer is seldom more than a few chunks.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.queue.board import Board
from penstock.queue.chunk import Chunk
from penstock.queue.leases import Leases
from penstock.queue.states import AVAILABLE, CHUNK_SIZE, DONE, LEASED, run_end, runs


class Turn(NamedTuple):
    """How many offsets are available before `end`, at which handing out must stop."""

    available: int
    end: int


def find_turn(board: Board, leases: Leases, member: str | None = None) -> Turn:
    """For this member; without one, for whoever has all that is leased."""
    count = 0
    for chunk, start, stop, state in _undone(board):
        if state == AVAILABLE:
            fresh = start if chunk.deliveries[start] else run_end(chunk.deliveries, start, stop)
            count += fresh - start
            if fresh < stop:
                return Turn(count + 1, chunk.base + fresh + 1)
        elif state != LEASED or not _is_passed(leases, chunk, start, stop, member):
            return Turn(count, chunk.base + start)
    return Turn(count, board.next_offset)


def _undone(board: Board) -> Iterator[tuple[Chunk, int, int, int]]:
    """Runs of one state that were read and are not done, lowest first. Chunks are looked up one by one: mostly the
    first few decide."""
    for number in range(board.start_offset // CHUNK_SIZE, -(-board.next_offset // CHUNK_SIZE)):
        chunk = board.chunks.get(number)
        if chunk is not None:
            for start, stop, state in runs(chunk.state, 0, min(CHUNK_SIZE, board.next_offset - chunk.base)):
                if state != DONE:
                    yield chunk, start, stop, state


def _is_passed(leases: Leases, chunk: Chunk, start: int, stop: int, member: str | None) -> bool:
    """Whether all of a leased run is with this member for the first time. If only a part of it is, nothing is lost by
    stopping before: there is nothing available in it."""
    if chunk.deliveries[start] != 1 or run_end(chunk.deliveries, start, stop) < stop:
        return False
    assert chunk.owners is not None
    while member is not None and start < stop:
        if leases.at(chunk.owners[start]).member != member:
            return False
        start = chunk.lease_end(start, stop)
    return True
