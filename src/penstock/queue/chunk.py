"""4,096 consecutive offsets and what is known of each."""

from array import array
from itertools import islice
from typing import Final

from penstock.queue.agenda import Agenda
from penstock.queue.states import AVAILABLE, BYTE, CHUNK_SIZE, DEFERRED, DONE, LEASED, run_end

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

    def has_resting(self) -> bool:
        """Whether something is deferred that was delivered before."""
        if self.agenda is None or not any(self.deliveries):
            return False
        coming = self.agenda.coming()
        return any(self.deliveries[index] and self.state[index] == DEFERRED for _, _, index in coming)
