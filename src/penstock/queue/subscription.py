"""One subscriber: what it is sent, what it has acked, what waits for its time, and when it is no longer there.

Messages come from *lanes*, one for each partition. The machine reads pages of a lane and offers them; the subscriber
says which of their messages go out now. No clock, no chance: the time comes with each call and never goes back.

    unread -> sent -> done              as the log has them
           -> deferred -> sent -> done  says that it is not due yet; sent when it is, behind what is sent by then
           -> done                      expired, or the log has nothing there (compaction, control records, retention)

Invariants, cited in the code and in the tests:

1. Below a lane's position each offset is in one state: done, sent, deferred, or being fetched again because it is due.
   From there on it is unread, or done since an earlier connection.
2. The floor of a lane is the lowest offset that is not done. It never goes back.
3. Of what the log has, only an ack makes done, or that it expired before it was sent.
4. Nothing is sent beyond the credit: what is sent and not acked, and what is being fetched, is at most the credit that
   held at that moment. (Credit may be taken away later; nothing is called back.)
5. What is not deferred is sent in the log's order. What is deferred is never sent before it is due.
6. What has expired is not sent.
7. An ack is for the message that it names and for all of its lane that were *sent* before that one. So a message
   that was deferred, and sent after others that lie behind it in the log, is not acked along with them.
8. A place that is given out to be stored is one that the lane had: all below its offset, and all its ranges, are done.

Why 7 counts in the order of sending: a client acks what it has dealt with, and it deals with messages as they come.
Counted in offsets, the ack of a message in hand would reach back to a late one that the client has not looked at.
"""

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.queue.subscription_ranges import DoneRanges, Range
from penstock.types import TopicPartition

OFFSET_BITS = 64
LANE_BITS = 32
"""A deferred message is one number: when it is due, its lane, its offset. A heap of these costs 50 bytes each, a third
of what tuples do."""
MAX_RANGES = 1_024
"""Of a place: no more fit into what is stored of it, and there may be as many as there are deferred messages."""
OFFSET_MASK = (1 << OFFSET_BITS) - 1
LANE_MASK = (1 << LANE_BITS) - 1


