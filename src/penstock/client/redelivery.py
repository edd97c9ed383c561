"""Keeps track of messages across a subscriber's reconnects, so that an acked message is not handed out again.

When a connection breaks, callers keep the messages that they have taken, for as long as their work takes and over any
number of connections. Meanwhile the broker sends a copy of each over every new connection. So the tracker remembers,
for every connection that is gone, the messages that were taken and not acked, and those that were acked but are not
known to be durable.

A copy has the same offset *and* the same timestamp: a topic that was deleted and created again, or that was in the
memory of a node that was restarted, has other messages at the same offsets.

Invariants:
 1. The tracker remembers at most REMEMBERED_MAX messages of either kind, over all connections. It forgets the oldest
    first; these are handed out again when they come, as any message may be.
 2. An ack covers the messages that came before it over the same connection, and none that came later.
 3. The tracker remembers nothing below a durable offset. If the durable offset has gone back, or the subscription was
    created again, all messages may be meant to come again: it forgets everything of that partition.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple, Self

from penstock.client.frames import Position
from penstock.client.received_record import ReceivedRecord
from penstock.types import TopicPartition

REMEMBERED_MAX: Final = 100_000
"""Messages: as many as the largest credit, so that every message of one connection can be acked late."""


class DeliveredMessage(NamedTuple):
    """One message that came over one connection, as far as acks are concerned."""

    offset: int
    timestamp_ms: int
    order: int

    @classmethod
    def of(cls, item: ReceivedRecord) -> Self:
        return cls(item.offset, item.timestamp_ms, item.order)


class RedeliveryTracker:
    """The memory of a session across its connections."""

    def __init__(self) -> None:
        self._in_hand: dict[tuple[int, TopicPartition], deque[DeliveredMessage]] = {}
        """Taken and unacked messages by connection (oldest first) and partition, in the order of arrival."""
        self._acked: dict[tuple[TopicPartition, int], int] = {}
        """Acked, but not durably: timestamps, by partition and offset."""
        self._durable: dict[TopicPartition, int] = {}
        """The highest durable offset of each partition."""
        self._has_lost_acks = False

    @property
    def has_acked(self) -> bool:
        """Whether there are messages that were acked, and may come again."""
        return bool(self._acked)

    def take_lost_acks(self) -> bool:
        """Whether acked messages were forgotten since the last call, and are handed out again if they come."""
        has_lost, self._has_lost_acks = self._has_lost_acks, False
        return has_lost

    def keep(self, connection_id: int, tp: TopicPartition, taken: Iterable[DeliveredMessage]) -> None:
        """A connection is gone: callers may still ack these messages."""
        deliveries = deque(taken)
        if not deliveries:
            return
        self._in_hand[connection_id, tp] = deliveries
        surplus = sum(map(len, self._in_hand.values())) - REMEMBERED_MAX
        while surplus > 0:  # (1)
            oldest = next(iter(self._in_hand))
            while surplus > 0 and self._in_hand[oldest]:
                self._in_hand[oldest].popleft()
                surplus -= 1
            if not self._in_hand[oldest]:
                del self._in_hand[oldest]

    def ack(self, item: ReceivedRecord) -> None:
        """A caller has acked a message whose connection is gone (2)."""
        key = item.connection_id, item.topic_partition
        in_hand = self._in_hand.get(key, deque())
        covered = []
        while in_hand and in_hand[0].order <= item.order:
            covered.append(in_hand.popleft())
        if not in_hand:
            self._in_hand.pop(key, None)
        self.remember(item.topic_partition, covered)

    def remember(self, tp: TopicPartition, acked: Iterable[DeliveredMessage]) -> None:
        """These were acked; they may not be durable."""
        for delivery in acked:
            self._acked.pop((tp, delivery.offset), None)
            self._acked[tp, delivery.offset] = delivery.timestamp_ms
        while len(self._acked) > REMEMBERED_MAX:  # (1)
            del self._acked[next(iter(self._acked))]
            self._has_lost_acks = True

    def was_acked(self, tp: TopicPartition, delivery: DeliveredMessage) -> bool:
        """Whether a received message is the copy of one that was acked before."""
        return self._acked.get((tp, delivery.offset)) == delivery.timestamp_ms

    def became_durable(self, tp: TopicPartition, position: Position) -> None:
        """Messages that are durably acked will neither come nor be acked again (3)."""
        self._durable[tp] = max(position.offset, self._durable.get(tp, 0))
        for one in [key for key in self._in_hand if key[1] == tp]:
            in_hand = self._in_hand[one]
            while in_hand and position.covers(in_hand[0].offset):
                in_hand.popleft()
            if not in_hand:
                del self._in_hand[one]
        covered = [key for key in self._acked if key[0] == tp and position.covers(key[1])]
        for key in covered:
            del self._acked[key]

    def resume(self, positions: Mapping[TopicPartition, Position], *, is_same: bool) -> None:
        """A new connection reports where it starts, and whether it resumes the same subscription (3). Partitions that
        it does not name were deleted."""
        if not is_same:
            self._has_lost_acks |= self.has_acked
            self._in_hand.clear()
            self._acked.clear()
            self._durable.clear()
        if positions:
            self._forget({tp for tp, _offset in self._acked if tp not in positions})
        for tp, position in positions.items():
            if position.offset < self._durable.get(tp, 0):
                self._has_lost_acks |= any(key[0] == tp for key in self._acked)
                self._forget({tp})
            self.became_durable(tp, position)

    def drop_topic(self, topic: str) -> None:
        """The topic was deleted: its messages never come again."""
        self._forget({tp for tp, _offset in self._acked if tp.topic == topic})

    def _forget(self, gone: Container[TopicPartition]) -> None:
        self._durable = {tp: offset for tp, offset in self._durable.items() if tp not in gone}
        self._in_hand = {key: in_hand for key, in_hand in self._in_hand.items() if key[1] not in gone}
        self._acked = {key: stamp for key, stamp in self._acked.items() if key[0] not in gone}
