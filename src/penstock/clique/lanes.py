"""Which message may run next: one of each key at a time, in the order in which they came.

A *lane* has the messages of one key, over all streams. It is in one of three states:

    ready     its first message may run as soon as a handler is free
    running   a handler runs for its first message
    parked    its first message cannot run now: its slot may not start handlers, or it waits for another attempt

Messages without a key have a lane each. A request of a call chain whose handler runs in the lane does not wait for it
(chains.py): `is_nested` says so, and such a request never enters a lane.

Nothing here waits or knows the time. Invariant: a lane with messages is in exactly one state, and an empty one is
forgotten.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, Literal, Protocol, TypeVar

from penstock.clique.chains import Chain

LaneKey = bytes | int
"""The key, or the number of a message without one."""


class Queued(Protocol):
    """What a lane holds."""

    @property
    def lane_key(self) -> LaneKey: ...

    @property
    def slot(self) -> int: ...

    @property
    def size(self) -> int: ...


W = TypeVar("W", bound=Queued)

READY: Final = "ready"
RUNNING: Final = "running"
PARKED: Final = "parked"


class Lane(Generic[W]):
    __slots__ = ("chain_id", "key", "slot", "state", "works")

    def __init__(self, key: LaneKey, slot: int) -> None:
        self.key = key
        self.slot = slot
        self.works: deque[W] = deque()
        self.state: Literal["ready", "running", "parked"] = READY
        self.chain_id: str | None = None
        """Of the handler that runs."""


class Lanes(Generic[W]):
    """All messages that wait or run."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, Lane[W]] = {}
        self._by_slot: dict[int, dict[LaneKey, Lane[W]]] = {}
        self._ready: OrderedDict[LaneKey, Lane[W]] = OrderedDict()
        self.count = 0
        self.bytes = 0

    def add(self, work: W, *, is_urgent: bool = False) -> None:
        """`is_urgent`: its lane comes first, if it is new."""
        lane = self._lanes.get(work.lane_key)
        if lane is None:
            lane = self._lanes[work.lane_key] = Lane(work.lane_key, work.slot)
            self._by_slot.setdefault(work.slot, {})[work.lane_key] = lane
            self._make_ready(lane)
            if is_urgent:
                self._ready.move_to_end(lane.key, last=False)
        lane.works.append(work)
        self.count += 1
        self.bytes += work.size

    @property
    def slots(self) -> Collection[int]:
        """Those that have messages."""
        return self._by_slot.keys()

    @property
    def ready(self) -> int:
        """How many lanes are ready."""
        return len(self._ready)

    def take(self) -> W | None:
        """The next message that may run. Its lane counts as running until `finish` or `park`."""
        if not self._ready:
            return None
        _, lane = self._ready.popitem(last=False)
        lane.state = RUNNING
        return lane.works[0]

    def begin(self, work: W, chain: Chain) -> None:
        """Its handler starts: requests of this chain may enter."""
        self._lanes[work.lane_key].chain_id = chain.chain_id

    def is_nested(self, key: LaneKey, chain: Chain | None) -> bool:
        """Whether a request comes from inside the handler that runs for the key."""
        lane = self._lanes.get(key)
        return lane is not None and chain is not None and lane.chain_id == chain.chain_id

    def finish(self, work: W) -> None:
        """The first message of a running lane is done."""
        lane = self._lanes[work.lane_key]
        lane.chain_id = None
        lane.works.popleft()
        self._dropped(work)
        if lane.works:
            self._make_ready(lane)
        else:
            self._forget(lane)

    def park(self, work: W) -> None:
        """The first message of a running lane cannot run now."""
        lane = self._lanes[work.lane_key]
        lane.chain_id = None
        lane.state = PARKED

    def resume(self, work: W) -> None:
        """The first message of a parked lane runs now."""
        lane = self._lanes[work.lane_key]
        assert lane.state == PARKED
        lane.state = RUNNING

    def unpark(self, key: LaneKey) -> None:
        """Another attempt is due, or the slot may start handlers again."""
        lane = self._lanes.get(key)
        if lane is not None and lane.state == PARKED:
            self._make_ready(lane)

    def unpark_all(self, is_wanted: Callable[[W], bool]) -> None:
        for lane in self._lanes.values():
            if lane.state == PARKED and is_wanted(lane.works[0]):
                self._make_ready(lane)

    def take_back(self, slots: Iterable[int], is_early: Callable[[W], bool]) -> list[W]:
        """Removes the messages of these slots whose handlers do not run, in order. Lanes with an early message keep
        all."""
        removed: list[W] = []
        for slot in slots:
            for lane in list(self._by_slot.get(slot, {}).values()):
                if not any(map(is_early, lane.works)):
                    removed += self._empty(lane)
        return removed

    def _empty(self, lane: Lane[W]) -> list[W]:
        running = lane.works.popleft() if lane.state == RUNNING else None
        removed = list(lane.works)
        lane.works.clear()
        for work in removed:
            self._dropped(work)
        if running is None:
            self._ready.pop(lane.key, None)
            self._forget(lane)
        else:
            lane.works.append(running)
        return removed

    def _make_ready(self, lane: Lane[W]) -> None:
        lane.state = READY
        self._ready[lane.key] = lane

    def _dropped(self, work: W) -> None:
        self.count -= 1
        self.bytes -= work.size

    def _forget(self, lane: Lane[W]) -> None:
        del self._lanes[lane.key]
        of_slot = self._by_slot[lane.slot]
        del of_slot[lane.key]
        if not of_slot:
            del self._by_slot[lane.slot]
