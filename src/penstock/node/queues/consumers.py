"""The consumers of one queue on one partition, over all interfaces, for people who want to see who does the work.

A consumer over Kafka or WebSocket is listed while it is connected. A consumer over HTTP has no connection: it is listed
while it holds leases, and for RECENT_MS after its last request (which waits for half of that time at most).
HTTP requests without a consumer name get a new name each; they are listed together, by address and user agent.

The list only informs: leases and locks do not depend on it. Bounded: connections and sessions have limits of their own
(config/limits.py), HTTP consumers beyond MAX_RECENT are forgotten, oldest first, and texts are cut.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from hashlib import blake2b

import msgspec

from penstock.node.calls.messages.queues import QueueConsumer
from penstock.queue.values import AckKind, Acknowledgement

RECENT_MS = 60_000
"""A caller that polls waits up to 30 s in one request, and does its work between two of them."""
MAX_RECENT = 1_000
MAX_UNNAMED = 1_000
"""HTTP requests without a consumer name whose leases are counted for one address."""
MAX_TEXT = 100
"""Characters of a name or an address; clients choose their names."""
LISTED_MAX = 1_000
"""Consumers in one description: those with the oldest connections."""

SLICE_MS = 5_000
SLICES = 12
WINDOW_MS = SLICE_MS * SLICES

UNSETTLED = frozenset({AckKind.RENEW, AckKind.GAP})
"""Kinds of acknowledgements that are not the end of any work."""

HeldBy = Callable[[str], int]
"""How many messages a member holds."""


class Interface(StrEnum):
    KAFKA = "kafka"
    WEBSOCKET = "websocket"
    HTTP = "http"


class ConsumerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """`consumer_id` is unique in the cluster; `name` is for people, and several consumers may have the same."""

    consumer_id: str
    name: str
    address: str
    interface: Interface
    since_ms: int

    @classmethod
    def of(
        cls, interface: Interface, consumer_id: str, *, name: str, address: str, since_ms: int
    ) -> "ConsumerIdentity":
        """The same with texts of a bounded length; without a name, its id is shown."""
        return cls(
            consumer_id=consumer_id,
            name=shortened(name or consumer_id),
            address=shortened(address),
            interface=interface,
            since_ms=since_ms,
        )


def shortened(text: str) -> str:
    """At most MAX_TEXT characters, all printable: it is shown in terminals."""
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return cut if cut.isprintable() else "".join(one if one.isprintable() else "?" for one in cut)


def bounded_id(text: str) -> str:
    """The id, or the beginning of a longer one with a hash: members of share groups choose their ids."""
    if len(text) <= MAX_TEXT:
        return text
    digest = blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{text[: MAX_TEXT - len(digest) - 1]}…{digest}"


class RateWindow:
    """Counts over the last minute, in slices of SLICE_MS."""

    __slots__ = ("_counts", "_latest")

    def __init__(self) -> None:
        self._counts = [0] * SLICES
        self._latest = 0
        """The number of the slice that was counted last: time divided by SLICE_MS."""

    def add(self, count: int, now_ms: int) -> None:
        self._advance(now_ms)
        self._counts[self._latest % SLICES] += count

    def per_second(self, since_ms: int, now_ms: int) -> float:
        """`since_ms`: nothing was counted before. A rate over less than a second would only show noise."""
        self._advance(now_ms)
        seconds = max(1_000, min(WINDOW_MS, now_ms - since_ms)) / 1_000
        return round(sum(self._counts) / seconds, 3)

    def _advance(self, now_ms: int) -> None:
        latest = now_ms // SLICE_MS
        for number in range(max(self._latest + 1, latest - SLICES + 1), latest + 1):
            self._counts[number % SLICES] = 0
        self._latest = max(self._latest, latest)


class _Entry:
    """One consumer."""

    __slots__ = ("identity", "members", "rate", "seen_ms")

    def __init__(self, identity: ConsumerIdentity) -> None:
        self.identity = identity
        self.members: dict[str, None] = {}
        """The names under which it holds leases."""
        self.rate = RateWindow()
        self.seen_ms: int | None = None
        """Its last request, if it has no connection."""

    def held(self, held_by: HeldBy) -> int:
        return sum(map(held_by, self.members))


class QueueConsumers:
    """Time and leases are the caller's."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        """By consumer id."""
        self._by_member: dict[str, _Entry] = {}
        self._settled = RateWindow()
        self._since_ms: int | None = None

    @property
    def count(self) -> int:
        """How many are known. `listed` and `identities` forget those that have gone."""
        return len(self._entries)

    @property
    def connected(self) -> list[str]:
        """The ids of connected consumers."""
        return [name for name, entry in self._entries.items() if entry.seen_ms is None]

    def name_of(self, member: str) -> str | None:
        """The name of a consumer that is listed."""
        entry = self._by_member.get(member)
        return entry.identity.name if entry is not None else None

    def attach(self, identity: ConsumerIdentity) -> None:
        """It is connected until `detach`, and holds leases under its id."""
        member = identity.consumer_id
        if member not in self._by_member:
            self._by_member[member] = self._entry(member, identity)

    def detach(self, member: str) -> None:
        entry = self._by_member.pop(member, None)
        if entry is None:
            return
        entry.members.pop(member, None)
        if not entry.members:
            self._entries.pop(entry.identity.consumer_id, None)

    def seen(self, member: str, identity: ConsumerIdentity, now_ms: int, held_by: HeldBy) -> None:
        """A consumer without a connection has sent a request."""
        before = self._by_member.get(member)
        if before is not None and before.identity.consumer_id != identity.consumer_id:
            self.detach(member)  # it uses the name that its first, unnamed request got
        entry = self._by_member[member] = self._entry(member, identity)
        entry.identity = msgspec.structs.replace(entry.identity, address=identity.address)
        entry.seen_ms = now_ms
        if len(entry.members) > MAX_UNNAMED:
            self._drop_members(entry, held_by)
        self._entries[identity.consumer_id] = self._entries.pop(identity.consumer_id)  # the last one now
        if len(self._entries) > MAX_RECENT:
            self._forget_oldest()

    def _entry(self, member: str, identity: ConsumerIdentity) -> _Entry:
        entry = self._entries.setdefault(identity.consumer_id, _Entry(identity))
        entry.members[member] = None
        return entry

    def _drop_members(self, entry: _Entry, held_by: HeldBy) -> None:
        """Those that hold nothing, and the oldest beyond the limit."""
        outdated = [one for one in entry.members if not held_by(one)]
        outdated = outdated[:-1] or list(entry.members)[: MAX_UNNAMED // 2]
        for member in outdated:
            del entry.members[member]
            self._by_member.pop(member, None)

    def _forget_oldest(self) -> None:
        recent = [name for name, entry in self._entries.items() if entry.seen_ms is not None]
        for name in recent[: max(0, len(recent) - MAX_RECENT)]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        for member in self._entries.pop(name).members:
            self._by_member.pop(member, None)

    def count_settled(self, member: str, batches: Iterable[Acknowledgement], now_ms: int) -> None:
        count = sum(map(_settled, batches))
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        self._settled.add(count, now_ms)
        if (entry := self._by_member.get(member)) is not None:
            entry.rate.add(count, now_ms)

    def rate(self, now_ms: int) -> float:
        """Messages that all consumers settled, per second: also those that have gone since."""
        return 0.0 if self._since_ms is None else self._settled.per_second(self._since_ms, now_ms)

    def identities(self, now_ms: int, held_by: HeldBy) -> list[ConsumerIdentity]:
        """The consumers that are listed now; others are forgotten."""
        for name, entry in list(self._entries.items()):
            if entry.seen_ms is not None and now_ms - entry.seen_ms > RECENT_MS and not entry.held(held_by):
                self._remove(name)
        return [entry.identity for entry in self._entries.values()]

    def listed(self, now_ms: int, held_by: HeldBy, most: int) -> list[QueueConsumer]:
        """At most so many, oldest first."""
        oldest = sorted(self.identities(now_ms, held_by), key=lambda one: (one.since_ms, one.consumer_id))
        return [self._row(one, now_ms, held_by) for one in oldest[: max(0, min(most, LISTED_MAX))]]

    def _row(self, one: ConsumerIdentity, now_ms: int, held_by: HeldBy) -> QueueConsumer:
        entry = self._entries[one.consumer_id]
        return QueueConsumer(
            bounded_id(one.consumer_id),
            one.name,
            one.address,
            one.interface.value,
            one.since_ms,
            entry.held(held_by),
            entry.rate.per_second(one.since_ms, now_ms),
            entry.seen_ms,
        )


def _settled(batch: Acknowledgement) -> int:
    if len(batch.kinds) == 1:
        return 0 if batch.kinds[0] in UNSETTLED else batch.last - batch.first + 1
    return len(batch.kinds) - sum(batch.kinds.count(kind) for kind in UNSETTLED)


# --- one consumer on several partitions and nodes


class MergedConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a queue, whichever partitions and nodes it works on."""

    consumer_id: str
    name: str
    address: str
    interface: str
    since_ms: int
    leases: int
    rate: float
    partitions: list[tuple[str, int]]
    nodes: list[int]
    leases_by_topic: dict[str, int] = {}
    seen_ms: int | None = None


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as the leader of one partition lists it."""

    node: int
    topic: str
    partition: int
    consumer: QueueConsumer


def merged(sightings: Iterable[Sighting]) -> list[MergedConsumer]:
    """One row for each consumer, oldest first.

    Rows with one id are one consumer. A worker over WebSocket has a connection, and so an id, on each node: its
    connections are one consumer if they have the same name and host. If several workers of a host have the same name,
    the oldest connections of each node go together, so that the number of consumers is right, and all sums are."""
    by_id: dict[str, list[Sighting]] = {}
    for one in sightings:
        by_id.setdefault(one.consumer.consumer_id, []).append(one)
    groups: dict[object, list[Sighting]] = {}
    taken: dict[object, int] = {}
    for rows in sorted(by_id.values(), key=lambda rows: rows[0].consumer.since_ms):
        worker = _worker(rows)
        at = taken[worker, rows[0].node] = taken.get((worker, rows[0].node), 0) + 1
        groups.setdefault((worker, at), []).extend(rows)
    found = map(_merged, groups.values())
    return sorted(found, key=lambda one: (one.since_ms, one.consumer_id))


def _worker(rows: Sequence[Sighting]) -> object:
    consumer = rows[0].consumer
    if consumer.interface != Interface.WEBSOCKET or consumer.name == consumer.consumer_id:
        return consumer.consumer_id
    return consumer.name, consumer.address.rpartition(":")[0]


def _merged(rows: Sequence[Sighting]) -> MergedConsumer:
    first = min((one.consumer for one in rows), key=lambda one: (one.since_ms, one.consumer_id))
    leases: dict[str, int] = {}
    for one in rows:
        leases[one.topic] = leases.get(one.topic, 0) + one.consumer.leases
    return MergedConsumer(
        consumer_id=first.consumer_id,
        name=first.name,
        address=first.address,
        interface=first.interface,
        since_ms=first.since_ms,
        leases=sum(leases.values()),
        leases_by_topic=leases,
        rate=round(sum(one.consumer.rate for one in rows), 3),
        partitions=sorted({(one.topic, one.partition) for one in rows}),
        nodes=sorted({one.node for one in rows}),
        seen_ms=max((one.consumer.seen_ms for one in rows if one.consumer.seen_ms is not None), default=None),
    )
