"""4,096 consecutive offsets and what is known of each."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from penstock.queue.agenda import DUE, Agenda
from penstock.queue.states import AVAILABLE, BYTE, CHUNK_SIZE, DEFERRED, DONE, LEASED, UNREAD, run_end
from penstock.queue.storage import RestingRun

_NO_OWNERS = bytes(4 * CHUNK_SIZE)


class Chunk:
    """A passive thing: `Board` changes it and keeps the counters that follow from it."""

    __slots__ = (
        "agenda",
        "base",
        "deliveries",
        "expired",
        "keys",
        "listed",
        "number",
        "owners",
        "reached",
        "rested",
        "state",
    )

    def __init__(self, number: int, *, done_below: int = 0) -> None:
        self.number: Final = number
        self.base: Final = number * CHUNK_SIZE
        self.state = bytearray(CHUNK_SIZE)
        if done_below > 0:
            self.state[:done_below] = BYTE[DONE] * done_below
        self.deliveries = bytearray(CHUNK_SIZE)
        self.owners: array[int] | None = None
        """The slot of the lease that each LEASED offset belongs to; means nothing elsewhere. Not there while there is
        none: it is twice as large as all the rest."""
        self.agenda: Agenda | None = None
        self.expired: set[int] | None = None
        """Indexes that expired in the hands of a member: they do not come back, but the member may still finish."""
        self.keys: dict[int, int] | None = None
        """Index to key of what is undone and has one."""
        self.listed = False
        """Whether its number is in the list of chunks that may have something available."""
        self.reached = True
        """False: it was restored, and the log was not read so far yet."""
        self.rested: Sequence[RestingRun] = ()
        """What rested under an earlier leader. Of use where the log was not read again so far."""

    def lease(self, start: int, stop: int, slot: int) -> None:
        if self.owners is None:
            self.owners = array("I", _NO_OWNERS)
        self.state[start:stop] = BYTE[LEASED] * (stop - start)
        self.owners[start:stop] = array("I", (slot,)) * (stop - start)

    def lease_end(self, start: int, stop: int) -> int:
        """The end of the run of offsets of one lease that begins at `start`, which is leased."""
        stop = run_end(self.state, start, stop)
        owners = self.owners
        assert owners is not None
        slot = owners[start]
        if start + 1 == stop or owners[start + 1] != slot:
            return start + 1
        if owners[start:stop] == array("I", (slot,)) * (stop - start):
            return stop
        behind = islice(owners, start, stop)
        return start + next(place for place, owner in enumerate(behind) if owner != slot)

    def first_available(self, start: int = 0) -> int:
        return self.state.find(AVAILABLE, start)

    def has_leases(self) -> bool:
        return self.state.find(LEASED) >= 0

    def resting(self) -> list[RestingRun]:
        """What was delivered before and waits for its next try; also what waits by `rested`, and was not read again."""
        if not any(self.deliveries):
            return []
        found = [
            (start + place, due_ms)
            for start, length, due_ms in self.rested
            for place in range(length)
            if self.state[start + place] == UNREAD
        ]
        for at_ms, kind, index in self.agenda.coming() if self.agenda is not None else ():
            if kind == DUE and self.deliveries[index] and self.state[index] == DEFERRED:
                found.append((index, at_ms))
        return list(_resting_runs(sorted(found)))


def _resting_runs(found: list[tuple[int, int]]) -> Iterator[RestingRun]:
    """Neighbours that are due together, as one."""
    run: RestingRun | None = None
    for index, due_ms in found:
        if run is not None and run.due_ms == due_ms and run.start + run.length == index:
            run = run._replace(length=run.length + 1)
            continue
        if run is not None:
            yield run
        run = RestingRun(index, 1, due_ms)
    if run is not None:
        yield run
