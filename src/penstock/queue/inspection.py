"""Views of a queue partition for people and tools."""

from collections.abc import Iterator

from penstock.queue.chunk import Chunk
from penstock.queue.leases import Leases
from penstock.queue.offset_table import OffsetTable
from penstock.queue.states import DONE, LEASED, State, run_end, runs
from penstock.queue.values import Run

MAX_PEEKED_RUNS = 1000
"""The most runs in one response of `peek`: a table that a person can still scroll."""


def peek(table: OffsetTable, leases: Leases, first: int, last: int, max_runs: int) -> list[Run]:
    """The state of a range that was read, in runs; done offsets are left out."""
    seen: list[Run] = []
    first, last = max(first, table.start_offset), min(last, table.next_offset - 1)
    for chunk, start, stop in table.pieces(first, last + 1) if first <= last else ():
        for run in _runs(leases, chunk, start, stop):
            if len(seen) == max_runs:
                return seen
            seen.append(run)
    return seen


def _runs(leases: Leases, chunk: Chunk, start: int, stop: int) -> Iterator[Run]:
    for index, end, state in runs(chunk.state, start, stop):
        while state != DONE and index < end:
            behind = run_end(chunk.deliveries, index, end)
            lease = None
            if state == LEASED and chunk.owners is not None:
                behind = min(behind, chunk.lease_end(index, end))
                lease = leases.at(chunk.owners[index])
            yield Run(
                chunk.base + index,
                chunk.base + behind - 1,
                State(state),
                chunk.deliveries[index],
                lease.member.lstrip("\0") if lease is not None else None,
                lease.until_ms if lease is not None else None,
            )
            index = behind
