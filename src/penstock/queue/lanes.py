"""Lanes: each message belongs to one of a few thousand lanes, and only a lane's owner gets its messages (invariant 10
in `partition.py`).

The caller decides which lane a message is in (`ScanResult.lanes`) and who owns which lane (`LaneTable`). An owner is a
name; a member of the queue receives for one owner (`QueuePartition.attach`).

The available offsets of a lane are a heap. For each owner there is a heap of *fronts*, the lowest offset of each of its
lanes, so the next offset of an owner costs a few comparisons, however many lanes and owners there are. Entries are
never searched and removed: an offset that was delivered or finished some other way is skipped when it comes to the
front. So both heaps may hold too much, and never too little.

An available message costs about 50 bytes here.
"""

import heapq
from collections.abc import Collection, Sequence

import msgspec

STALE_FACTOR = 2
"""The caller adds all available offsets again when there are this many times as many entries."""
STALE_MIN = 1024


class LaneTable(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns which lane."""

    epoch: int = 0
    """The number of this table: it grows with every change."""
    owners: Sequence[str | None] = ()
    """By lane: only this owner's leases are valid. None: the lane has no owner."""
    epochs: Sequence[int] = ()
    """By lane: the epoch in which its owner became its owner."""
    revoked: Collection[int] = frozenset()
    """Lanes whose owner finishes the messages that it holds, and gets no others."""
    present: Collection[str] = frozenset()
    """Owners that are at work. Such an owner gave up the lanes that it lost, and had begun none of their messages."""

    def owner(self, lane: int) -> str | None:
        return self.owners[lane] if lane < len(self.owners) else None

    def epoch_of(self, lane: int) -> int:
        return self.epochs[lane] if lane < len(self.epochs) else 0


class Lanes:
    """The available offsets by lane, and the lanes by owner."""

    def __init__(self) -> None:
        self.table = LaneTable()
        self.owner_count = 1
        """How many owners have lanes, at least 1."""
        self._offsets: dict[int, list[int]] = {}
        """By lane: a heap of offsets. A lane without offsets has no entry."""
        self._fronts: dict[str, list[tuple[int, int]]] = {}
        """By owner: a heap of (lowest offset, lane) of each lane from which it may get messages."""
        self._entries = 0
        self._owner_of: dict[str, str] = {}
        """By member: the owner that it receives for."""
        self._members_of: dict[str, dict[str, None]] = {}
        """By owner."""

    # Members

    def attach(self, member: str, owner: str) -> None:
        if self._owner_of.get(member) != owner:
            self.detach(member)
            self._owner_of[member] = owner
            self._members_of.setdefault(owner, {})[member] = None

    def detach(self, member: str) -> None:
        owner = self._owner_of.pop(member, None)
        if owner is not None:
            members = self._members_of[owner]
            del members[member]
            if not members:
                del self._members_of[owner]

    def owner_of(self, member: str) -> str | None:
        return self._owner_of.get(member)

    def others_of(self, member: str) -> list[str]:
        """Other members that receive for the same owner."""
        owner = self._owner_of.get(member)
        return [] if owner is None else [each for each in self._members_of[owner] if each != member]

    @property
    def members(self) -> list[tuple[str, str]]:
        """Each member and its owner."""
        return list(self._owner_of.items())

    # Offsets

    @property
    def ready_lanes(self) -> int:
        """How many lanes have messages."""
        return len(self._offsets)

    def add(self, first: int, lanes: Sequence[int]) -> None:
        """These consecutive offsets are available."""
        offsets_of = self._offsets
        for offset, lane in enumerate(lanes, first):
            offsets = offsets_of.get(lane)
            if offsets is None:
                offsets = offsets_of[lane] = []
            heapq.heappush(offsets, offset)
            if offsets[0] == offset:
                self._show(offset, lane)
        self._entries += len(lanes)

    def is_stale(self, available: int) -> bool:
        """Whether most entries are of offsets that are not available any more."""
        return self._entries > STALE_MIN + STALE_FACTOR * available

    def clear(self) -> None:
        self._offsets.clear()
        self._fronts.clear()
        self._entries = 0

    def assign(self, table: LaneTable) -> None:
        """From now on, messages go to these owners."""
        self.table = table
        self.owner_count = max(1, len({owner for owner in table.owners if owner is not None}))
        self._fronts.clear()
        for lane, offsets in self._offsets.items():
            self._show(offsets[0], lane)

    def has_more(self, owner: str) -> bool:
        """Whether the owner may have messages to get."""
        return bool(self._fronts.get(owner))

    def first(self, owner: str) -> int | None:
        """The lowest offset that the owner may get."""
        fronts = self._fronts.get(owner)
        return fronts[0][0] if fronts else None

    def take(self, owner: str, count: int, below: int | None) -> list[int]:
        """Removes and returns the lowest offsets of an owner's lanes, ascending. Some may not be available any more,
        and one that came back may be there twice."""
        fronts, offsets_of = self._fronts.get(owner), self._offsets
        heappop, heapreplace = heapq.heappop, heapq.heapreplace
        taken: list[int] = []
        while fronts and len(taken) < count:
            offset, lane = fronts[0]
            offsets = offsets_of.get(lane)
            if offsets is None or offsets[0] != offset:  # a lower offset came back, and was taken since
                heappop(fronts)
                continue
            if below is not None and offset >= below:
                break
            taken.append(heappop(offsets))
            if offsets:
                heapreplace(fronts, (offsets[0], lane))
            else:
                del offsets_of[lane]
                heappop(fronts)
        self._entries -= len(taken)
        return taken

    def _show(self, offset: int, lane: int) -> None:
        """This is the lowest offset of its lane now."""
        owner = self.table.owner(lane)
        if owner is not None and lane not in self.table.revoked:
            heapq.heappush(self._fronts.setdefault(owner, []), (offset, lane))
