"""Counters of queues on this node, for monitoring: one QueueStats for each queue and topic.

The driver of a queue on a partition adds to the QueueStats of its queue and topic, per batch of messages and never per
message. Figures that can be computed are computed at a scrape: a few counters for each partition.

Bounded: at most MAX_TRACKED_QUEUES queues are counted by name. When there are more, queues without a driver are
evicted; if all have drivers, the others are counted together under no name. Counters start again at 0 when their queue
was evicted, when its topic is deleted, and when the node starts.

A queue without requests for some minutes has no driver. Its backlog at that moment still holds, and records that were
appended since are available: monitoring must also show a backlog without consumers.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from penstock.node.queues.consumers import ConsumerIdentity, Interface
from penstock.queue import Backlog
from penstock.queue.values import AckKind, Acknowledgement, Acquired, DeadLetterRange, Withdrawn
from penstock.types import Isolation, Offset, Term, TopicPartition

MAX_TRACKED_QUEUES = 1_000
"""Each has some fifteen series: Prometheus accepts that many from one target without difficulty."""
NO_NAME = ("", "")
"""Queue and topic of the counters for all others: no group and no topic has this name."""

OUTCOMES = {
    AckKind.ACCEPT: "accepted",
    AckKind.RELEASE: "released",
    AckKind.REJECT: "rejected",
    AckKind.GAP: "gap",
}
"""The outcomes of a settlement. A renewal settles nothing."""


class Led(Protocol):
    """The properties of a partition that are used here."""

    @property
    def name(self) -> TopicPartition: ...
    @property
    def serves(self) -> bool: ...
    @property
    def term(self) -> Term: ...
    @property
    def start_offset(self) -> Offset: ...
    def end_for(self, isolation: Isolation) -> Offset: ...


class IdleQueue(NamedTuple):
    """A queue on a partition when its driver ended because it had no requests."""

    partition: Led
    isolation: Isolation
    term: int
    end_offset: int
    backlog: Backlog

    @property
    def counts(self) -> bool:
        """False if another leader may have delivered messages since."""
        return self.partition.serves and self.partition.term == self.term

    @property
    def now(self) -> Backlog:
        end = self.partition.end_for(self.isolation)
        available = self.backlog.available + max(0, end - self.end_offset)
        return self.backlog._replace(available=min(available, max(0, end - self.partition.start_offset)))


class QueueStats:
    """The counters of one queue on one topic, on the partitions that this node leads."""

    __slots__ = (
        "dead",
        "deleted",
        "delivered",
        "drivers",
        "expired",
        "fenced",
        "group_id",
        "idle",
        "kinds",
        "redelivered",
        "returned",
        "topic",
    )

    def __init__(self, group_id: str, topic: str) -> None:
        self.group_id = group_id
        self.topic = topic
        self.drivers = 0
        """How many drivers add to it now."""
        self.delivered = 0
        self.redelivered = 0
        """Deliveries that were not the first of their message; `delivered` counts them too."""
        self.expired = 0
        """Messages whose lease expired."""
        self.fenced = 0
        """Messages that were taken from a member of a clique that has been removed."""
        self.returned = 0
        """Messages that were delivered, and returned because their consumer had not started them."""
        self.dead = 0
        self.deleted: dict[int, int] = {}
        """Messages that were deleted before they were done, by partition."""
        self.kinds = [0] * (max(AckKind) + 1)
        """Accepted acknowledgements, in messages, by AckKind."""
        self.idle: dict[int, IdleQueue] = {}
        """Queues that are not in use, by partition."""

    def count_delivered(self, acquired: Iterable[Acquired]) -> None:
        for first, last, deliveries in acquired:
            self.delivered += last - first + 1
            if deliveries > 1:
                self.redelivered += last - first + 1

    def count_settled(self, batches: Iterable[Acknowledgement]) -> None:
        """Ranges were acknowledged: each with one kind for all, or one for each offset."""
        for first, last, kinds, _ in batches:
            if len(kinds) == 1:
                self.kinds[kinds[0]] += last - first + 1
                continue
            for kind in AckKind:
                self.kinds[kind] += kinds.count(kind)

    def count_returned(self, first: int, last: int) -> None:
        self.returned += last - first + 1

    def count_withdrawn(self, withdrawn: Withdrawn) -> None:
        self.returned += withdrawn.returned
        self.fenced += withdrawn.released

    def count_deleted(self, partition: int, count: int) -> None:
        """Messages were deleted before they were done."""
        self.deleted[partition] = self.deleted.get(partition, 0) + count

    def count_dead(self, letter: DeadLetterRange) -> None:
        self.dead += letter.last - letter.first + 1

    def add_idle(self, partition: Led, isolation: Isolation, backlog: Backlog) -> None:
        """Its driver ended there, because it had no requests."""
        if (self.group_id, self.topic) != NO_NAME:
            idle = IdleQueue(partition, isolation, partition.term, partition.end_for(isolation), backlog)
            self.idle[partition.name.partition] = idle

    def remove_idle(self, partition: int) -> None:
        self.idle.pop(partition, None)

    def drop_outdated(self) -> None:
        """Drops partitions that another node leads, or that were deleted."""
        for index in [index for index, idle in self.idle.items() if not idle.counts]:
            del self.idle[index]


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One queue on one topic at one moment. Contains only numbers and names, so it may be kept."""

    group_id: str
    topic: str
    backlog: Backlog | None
    """None: it was not used since this node leads its partitions, so its messages have not been counted."""
    workers: int
    """Connected consumers."""
    consumers: dict[str, int] = {}
    """All consumers, by interface."""
    delivered: int
    redelivered: int
    expired: int
    dead: int
    settled: dict[str, int]
    """Messages by OUTCOMES."""
    returned: int
    deleted: int


