"""The state of 4,096 consecutive offsets."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from penstock.queue.state_records import DelayedRun
from penstock.queue.states import AVAILABLE, BYTE, CHUNK_SIZE, DEFERRED, DONE, LEASED, UNREAD, run_end
from penstock.queue.timers import DUE, ChunkTimers

_NO_OWNERS = bytes(4 * CHUNK_SIZE)
NO_LANE = 0xFFFF
"""The lane of an offset that was not read from the log: it was done before."""
_NO_LANES = b"\xff\xff" * CHUNK_SIZE
_IS_LEASED = bytes(value == LEASED for value in range(256))


class Chunk:
    """Holds data only: `OffsetTable` changes it and keeps the counters that depend on it."""

    __slots__ = (
        "base",
        "deliveries",
        "expired",
        "keys",
        "lanes",
        "listed",
        "number",
        "owners",
        "reached",
        "state",
        "stored_delays",
        "timers",
    )

    def __init__(self, number: int, *, done_below: int = 0) -> None:
        self.number: Final = number
        self.base: Final = number * CHUNK_SIZE
        self.state = bytearray(CHUNK_SIZE)
        if done_below > 0:
            self.state[:done_below] = BYTE[DONE] * done_below
        self.deliveries = bytearray(CHUNK_SIZE)
        self.owners: array[int] | None = None
        """The slot of the lease that each LEASED offset belongs to; undefined for other offsets. None while no offset
        is leased, because it is twice as large as all the rest."""
        self.timers: ChunkTimers | None = None
        self.expired: set[int] | None = None
        """Indexes that expired while a member held them: they are not delivered again, but the member may still finish
        them."""
        self.keys: dict[int, int] | None = None
        """The keys of undone offsets that have one, by index."""
        self.lanes: array[int] | None = None
        """In a queue with lanes: the lane of each offset that was read, NO_LANE of others."""
        self.listed = False
        """Whether its number is in the heap of chunks that may have available offsets."""
        self.reached = True
        """False: it was restored, and the log has not been read up to it yet."""
        self.stored_delays: Sequence[DelayedRun] = ()
        """Retry delays that an earlier leader stored. They apply to offsets that have not been read from the log
        again."""

    def set_lanes(self, start: int, lanes: "array[int]") -> None:
        if self.lanes is None:
            self.lanes = array("H", _NO_LANES)
        self.lanes[start : start + len(lanes)] = lanes

    def lease(self, start: int, stop: int, slot: int) -> None:
        owners = self.open_owners()
        self.state[start:stop] = BYTE[LEASED] * (stop - start)
        owners[start:stop] = array("I", (slot,)) * (stop - start)

    def open_owners(self) -> "array[int]":
        """For a caller that is about to lease offsets."""
        if self.owners is None:
            self.owners = array("I", _NO_OWNERS)
        return self.owners

    def finish(self, start: int, stop: int) -> None:
        """Offsets are done. Their deliveries do not matter any more, and are stored as 0."""
        if stop == start + 1:
            self.state[start] = DONE
            self.deliveries[start] = 0
            return
        self.state[start:stop] = BYTE[DONE] * (stop - start)
        self.deliveries[start:stop] = bytes(stop - start)

    def lease_end(self, start: int, stop: int) -> int:
        """The end of the run of offsets of one lease that starts at `start`, which is leased."""
        stop = run_end(self.state, start, stop)
        owners = self.owners
        assert owners is not None
        slot = owners[start]
        if start + 1 == stop or owners[start + 1] != slot:
            return start + 1
        if owners[start:stop] == array("I", (slot,)) * (stop - start):
            return stop
        behind = islice(owners, start, stop)
        return start + next(count for count, owner in enumerate(behind) if owner != slot)

    def first_available(self, start: int = 0) -> int:
        return self.state.find(AVAILABLE, start)

    def has_leases(self) -> bool:
        return self.state.find(LEASED) >= 0

    def stored_deliveries(self) -> bytearray:
        """With lanes, without the deliveries that are under way: most of these messages are not begun."""
        if self.lanes is None or not self.has_leases():
            return self.deliveries
        # One subtraction of long numbers: no byte borrows, because a leased message was delivered at least once.
        under_way = int.from_bytes(self.state.translate(_IS_LEASED), "big")
        return bytearray((int.from_bytes(self.deliveries, "big") - under_way).to_bytes(CHUNK_SIZE, "big"))

    def delayed(self) -> list[DelayedRun]:
        """Offsets that were delivered and wait for their next try, including those of `stored_delays` that have not
        been read again."""
        if not any(self.deliveries):
            return []
        found = [
            (start + index, due_ms)
            for start, length, due_ms in self.stored_delays
            for index in range(length)
            if self.state[start + index] == UNREAD
        ]
        for at_ms, kind, index in self.timers.pending() if self.timers is not None else ():
            if kind == DUE and self.deliveries[index] and self.state[index] == DEFERRED:
                found.append((index, at_ms))
        return list(_delayed_runs(sorted(found)))


def _delayed_runs(found: list[tuple[int, int]]) -> Iterator[DelayedRun]:
    """Adjacent offsets with the same due time become one run."""
    run: DelayedRun | None = None
    for index, due_ms in found:
        if run is not None and run.due_ms == due_ms and run.start + run.length == index:
            run = run._replace(length=run.length + 1)
            continue
        if run is not None:
            yield run
        run = DelayedRun(index, 1, due_ms)
    if run is not None:
        yield run
