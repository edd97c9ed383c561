"""One subscriber: which messages it is sent, which it has acked, which are deferred, and when it is inactive.

The driver reads pages of the subscriber's partitions and offers them; the subscriber chooses the messages to send now.
There is no clock and no randomness: the time comes with each call and never goes back.

    unread -> sent -> done              the usual way, in the order of the log
           -> deferred -> sent -> done  not due yet; sent when it is due, behind the messages that were sent by then
           -> done                      expired, or the log has no record there (compaction, control records, retention)

Invariants, cited in the code and in the tests:

1. Below a partition's next offset, each offset is in one state: done, sent, deferred, or being read again because it is
   due. From there on it is unread, or done since an earlier connection.
2. The first undone offset of a partition never goes back.
3. A record of the log becomes done only by an ack, or because it expired before it was sent.
4. Credit is never exceeded: the messages that are sent and not acked, and those being read again, are at most the
   credit at that moment. (Credit may be lowered later; no message is recalled.)
5. Messages that are not deferred are sent in the order of the log. A deferred message is never sent before it is due.
6. An expired message is not sent.
7. An ack is for the message that it names and for all messages of its partition that were *sent* before that one. So a
   message that was deferred, and sent after messages with higher offsets, is not acked along with them.
8. A position that is stored is one that the partition had: all offsets below it, and all its ranges, are done.

Why 7 counts in the order of sending: a client acks what it has processed, and it processes messages as they come.
Counted by offset, an ack would also cover a deferred message with a lower offset that the client has not processed.
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
PARTITION_BITS = 32
"""A deferred message is one number: its due time, its partition, its offset. A heap of these costs 50 bytes each, a
third of what tuples cost."""
MAX_RANGES = 1_024
"""Per position: the stored metadata has no space for more, and there may be as many ranges as deferred messages."""
OFFSET_MASK = (1 << OFFSET_BITS) - 1
PARTITION_MASK = (1 << PARTITION_BITS) - 1


class Times(NamedTuple):
    """When a message is due, and when it expires: milliseconds since 1970, or None."""

    due_ms: int | None
    expires_ms: int | None

    def is_over(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


ANY_TIME = Times(None, None)


class SubscriberSettings(msgspec.Struct, frozen=True, kw_only=True):
    credit: int = 100
    """The most messages that are sent and not acked."""
    ack_timeout_ms: int = 30_000
    """A subscriber that has not acked a message for so long is inactive."""
    max_deferred: int = 1_000_000
    """Deferred messages of all partitions: 50 MB. Beyond it no more is read until some are due."""


class Position(NamedTuple):
    """The progress on one partition: all below the offset is done, these ranges above it are, and perhaps more."""

    key: TopicPartition
    offset: int
    done: tuple[Range, ...] = ()


class Ack(Enum):
    """The effect of an ack."""

    NEW = "news"
    REPEATED = "known"
    """It was acked before, or needed no ack."""
    NOT_SENT = "not_sent"


class SubscribedPartition:
    """The state of one partition for one subscriber."""

    __slots__ = ("done", "fetching", "key", "next_offset", "number", "sent")

    def __init__(self, number: int, position: Position) -> None:
        self.number = number
        self.key = position.key
        self.next_offset = position.offset
        """The next offset to read."""
        self.done = DoneRanges(position.offset, position.done)
        self.sent: OrderedDict[int, int] = OrderedDict()
        """When each message was sent, in that order (7)."""
        self.fetching: dict[int, None] = {}
        """Deferred messages that are due and are being read again."""

    @property
    def position(self) -> Position:
        return Position(self.key, self.done.first_undone, tuple(islice(self.done.ranges(), MAX_RANGES)))


class Subscriber:
    """The state of one connection. Calls for a partition that was dropped have no effect."""

    def __init__(self, settings: SubscriberSettings, positions: Iterable[Position]) -> None:
        self.settings = settings
        self._partitions: dict[TopicPartition, SubscribedPartition] = {}
        self._numbered: list[SubscribedPartition] = []
        self._credit_used = 0
        """Messages that are sent and not acked, or being read again."""
        self._deferred: list[int] = []
        self._changed: dict[TopicPartition, None] = {}
        for position in positions:
            self.add(position)

    # --- partitions

    def add(self, position: Position) -> None:
        partition = SubscribedPartition(len(self._numbered), position)
        self._partitions[position.key] = partition
        self._numbered.append(partition)

    def drop(self, key: TopicPartition) -> None:
        """The topic was deleted. Its deferred messages are discarded when they are due."""
        partition = self._partitions.pop(key, None)
        if partition is not None:
            self._credit_used -= len(partition.sent) + len(partition.fetching)
            self._changed.pop(key, None)

    @property
    def keys(self) -> Iterable[TopicPartition]:
        return self._partitions.keys()

    def next_offset(self, key: TopicPartition) -> int | None:
        """Where to read on; None if the partition was dropped."""
        partition = self._partitions.get(key)
        return partition.next_offset if partition is not None else None

    def positions(self) -> list[Position]:
        """All positions, for a write that must be complete."""
        self._changed.clear()
        return [partition.position for partition in self._partitions.values()]

    def take_changes(self) -> list[Position]:
        """The positions that changed since the last call, to be stored (8)."""
        changed = [self._partitions[key].position for key in self._changed]
        self._changed.clear()
        return changed

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    # --- credit

    @property
    def credit_left(self) -> int:
        """How many messages may be sent now (4)."""
        return max(0, self.settings.credit - self._credit_used)

    @property
    def unacked(self) -> int:
        return sum(len(partition.sent) for partition in self._partitions.values())

    def unacked_on(self, key: TopicPartition) -> int:
        partition = self._partitions.get(key)
        return len(partition.sent) if partition is not None else 0

    def set_credit(self, credit: int) -> None:
        self.settings = msgspec.structs.replace(self.settings, credit=credit)

    # --- reading

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
        """Offers a page that was read at the partition's next offset, or before it, up to row `stop`. Returns the rows
        to send now. The page reaches to `end`. Rows beyond the credit, and everything behind them, stay unread (5)."""
        partition = self._partitions.get(key)
        if partition is None:
            return []
        chosen: list[int] = []
        credit_left = self.credit_left
        for row in range(bisect_left(offsets, partition.next_offset), min(stop, len(offsets))):
            offset = offsets[row]
            about = times.get(offset, ANY_TIME)
            if offset in partition.done or about.is_over(now_ms):
                self._finish(partition, partition.next_offset, offset + 1)  # (6)
            else:
                waits = about.due_ms is not None and about.due_ms > now_ms
                if self._is_full if waits else len(chosen) >= credit_left:
                    break
                self._finish(partition, partition.next_offset, offset)  # a gap in the log
                if waits:
                    assert about.due_ms is not None
                    self._defer(partition, offset, about.due_ms)
                else:
                    chosen.append(row)
                    partition.sent[offset] = now_ms
            partition.next_offset = offset + 1
        else:
            if stop >= len(offsets) and end > partition.next_offset:
                self._finish(partition, partition.next_offset, end)
                partition.next_offset = end
        self._credit_used += len(chosen)
        return chosen

    def trimmed(self, key: TopicPartition, start: int) -> None:
        """The log starts at `start` now: earlier records do not exist any more."""
        partition = self._partitions.get(key)
        if partition is None:
            return
        gone = [offset for offset in partition.sent if offset < start]
        gone += [offset for offset in partition.fetching if offset < start]
        for offset in gone:
            self._forget(partition, offset)
        partition.next_offset = max(partition.next_offset, start)
        self._finish(partition, partition.done.first_undone, start)

    def unreadable(self, key: TopicPartition, end: int) -> None:
        """The log cannot be read from the next offset to `end`."""
        partition = self._partitions.get(key)
        if partition is not None and end > partition.next_offset:
            self._finish(partition, partition.next_offset, end)
            partition.next_offset = end

    # --- deferred messages

    @property
    def _is_full(self) -> bool:
        return len(self._deferred) >= self.settings.max_deferred

    @property
    def deferred_count(self) -> int:
        return len(self._deferred)

    def _defer(self, partition: SubscribedPartition, offset: int, due_ms: int) -> None:
        heapq.heappush(self._deferred, (due_ms << PARTITION_BITS | partition.number) << OFFSET_BITS | offset)

    def pop_due(self, now_ms: int) -> tuple[TopicPartition, int] | None:
        """The deferred message that has been due longest, if there is credit for it. The caller reads it again and then
        calls `send_due` or `skip`."""
        while self._deferred and self._deferred[0] >> (OFFSET_BITS + PARTITION_BITS) <= now_ms:
            if not self.credit_left:
                return None
            number = heapq.heappop(self._deferred)
            partition = self._numbered[(number >> OFFSET_BITS) & PARTITION_MASK]
            offset = number & OFFSET_MASK
            if self._partitions.get(partition.key) is partition and offset not in partition.done:
                partition.fetching[offset] = None
                self._credit_used += 1
                return partition.key, offset
        return None

    def send_due(self, now_ms: int, key: TopicPartition, offset: int) -> bool:
        """It was read. Returns whether to send it: retention may have deleted it meanwhile."""
        partition = self._partitions.get(key)
        if partition is None or offset not in partition.fetching:
            return False
        del partition.fetching[offset]
        partition.sent[offset] = now_ms
        return True

    def skip(self, key: TopicPartition, offset: int) -> None:
        """It has expired meanwhile, or the log does not have it any more."""
        partition = self._partitions.get(key)
        if partition is not None and offset in partition.fetching:
            self._forget(partition, offset)
            self._finish(partition, offset, offset + 1)

    # --- acks

    def ack(self, key: TopicPartition, offset: int) -> Ack:
        partition = self._partitions.get(key)
        if partition is None:
            return Ack.REPEATED
        if offset not in partition.sent:
            return Ack.REPEATED if offset in partition.done else Ack.NOT_SENT
        while True:  # (7)
            acked, _ = partition.sent.popitem(last=False)
            self._credit_used -= 1
            self._finish(partition, acked, acked + 1)
            if acked == offset:
                return Ack.NEW

    # --- time

    @property
    def ack_due_ms(self) -> int | None:
        """When the ack of the oldest unacked message is overdue; None if all are acked."""
        oldest = (
            next(iter(partition.sent.values())) for partition in self._partitions.values() if partition.sent
        )
        first = min(oldest, default=None)
        return None if first is None else first + self.settings.ack_timeout_ms

    @property
    def next_due_ms(self) -> int | None:
        """When `pop_due` may return something. None while nothing is deferred, or there is no credit."""
        return (
            self._deferred[0] >> (OFFSET_BITS + PARTITION_BITS)
            if self._deferred and self.credit_left
            else None
        )

    # --- inside

    def _forget(self, partition: SubscribedPartition, offset: int) -> None:
        """The message is neither sent nor being read again any more."""
        if partition.sent.pop(offset, None) is None:
            del partition.fetching[offset]
        self._credit_used -= 1

    def _finish(self, partition: SubscribedPartition, first: int, end: int) -> None:
        if partition.done.add(first, end):
            self._changed[partition.key] = None