class Times(NamedTuple):
    """When a message is due, and when it is of no use any more: milliseconds since 1970, or None."""

    due_ms: int | None
    expires_ms: int | None

    def is_over(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


ANY_TIME = Times(None, None)


class SubscriberSettings(msgspec.Struct, frozen=True, kw_only=True):
    credit: int = 100
    """The most messages that are sent and not acked."""
    ack_timeout_ms: int = 30_000
    """A message that is not acked for so long makes its subscriber inactive."""
    max_deferred: int = 1_000_000
    """Messages that wait for their time, of all lanes: 50 MB. Past it no more is read until some are due."""


class Place(NamedTuple):
    """How far one lane is: all below the offset is done, and these ranges above it, and perhaps more."""

    key: TopicPartition
    offset: int
    done: tuple[Range, ...] = ()


class Ack(Enum):
    """What became of an ack."""

    NEWS = "news"
    KNOWN = "known"
    """It was acked before, or never had to be."""
    NOT_SENT = "not_sent"


class Lane:
    """One partition, as one subscriber sees it."""

    __slots__ = ("done", "fetching", "key", "number", "position", "sent")

    def __init__(self, number: int, place: Place) -> None:
        self.number = number
        self.key = place.key
        self.position = place.offset
        """The next offset to be read."""
        self.done = DoneRanges(place.offset, place.done)
        self.sent: OrderedDict[int, int] = OrderedDict()
        """When each was sent, in that order (7)."""
        self.fetching: dict[int, None] = {}
        """Deferred ones whose time has come, while they are read again."""

    @property
    def place(self) -> Place:
        return Place(self.key, self.done.floor, tuple(islice(self.done.ranges(), MAX_RANGES)))


class Subscriber:
    """One connection's state. A lane that is not known was dropped: what is still said of it means nothing."""

    def __init__(self, settings: SubscriberSettings, places: Iterable[Place]) -> None:
        self.settings = settings
        self._lanes: dict[TopicPartition, Lane] = {}
        self._numbered: list[Lane] = []
        self._taken = 0
        """Credit in use."""
        self._deferred: list[int] = []
        self._changed: dict[TopicPartition, None] = {}
        for place in places:
            self.add(place)

    # --- lanes

    def add(self, place: Place) -> None:
        lane = Lane(len(self._numbered), place)
        self._lanes[place.key] = lane
        self._numbered.append(lane)

    def drop(self, key: TopicPartition) -> None:
        """Its topic is gone. What is deferred is found to be nobody's when it is due."""
        lane = self._lanes.pop(key, None)
        if lane is not None:
            self._taken -= len(lane.sent) + len(lane.fetching)
            self._changed.pop(key, None)

    @property
    def keys(self) -> Iterable[TopicPartition]:
        return self._lanes.keys()

    def position(self, key: TopicPartition) -> int | None:
        """Where to read on; None if the lane was dropped."""
        lane = self._lanes.get(key)
        return lane.position if lane is not None else None

    def places(self) -> list[Place]:
        """All of them, for a write that must say everything."""
        self._changed.clear()
        return [lane.place for lane in self._lanes.values()]

    def take_changes(self) -> list[Place]:
        """What is to be stored since this was asked last (8)."""
        changed = [self._lanes[key].place for key in self._changed]
        self._changed.clear()
        return changed

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    # --- credit

    @property
    def room(self) -> int:
        """How many messages may go out now (4)."""
        return max(0, self.settings.credit - self._taken)

    @property
    def unacked(self) -> int:
        return sum(len(lane.sent) for lane in self._lanes.values())

    def unacked_on(self, key: TopicPartition) -> int:
        lane = self._lanes.get(key)
        return len(lane.sent) if lane is not None else 0

    def set_credit(self, credit: int) -> None:
        self.settings = msgspec.structs.replace(self.settings, credit=credit)

    # --- what was read

    def offer(
        self,
        now_ms: int,
        key: TopicPartition,
        offsets: Sequence[int],
        times: Mapping[int, Times],
        *,
        stop: int,
        end: int,
    ) -> list[int]:
        """Of a page that was read at the lane's position, or before it, the rows up to `stop`: which of them go out
        now, by their numbers. The page reaches to `end`. Rows that the credit does not allow for are left unread, and
        so is what follows them (5)."""
        lane = self._lanes.get(key)
        if lane is None:
            return []
        chosen: list[int] = []
        room = self.room
        for row in range(bisect_left(offsets, lane.position), min(stop, len(offsets))):
            offset = offsets[row]
            about = times.get(offset, ANY_TIME)
            if offset in lane.done or about.is_over(now_ms):
                self._finish(lane, lane.position, offset + 1)  # (6)
            else:
                waits = about.due_ms is not None and about.due_ms > now_ms
                if self._is_full if waits else len(chosen) >= room:
                    break
                self._finish(lane, lane.position, offset)  # where the log has nothing
                if waits:
                    assert about.due_ms is not None
                    self._defer(lane, offset, about.due_ms)
                else:
                    chosen.append(row)
                    lane.sent[offset] = now_ms
            lane.position = offset + 1
        else:
            if stop >= len(offsets) and end > lane.position:
                self._finish(lane, lane.position, end)
                lane.position = end
        self._taken += len(chosen)
        return chosen

    def trimmed(self, key: TopicPartition, start: int) -> None:
        """The log begins at `start` now: what was before it can be had no more."""
        lane = self._lanes.get(key)
        if lane is None:
            return
        gone = [offset for offset in lane.sent if offset < start]
        gone += [offset for offset in lane.fetching if offset < start]
        for offset in gone:
            self._forget(lane, offset)
        lane.position = max(lane.position, start)
        self._finish(lane, lane.done.floor, start)

    def unreadable(self, key: TopicPartition, end: int) -> None:
        """What lies from the position to `end` cannot be read, by anybody."""
        lane = self._lanes.get(key)
        if lane is not None and end > lane.position:
            self._finish(lane, lane.position, end)
            lane.position = end

    # --- what was deferred

    @property
    def _is_full(self) -> bool:
        return len(self._deferred) >= self.settings.max_deferred

    @property
    def deferred_count(self) -> int:
        return len(self._deferred)

    def _defer(self, lane: Lane, offset: int, due_ms: int) -> None:
        heapq.heappush(self._deferred, (due_ms << LANE_BITS | lane.number) << OFFSET_BITS | offset)

    def pop_due(self, now_ms: int) -> tuple[TopicPartition, int] | None:
        """A message whose time has come, the earliest first, if there is credit for it. It is to be read again, and
        then `send_due`, `skip` or `put_back` says what became of that."""
        while self._deferred and self._deferred[0] >> (OFFSET_BITS + LANE_BITS) <= now_ms:
            if not self.room:
                return None
            number = heapq.heappop(self._deferred)
            lane = self._numbered[(number >> OFFSET_BITS) & LANE_MASK]
            offset = number & OFFSET_MASK
            if self._lanes.get(lane.key) is lane and offset not in lane.done:
                lane.fetching[offset] = None
                self._taken += 1
                return lane.key, offset
        return None

    def send_due(self, now_ms: int, key: TopicPartition, offset: int) -> bool:
        """It was read. Whether it is to be sent: retention may have been faster."""
        lane = self._lanes.get(key)
        if lane is None or offset not in lane.fetching:
            return False
        del lane.fetching[offset]
        lane.sent[offset] = now_ms
        return True

    def skip(self, key: TopicPartition, offset: int) -> None:
        """It has expired meanwhile, or the log does not have it any more."""
        lane = self._lanes.get(key)
        if lane is not None and offset in lane.fetching:
            self._forget(lane, offset)
            self._finish(lane, offset, offset + 1)

    def put_back(self, now_ms: int, key: TopicPartition, offset: int) -> None:
        """It could not be read now: it is due again at once."""
        lane = self._lanes.get(key)
        if lane is not None and offset in lane.fetching:
            self._forget(lane, offset)
            self._defer(lane, offset, now_ms)

    # --- what was acked

    def ack(self, key: TopicPartition, offset: int) -> Ack:
        lane = self._lanes.get(key)
        if lane is None:
            return Ack.KNOWN
        if offset not in lane.sent:
            return Ack.KNOWN if offset in lane.done else Ack.NOT_SENT
        while True:  # (7)
            acked, _ = lane.sent.popitem(last=False)
            self._taken -= 1
            self._finish(lane, acked, acked + 1)
            if acked == offset:
                return Ack.NEWS

    # --- time

    @property
    def ack_due_ms(self) -> int | None:
        """When the message that was sent first of all that are not acked must be; None if all are."""
        oldest = (next(iter(lane.sent.values())) for lane in self._lanes.values() if lane.sent)
        first = min(oldest, default=None)
        return None if first is None else first + self.settings.ack_timeout_ms

    @property
    def next_due_ms(self) -> int | None:
        """When `pop_due` may have something. None while nothing is deferred, or there is no credit."""
        return self._deferred[0] >> (OFFSET_BITS + LANE_BITS) if self._deferred and self.room else None

    # --- inside

    def _forget(self, lane: Lane, offset: int) -> None:
        """It is neither sent nor being fetched any more."""
        if lane.sent.pop(offset, None) is None:
            del lane.fetching[offset]
        self._taken -= 1

    def _finish(self, lane: Lane, first: int, end: int) -> None:
        if lane.done.add(first, end):
            self._changed[lane.key] = None
