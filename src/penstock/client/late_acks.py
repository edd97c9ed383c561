"""What a subscriber may still ack, or has acked, of messages whose link is gone.

A message that was taken from a link stays in the application's hands when the link is gone, for as long as its work
takes, and over any number of links. Meanwhile its copy is pushed again over each of them. So of every link that is gone
is kept what was taken from it and not acked, and what was acked and is not known to be durable.

A copy is known by its offset *and* its timestamp: a topic that was deleted and made again, or that lived in the memory
of a node that was restarted, has other messages at the same offsets.

Invariants:
 1. What is remembered of all links together is no more than REMEMBERED_MAX of either kind; the oldest is forgotten
    first, and is then handed out again when it comes, as any message may be.
 2. An ack is for what came before its message over the message's own link, and for nothing that came later.
 3. Nothing is remembered below a durable place. Where the place has gone back, or the subscription began anew,
    everything may be meant to come again: all of that partition is forgotten.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Self

from penstock.client.frames import Position
from penstock.client.received import Place, Received

REMEMBERED_MAX: Final = 100_000
"""Messages: as many as the largest credit, so that all that one link can carry can be acked late."""


class Came(NamedTuple):
    """A message, as far as acks are concerned."""

    offset: int
    timestamp_ms: int
    order: int

    @classmethod
    def of(cls, item: Received) -> Self:
        return cls(item.offset, item.timestamp_ms, item.order)


class LateAcks:
    """The memory of a session across its links."""

    def __init__(self) -> None:
        self._in_hand: dict[tuple[int, Place], deque[Came]] = {}
        """Taken from a link that is gone and not acked, in the order in which it came; the oldest links first."""
        self._acked: dict[tuple[Place, int], int] = {}
        """Acked, but not durably: timestamps, by place and offset."""
        self._durable: dict[Place, int] = {}
        """The furthest place of each partition that was heard of."""

    def keep(self, link: int, place: Place, taken: Iterable[Came]) -> None:
        """Of a link that is gone: what may be acked late."""
        found = deque(taken)
        if not found:
            return
        self._in_hand[link, place] = found
        surplus = sum(map(len, self._in_hand.values())) - REMEMBERED_MAX
        while surplus > 0:  # (1)
            oldest = next(iter(self._in_hand))
            while surplus > 0 and self._in_hand[oldest]:
                self._in_hand[oldest].popleft()
                surplus -= 1
            if not self._in_hand[oldest]:
                del self._in_hand[oldest]

    def ack(self, item: Received) -> None:
        """A message was acked that had come over a link that is gone (2)."""
        key = item.link, item.place
        in_hand = self._in_hand.get(key, deque())
        done = []
        while in_hand and in_hand[0].order <= item.order:
            done.append(in_hand.popleft())
        if not in_hand:
            self._in_hand.pop(key, None)
        self.remember(item.place, done)

    def remember(self, place: Place, acked: Iterable[Came]) -> None:
        """These were acked, and it is not known whether durably."""
        for came in acked:
            self._acked.pop((place, came.offset), None)
            self._acked[place, came.offset] = came.timestamp_ms
        while len(self._acked) > REMEMBERED_MAX:  # (1)
            del self._acked[next(iter(self._acked))]

    def was_acked(self, place: Place, came: Came) -> bool:
        """Whether a message that came is the copy of one that was acked before."""
        return self._acked.get((place, came.offset)) == came.timestamp_ms

    def became_durable(self, place: Place, position: Position) -> None:
        """What is done for good will neither come nor be acked again (3)."""
        self._durable[place] = max(position.offset, self._durable.get(place, 0))
        for key in [key for key in self._in_hand if key[1] == place]:
            in_hand = self._in_hand[key]
            while in_hand and position.covers(in_hand[0].offset):
                in_hand.popleft()
            if not in_hand:
                del self._in_hand[key]
        gone = [key for key in self._acked if key[0] == place and position.covers(key[1])]
        for one in gone:
            del self._acked[one]

    def resume(self, positions: Mapping[Place, Position], *, is_same: bool) -> None:
        """A new link says where it begins, and whether that is where the subscription was (3)."""
        if not is_same:
            self._in_hand.clear()
            self._acked.clear()
            self._durable.clear()
        for place, position in positions.items():
            if position.offset < self._durable.get(place, 0):
                self._forget(place)
            self.became_durable(place, position)

    def _forget(self, place: Place) -> None:
        del self._durable[place]
        self._in_hand = {key: in_hand for key, in_hand in self._in_hand.items() if key[1] != place}
        self._acked = {key: stamp for key, stamp in self._acked.items() if key[0] != place}
