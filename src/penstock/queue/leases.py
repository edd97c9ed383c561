"""Which member holds which offsets, and until when.

A lease holds the offsets that one member acquired with one request: ranges with one deadline. A chunk stores, for every
leased offset, the *slot* of its lease: a small number that is reused when the lease holds nothing any more. So a lease
need not be told which of its offsets were settled, only how many: its ranges say where to look, and the owners in the
chunks say which offsets there it still holds.
"""

from collections.abc import Iterator

from penstock.queue.chunk import Chunk
from penstock.queue.deadlines import Deadlines
from penstock.queue.states import LEASED, runs


class Lease:
    """The offsets that a member acquired with one request."""

    __slots__ = ("held", "member", "ranges", "slot", "until_ms")

    def __init__(self, slot: int, member: str, until_ms: int | None) -> None:
        self.slot = slot
        self.member = member
        self.until_ms = until_ms
        """None: it does not expire."""
        self.held = 0
        """How many offsets it holds now."""
        self.ranges: list[tuple[int, int]] = []
        """(first, stop) of everything that it ever held, perhaps with offsets of others in between."""


class Leases:
    """All leases of a partition, by slot, by member and by deadline."""

    def __init__(self) -> None:
        self._slots: list[Lease | None] = []
        self._free: list[int] = []
        self._members: dict[str, dict[int, Lease]] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._slots) - len(self._free)

    @property
    def members(self) -> int:
        return len(self._members)

    @property
    def next_ms(self) -> int | None:
        return self._deadlines.next_ms

    def at(self, slot: int) -> Lease:
        lease = self._slots[slot]
        assert lease is not None
        return lease

    def of(self, member: str) -> list[Lease]:
        return list(self._members.get(member, {}).values())

    def holds_any(self, member: str) -> bool:
        return member in self._members

    def held_by(self, member: str) -> int:
        """How many offsets a member holds."""
        return sum(lease.held for lease in self._members.get(member, {}).values())

    def open(self, member: str, until_ms: int | None) -> Lease:
        """A lease; the caller must give it offsets at once. Without `until_ms` it does not expire."""
        if not self._free:
            self._free.append(len(self._slots))
            self._slots.append(None)
        slot = self._free.pop()
        lease = self._slots[slot] = Lease(slot, member, until_ms)
        self._members.setdefault(member, {})[slot] = lease
        if until_ms is not None:
            self._deadlines.set(slot, until_ms)
        return lease

    def give(self, lease: Lease, chunk: Chunk, start: int, stop: int) -> None:
        chunk.lease(start, stop, lease.slot)
        lease.held += stop - start
        first = chunk.base + start
        if lease.ranges and lease.ranges[-1][1] == first:
            first = lease.ranges.pop()[0]
        lease.ranges.append((first, chunk.base + stop))

    def give_all(self, lease: Lease, first: int, last: int, count: int) -> None:
        """The caller has leased so many offsets between these two: chunks say which."""
        lease.held += count
        lease.ranges.append((first, last + 1))

    def renew(self, lease: Lease, until_ms: int) -> None:
        lease.until_ms = until_ms
        self._deadlines.set(lease.slot, until_ms)

    def take(self, chunk: Chunk, start: int, stop: int) -> None:
        """Ends the lease of offsets, all of which are leased."""
        assert chunk.owners is not None
        if stop == start + 1:
            lease = self.at(chunk.owners[start])
            lease.held -= 1
            if not lease.held:
                self.close(lease)
            return
        while start < stop:
            end = chunk.lease_end(start, stop)
            lease = self.at(chunk.owners[start])
            lease.held -= end - start
            if not lease.held:
                self.close(lease)
            start = end

    def pop_due(self, now_ms: int) -> Lease | None:
        """A lease that has expired. It exists until all its offsets are taken from it."""
        slot = self._deadlines.pop_due(now_ms)
        return None if slot is None else self.at(slot)

    def close(self, lease: Lease) -> None:
        """It holds nothing (any more)."""
        self._deadlines.drop(lease.slot)
        self._slots[lease.slot] = None
        self._free.append(lease.slot)
        mine = self._members[lease.member]
        del mine[lease.slot]
        if not mine:
            del self._members[lease.member]


def still_held(lease: Lease, chunk: Chunk, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a range in a chunk that this lease holds now."""
    for leased_start, leased_stop, state in runs(chunk.state, start, stop):
        while state == LEASED and leased_start < leased_stop:
            end = chunk.lease_end(leased_start, leased_stop)
            if chunk.owners is not None and chunk.owners[leased_start] == lease.slot:
                yield leased_start, end
            leased_start = end