class QueueStatsTable:
    """All counters of a node."""

    def __init__(self, most: int = MAX_TRACKED_QUEUES) -> None:
        self._most = most
        self._held: dict[tuple[str, str], QueueStats] = {}

    def __iter__(self) -> Iterator[QueueStats]:
        return iter(self._held.values())

    def open(self, group_id: str, partition: TopicPartition) -> QueueStats:
        """The counters for one more driver, until `close`."""
        name = group_id, partition.topic
        stats = self._held.get(name)
        if stats is None:
            self._evict()
            name = name if len(self._held) < self._most else NO_NAME
            stats = self._held.setdefault(name, QueueStats(*name))
        stats.drivers += 1
        stats.remove_idle(partition.partition)
        return stats

    def find(self, group_id: str, topic: str) -> QueueStats | None:
        return self._held.get((group_id, topic))

    def _evict(self) -> None:
        """Removes the oldest without a driver."""
        if len(self._held) >= self._most:
            unused = (name for name, stats in self._held.items() if not stats.drivers and name != NO_NAME)
            if (oldest := next(unused, None)) is not None:
                del self._held[oldest]

    def close(self, stats: QueueStats) -> None:
        stats.drivers -= 1

    def forget_idle(self, group_id: str, partition: TopicPartition) -> None:
        """Its backlog is another one from now on."""
        if (stats := self._held.get((group_id, partition.topic))) is not None:
            stats.remove_idle(partition.partition)

    def forget(self, group_id: str, topic: str) -> None:
        """Its topic was deleted."""
        self._held.pop((group_id, topic), None)


def figures_of(
    stats: QueueStats, backlog: Backlog | None, consumers: Collection[ConsumerIdentity]
) -> QueueFigures:
    counts = Counter(one.interface for one in consumers)
    return QueueFigures(
        group_id=stats.group_id,
        topic=stats.topic,
        backlog=backlog,
        workers=len(consumers) - counts[Interface.HTTP],
        consumers={one.value: counts[one] for one in Interface},
        delivered=stats.delivered,
        redelivered=stats.redelivered,
        expired=stats.expired,
        dead=stats.dead,
        returned=stats.returned,
        deleted=sum(stats.deleted.values()),
        settled={name: stats.kinds[kind] for kind, name in OUTCOMES.items()},
    )
