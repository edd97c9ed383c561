"""Which worker should own which slot: a pure function of the table before and of the workers there are.

    rebalanced(targets, workers, homes, owners) -> the new targets

Of n workers, `SLOTS % n` have one slot more than `SLOTS // n`, and all others exactly that: no two differ by more than
one. Within these shares:

1. A slot stays with its worker while that worker is there and its share is not exceeded.
2. A slot without a worker goes home first, to the worker that had it when it left (`homes`); else it stays where it
   still is (`owners`: it was to move and has not yet); else it goes to the worker with the best score among those that
   may have one more: rendezvous hashing with a bound on the load.
3. A worker with less than its share takes slots from those with more: first those that were its own, then those that
   were an absent worker's (they will move again if that returns), then others; each time those with its best score.

From these follow, when one worker joins or leaves a table that was balanced:

* Only slots of that worker move: at most `ceil(SLOTS / n)`, where n counts the joining worker, or the leaving one.
* A worker that leaves and comes back finds its slots again, and all others have theirs.

The score of a worker for a slot is the XXH3 hash of the slot's number with the hash of the worker's name as seed: all
processes compute the same, and each worker prefers other slots.
"""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct

from xxhash import xxh3_64_intdigest

from penstock.ring.slots import SLOTS, slots_of, union

Homes = Mapping[str, bytes]
"""The slots that each absent worker had when it left, as bitmaps."""

NO_HOMES: Homes = {}
UNASSIGNED: tuple[None, ...] = (None,) * SLOTS

SCORED_WORKERS = 512
"""How many workers' scores are cached: 32 KiB each. They are needed again with every change of the members."""

_SLOT = Struct("<H")
_SLOT_BYTES = tuple(_SLOT.pack(slot) for slot in range(SLOTS))


@lru_cache(maxsize=SCORED_WORKERS)
def scores(worker: str) -> "array[int]":
    """The worker's score for each slot; the highest wins."""
    seed = xxh3_64_intdigest(worker.encode("utf-8", "surrogatepass"))
    return array("Q", [xxh3_64_intdigest(slot, seed=seed) for slot in _SLOT_BYTES])


def rebalanced(
    targets: Sequence[str | None],
    workers: Collection[str],
    homes: Homes = NO_HOMES,
    owners: Sequence[str | None] = UNASSIGNED,
) -> list[str | None]:
    """The worker that should own each slot. `targets`: the same for the members before; UNASSIGNED at the beginning."""
    if not workers:
        return list(UNASSIGNED)
    shares = _Shares(targets, sorted(workers), homes)
    shares.assign_free(owners)
    shares.even_out()
    return shares.targets


class _Shares:
    """Slots while they are being distributed."""

    def __init__(self, targets: Sequence[str | None], workers: Sequence[str], homes: Homes) -> None:
        self._least, with_more = divmod(SLOTS, len(workers))
        """The slots that every worker has in the end, at least."""
        self._most = self._least + bool(with_more)
        self._may_have_more = with_more
        """How many workers have one more than the least in the end."""
        self._slots: dict[str, set[int]] = {worker: set() for worker in workers}
        self._with_more = 0
        """How many workers have more than the least now."""
        self._free: list[int] = []
        self._homes = {worker: frozenset(slots_of(homes.get(worker, b""))) for worker in workers}
        lent = union(slots for worker, slots in homes.items() if worker not in self._slots)
        self._lent = frozenset(slots_of(lent))
        """The slots whose home is an absent worker."""
        self.targets: list[str | None] = [None] * SLOTS
        for slot, worker in enumerate(targets):
            if worker is not None and worker in self._slots:
                self._give(slot, worker)
            else:
                self._free.append(slot)
        self._returning = [worker for worker in workers if not self._slots[worker] and self._homes[worker]]

    def _give(self, slot: int, worker: str) -> None:
        before = self.targets[slot]
        if before is not None:
            self._slots[before].remove(slot)
            self._with_more -= len(self._slots[before]) == self._least
        self._slots[worker].add(slot)
        self._with_more += len(self._slots[worker]) == self._least + 1
        self.targets[slot] = worker

    # --- slots without a worker

    def assign_free(self, owners: Sequence[str | None]) -> None:
        for worker in self._returning:
            self._assign(self._homes[worker].intersection(self._free), [worker])
        for slot in self._free:
            owner = owners[slot]
            if owner in self._slots and self.targets[slot] is None and self._has_room(owner):
                self._give(slot, owner)
        self._assign(self._free, list(self._slots))

    def _assign(self, slots: Iterable[int], workers: list[str]) -> None:
        """Gives each slot that is still free to the best of these workers that may have one more."""
        rows = [(scores(worker), worker) for worker in workers if self._has_room(worker)]
        for slot in sorted(slots):
            if rows and self.targets[slot] is None:
                _, best = max(rows, key=lambda row: row[0][slot])
                self._give(slot, best)
                if not self._has_room(best):
                    # It may also have been the last one that was to have one more.
                    rows = [row for row in rows if self._has_room(row[1])]

    def _has_room(self, worker: str) -> bool:
        load = len(self._slots[worker])
        return load < self._least or (load == self._least and self._with_more < self._may_have_more)

    # --- slots of workers that have too many

    def even_out(self) -> None:
        """First those above the most give, then those above the least: so no worker both gives and takes."""
        for worker in self._slots:
            self._take(worker, self._least, self._most)
            self._take(worker, self._least, self._least)
        for worker in self._slots:
            self._take(worker, self._most, self._most)
        for worker in self._returning:
            # One more if it is its own: the share of a worker that returns is as large as it was before.
            self._take(worker, self._most, self._least, self._homes[worker])

    def _take(self, worker: str, until: int, spare_above: int, among: Collection[int] | None = None) -> None:
        """The worker takes slots until it has so many, from workers that have more than `spare_above`."""
        if len(self._slots[worker]) >= until:
            return
        donors = [slots for slots in self._slots.values() if len(slots) > spare_above]
        offered = [slot for slots in donors for slot in slots if among is None or slot in among]
        own, score = self._homes[worker], scores(worker)
        for slot in sorted(offered, key=lambda slot: (self._preference(slot, own), -score[slot])):
            donor = self.targets[slot]
            if donor is not None and len(self._slots[donor]) > spare_above:
                self._give(slot, worker)
                if len(self._slots[worker]) >= until:
                    return

    def _preference(self, slot: int, own: Collection[int]) -> int:
        """The lower, the sooner a worker with these slots of its own takes it."""
        lent = slot in self._lent
        return int(lent) if slot in own else 3 - lent
