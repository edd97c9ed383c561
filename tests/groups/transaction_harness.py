"""A harness for offsets in transactions: the whole log of a coordinator, with the transactions' records and markers."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.config import GroupSettings, Limits
from penstock.effects import Persist
from penstock.errors import ErrorCode
from penstock.groups import Coordinator
from penstock.groups.storage import OffsetKey, decode_key, decode_offset
from penstock.types import Producer, TopicPartition
from tests.groups.group_harness import GROUP, PROMPT, Client, GroupHarness, Metadata


class Stored(NamedTuple):
    """A record in the log; with a producer id, it is part of a transaction."""

    key: bytes
    value: bytes | None
    producer_id: int | None = None


class Marker(NamedTuple):
    """The end of a transaction in the log."""

    producer_id: int
    commit: bool


Entry = Stored | Marker
Offsets = dict[tuple[str, TopicPartition], int]


class TransactionHarness(GroupHarness):
    """One coordinator, its disk, and its log, in which markers are in order with the other writes."""

    def __init__(
        self,
        settings: GroupSettings = PROMPT,
        limits: Limits | None = None,
        now_ms: int = 1_000_000,
        metadata: Metadata | None = None,
    ) -> None:
        super().__init__(settings, limits, now_ms, metadata)
        self.log: list[Entry] = []
        self.queue: list[Persist | Marker] = []
        """Writes and markers that the disk has not completed."""

    def sets_off(self, persist: Persist) -> None:
        self.queue.append(persist)

    def ends(self, producer_id: int, *, commit: bool) -> None:
        """A marker is written, behind all that is under way."""
        self.queue.append(Marker(producer_id, commit))
        self.happens([])

    def flush(self, writes: int | None = None) -> None:
        """A full disk fails writes, and refuses markers: their coordinator repeats them."""
        ok = self.disk != "full"
        while self.queue and writes != 0:
            writes = None if writes is None else writes - 1
            first = self.queue.pop(0)
            if isinstance(first, Persist):
                self._store(first, ok)
            elif ok:
                self.log.append(first)
                ended = self.coordinator.transaction_ended(
                    self.now_ms, first.producer_id, commit=first.commit
                )
                self._collect(ended)

    def _store(self, persist: Persist, ok: bool) -> None:
        producer_id = None if persist.producer is None else persist.producer.producer_id
        if ok:
            self.log += [Stored(key, value, producer_id) for key, value in persist.records]
        self._collect(self.coordinator.persisted(self.now_ms, persist.id, ok))

    def restarted(self) -> "TransactionHarness":
        return self.loaded_from(self.log)

    def loaded_from(self, log: Iterable[Entry]) -> "TransactionHarness":
        """A new coordinator that has only these entries."""
        harness = TransactionHarness(self.settings, self.limits, self.now_ms, self.metadata)
        harness.log = list(log)
        replay(harness.coordinator, harness.log)
        harness.happens(harness.coordinator.loaded(harness.now_ms))
        harness._ids = self._ids
        return harness

    def unstable(self, group_id: str = GROUP) -> set[TopicPartition]:
        return self.coordinator.unstable_offsets(group_id)

    def numbers(self) -> Offsets:
        """All offsets that count, of all groups."""
        names = [listing.group_id for listing in self.coordinator.list_groups()]
        return {
            (name, partition): found.offset
            for name in names
            for partition, found in self.offsets(name).items()
        }


def replay(coordinator: Coordinator, log: Iterable[Entry]) -> None:
    for entry in log:
        if isinstance(entry, Marker):
            coordinator.replay_marker(entry.producer_id, commit=entry.commit)
        elif entry.producer_id is not None:
            coordinator.replay_pending(entry.producer_id, entry.key, entry.value)
        else:
            coordinator.replay(entry.key, entry.value)


def commits_in(
    client: Client, producer_id: int, offset: int, partition: int = 0, topic: str = "orders", **more: object
) -> ErrorCode | None:
    """The client's commit in the transaction of a producer; None while it is being written."""
    more.setdefault("generation", -1)
    client.commits(topic, partition, offset, producer=Producer(producer_id, 0), **more)
    return client.error if client.is_answered else None


# --- the rules, as plainly as they can be said


def counting(log: list[Entry]) -> list[Stored]:
    """The records that count, in the order of the log: those outside of transactions, and those whose transaction was
    committed."""
    return [
        entry
        for at, entry in enumerate(log)
        if isinstance(entry, Stored) and (entry.producer_id is None or _outcome(log, at, entry.producer_id))
    ]


def _outcome(log: list[Entry], at: int, producer_id: int) -> bool | None:
    """Whether the transaction of the record at this position was committed; None while it is open."""
    ends = (each for each in log[at:] if isinstance(each, Marker) and each.producer_id == producer_id)
    marker = next(ends, None)
    return None if marker is None else marker.commit


def expected_offsets(log: list[Entry]) -> Offsets:
    """The last record of each key that counts."""
    last = {entry.key: entry.value for entry in counting(log)}
    return {
        _name(key): decode_offset(value).offset for key, value in last.items() if value and _is_offset(key)
    }


def expected_unstable(log: list[Entry]) -> set[tuple[str, TopicPartition]]:
    """Keys with a record of an open transaction, behind which no record counts."""
    unstable: set[tuple[str, TopicPartition]] = set()
    counted = {id(entry) for entry in counting(log)}
    for at, entry in enumerate(log):
        if not isinstance(entry, Stored) or not _is_offset(entry.key):
            continue
        if id(entry) in counted:
            unstable.discard(_name(entry.key))
        elif entry.producer_id is not None and _outcome(log, at, entry.producer_id) is None:
            unstable.add(_name(entry.key))
    return unstable


def compacted(log: list[Entry]) -> list[Entry]:
    """What compaction leaves of a log: below the first open transaction, the last record of each key that counts, and
    all markers."""
    undecided = (
        at
        for at, entry in enumerate(log)
        if isinstance(entry, Stored)
        and entry.producer_id is not None
        and _outcome(log, at, entry.producer_id) is None
    )
    end = next(undecided, len(log))
    counted = {id(entry) for entry in counting(log)}
    last = {e.key: id(e) for e in log[:end] if isinstance(e, Stored) and id(e) in counted}
    clean = [e for e in log[:end] if isinstance(e, Marker) or last.get(e.key) == id(e)]
    return clean + log[end:]


def _is_offset(key: bytes) -> bool:
    return isinstance(decode_key(key), OffsetKey)


def _name(key: bytes) -> tuple[str, TopicPartition]:
    decoded = decode_key(key)
    assert isinstance(decoded, OffsetKey)
    return decoded.group_id, decoded.topic_partition
