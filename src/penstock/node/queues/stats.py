"""What queues have done on this node, as numbers for monitoring: one QueueStats for each queue and topic.

Whoever drives a queue on a partition adds to the tally of its queue and topic, per batch of messages and never per
message. What only has to be looked at is looked at when somebody scrapes: a few counters for each partition.

Bounded: at most MAX_TALLIES queues are counted by name. When there are more, those that nobody drives any more make
room; if all are at work, the others are counted together under no name. Counters begin anew when their queue has made
room, when its topic is deleted, and when the node starts.

A queue that nobody has asked for anything for minutes is not driven any more, and nobody works on it then: what was
there when it was *parked* is still there, and what was appended since is available. A backlog without consumers is what
monitoring is for.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from penstock.queue import AckKind, Acquired, DeadLetter
from penstock.types import Isolation, Offset, Term, TopicPartition

MAX_TALLIES = 1_000
"""Each is some fifteen series: what Prometheus takes from one target without a thought."""
NO_NAME = ("", "")
"""Queue and topic of the tally of all that have none of their own: no group and no topic has this name."""

OUTCOMES = {
    AckKind.ACCEPT: "accepted",
    AckKind.RELEASE: "released",
    AckKind.REJECT: "rejected",
    AckKind.GAP: "gap",
}
"""What a settlement can be. A renewal settles nothing."""


class Backlog(NamedTuple):
    """What there is to do, as `penstock queues describe` counts it."""

    available: int = 0
    leased: int = 0
    deferred: int = 0
    waiting: int = 0
    dying: int = 0

    def plus(self, other: "Backlog") -> "Backlog":
        return Backlog(
            self.available + other.available,
            self.leased + other.leased,
            self.deferred + other.deferred,
            self.waiting + other.waiting,
            self.dying + other.dying,
        )


class Led(Protocol):
    """A partition, as far as it matters here."""

    @property
    def name(self) -> TopicPartition: ...
    @property
    def serves(self) -> bool: ...
    @property
    def term(self) -> Term: ...
    def end_for(self, isolation: Isolation) -> Offset: ...


class Parked(NamedTuple):
    """A queue on a partition when nobody drove it any more."""

    partition: Led
    isolation: Isolation
    term: int
    end_offset: int
    backlog: Backlog

    @property
    def counts(self) -> bool:
        """Another leader may have worked on it since."""
        return self.partition.serves and self.partition.term == self.term

    @property
    def now(self) -> Backlog:
        since = max(0, self.partition.end_for(self.isolation) - self.end_offset)
        return self.backlog._replace(available=self.backlog.available + since)


class QueueStats:
    """What has happened to one queue on one topic, on the partitions that this node leads."""

    __slots__ = (
        "dead",
        "delivered",
        "drivers",
        "expired",
        "group_id",
        "kinds",
        "parked",
        "redelivered",
        "returned",
        "topic",
    )

    def __init__(self, group_id: str, topic: str) -> None:
        self.group_id = group_id
        self.topic = topic
        self.drivers = 0
        """How many partitions add to it now."""
        self.delivered = 0
        self.redelivered = 0
        """Of these: not for the first time."""
        self.expired = 0
        """Messages whose lease ran out."""
        self.returned = 0
        """Messages that nobody had begun: handed out, and then as if they had not been."""
        self.dead = 0
        self.kinds = [0] * (max(AckKind) + 1)
        """Messages of which that was said and taken, by AckKind."""
        self.parked: dict[int, Parked] = {}
        """By partition."""

    def handed_out(self, acquired: Iterable[Acquired]) -> None:
        for first, last, deliveries in acquired:
            self.delivered += last - first + 1
            if deliveries > 1:
                self.redelivered += last - first + 1

    def settled(self, first: int, last: int, kinds: bytes) -> None:
        """What was said of a range: one kind for all, or one for each."""
        if len(kinds) == 1:
            self.kinds[kinds[0]] += last - first + 1
            return
        for kind in AckKind:
            self.kinds[kind] += kinds.count(kind)

    def handed_back(self, first: int, last: int) -> None:
        self.returned += last - first + 1

    def buried(self, letter: DeadLetter) -> None:
        self.dead += letter.last - letter.first + 1

    def park(self, partition: Led, isolation: Isolation, backlog: Backlog) -> None:
        """Nobody drives it there any more, because nobody asked."""
        if (self.group_id, self.topic) != NO_NAME:
            parked = Parked(partition, isolation, partition.term, partition.end_for(isolation), backlog)
            self.parked[partition.name.partition] = parked

    def waken(self, partition: int) -> None:
        self.parked.pop(partition, None)

    def look_over(self) -> None:
        """Lets go of what is led elsewhere, or was deleted."""
        for index in [index for index, parked in self.parked.items() if not parked.counts]:
            del self.parked[index]


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One queue on one topic, at one moment. Numbers and names only: it outlives what it was taken from."""

    group_id: str
    topic: str
    backlog: Backlog | None
    """None: nobody has used it since this node leads its partitions, so that nobody has counted."""
    workers: int
    delivered: int
    redelivered: int
    expired: int
    dead: int
    settled: dict[str, int]
    """Messages by OUTCOMES."""
    returned: int


class QueueStatsTable:
    """All tallies of a node."""

    def __init__(self, most: int = MAX_TALLIES) -> None:
        self._most = most
        self._held: dict[tuple[str, str], QueueStats] = {}

    def __iter__(self) -> Iterator[QueueStats]:
        return iter(self._held.values())

    def begin(self, group_id: str, place: TopicPartition) -> QueueStats:
        """The tally to which one more driver adds, until `end`."""
        name = group_id, place.topic
        tally = self._held.get(name)
        if tally is None:
            self._make_room()
            name = name if len(self._held) < self._most else NO_NAME
            tally = self._held.setdefault(name, QueueStats(*name))
        tally.drivers += 1
        tally.waken(place.partition)
        return tally

    def _make_room(self) -> None:
        """One that nobody drives goes; the oldest, if there are several."""
        if len(self._held) >= self._most:
            unused = (name for name, tally in self._held.items() if not tally.drivers and name != NO_NAME)
            if (oldest := next(unused, None)) is not None:
                del self._held[oldest]

    def end(self, tally: QueueStats) -> None:
        tally.drivers -= 1

    def forget(self, group_id: str, topic: str) -> None:
        """Its topic was deleted."""
        self._held.pop((group_id, topic), None)


def figures_of(tally: QueueStats, backlog: Backlog | None, workers: int) -> QueueFigures:
    return QueueFigures(
        group_id=tally.group_id,
        topic=tally.topic,
        backlog=backlog,
        workers=workers,
        delivered=tally.delivered,
        redelivered=tally.redelivered,
        expired=tally.expired,
        dead=tally.dead,
        returned=tally.returned,
        settled={name: tally.kinds[kind] for kind, name in OUTCOMES.items()},
    )
