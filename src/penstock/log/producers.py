"""The state of idempotent producers, by which a log never stores a retry twice.

A producer (id, epoch) numbers its records; each batch must begin one after the last. The last REMEMBERED_BATCHES
batches are kept because a client may have that many requests in flight (max.in.flight is at most 5 with idempotence)
and may repeat any of them: the answer to a repetition has the offsets of the original. The rules are Kafka's:

 epoch lower than known                      INVALID_PRODUCER_EPOCH: a newer producer uses this id
 epoch higher, first sequence not 0          OUT_OF_ORDER_SEQUENCE_NUMBER
 same epoch, one of the remembered batches   a duplicate
 same epoch, not the next sequence           OUT_OF_ORDER_SEQUENCE_NUMBER
 unknown id                                  any sequence is accepted: retention or expiry may have removed the rest

The state follows from the log batch by batch, so replaying the log rebuilds it; snapshots shorten the replay and keep
the state of records that retention removed.
"""

from collections import deque
from typing import NamedTuple

from penstock.batch import BatchHeader
from penstock.errors import ErrorCode, KafkaError

REMEMBERED_BATCHES = 5
MAX_PRODUCERS = 10_000
"""Per partition, about 1 KB each. Each client instance takes a new id, so without a bound a client in a crash loop
would fill the memory until expiry; past the bound the producer that has been silent longest is forgotten."""
EXPIRATION_MS = 86_400_000
"""Kafka's producer.id.expiration.ms."""
SEQUENCE_MASK = 0x7FFFFFFF
UNSEEN = -1
"""Last seen before this process started: the time counts from the first expiry check."""


class BatchMark(NamedTuple):
    """One remembered batch."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


ProducerRow = tuple[int, int, int, list[tuple[int, int, int, int, int]]]
"""A producer in a snapshot: its id, epoch, when it was last seen (ms), remembered batches."""


class ProducerEntry:
    """One producer."""

    __slots__ = ("batches", "epoch", "last_seen_ms")

    def __init__(self, epoch: int, last_seen_ms: int) -> None:
        self.epoch = epoch
        self.batches: deque[BatchMark] = deque(maxlen=REMEMBERED_BATCHES)
        self.last_seen_ms = last_seen_ms


class ProducerStates:
    """All producers of one partition, the longest silent first."""

    __slots__ = ("_entries", "_max_producers")

    def __init__(self, max_producers: int = MAX_PRODUCERS) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._max_producers = max_producers

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, header: BatchHeader) -> BatchMark | None:
        """None if the batch is the next one, the original if it is a repetition; raises if it is neither."""
        entry = self._entries.get(header.producer_id)
        if entry is None or header.control:
            return None
        first, epoch = header.base_sequence, header.producer_epoch
        if epoch == entry.epoch:
            if not entry.batches or first == (entry.batches[-1].last_sequence + 1) & SEQUENCE_MASK:
                return None
            last = header.last_sequence
            for mark in entry.batches:
                if mark.first_sequence == first and mark.last_sequence == last:
                    return mark
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} after {entry.batches[-1].last_sequence}",
            )
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {epoch}, and the current epoch is {entry.epoch}",
            )
        if first != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} began epoch {epoch} with sequence {first}: expected 0",
            )
        return None

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """The batch is in the log at `base_offset`."""
        producer_id = header.producer_id
        entry = self._entries.pop(producer_id, None)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = ProducerEntry(header.producer_epoch, now_ms)
        self._entries[producer_id] = entry
        entry.last_seen_ms = now_ms
        if header.base_sequence >= 0:
            last = header.base_sequence + header.last_offset_delta & SEQUENCE_MASK
            last_offset = base_offset + header.last_offset_delta
            mark = BatchMark(header.base_sequence, last, base_offset, last_offset, header.max_timestamp)
            entry.batches.append(mark)
        if len(self._entries) > self._max_producers:
            del self._entries[next(iter(self._entries))]

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> None:
        expired = []
        for producer_id, entry in self._entries.items():
            if entry.last_seen_ms == UNSEEN:
                entry.last_seen_ms = now_ms
            elif now_ms - entry.last_seen_ms >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._entries[producer_id]

    def ids(self) -> frozenset[int]:
        return frozenset(self._entries)

    def truncate(self, offset: int, rebuilt: "ProducerStates") -> None:
        """Removes batches from `offset` on. `rebuilt` is the state that the rest of the log gives: it has older batches
        that newer ones had displaced. It does not have batches of a deleted prefix; these stay."""
        entries: dict[int, ProducerEntry] = {}
        for producer_id in {**self._entries, **rebuilt._entries}:
            known = [other._entries.get(producer_id) for other in (self, rebuilt)]
            batches = {(e.epoch, mark) for e in known if e for mark in e.batches if mark.base_offset < offset}
            if batches:
                epoch = max(batches)[0]
                entry = entries[producer_id] = ProducerEntry(epoch, max(e.last_seen_ms for e in known if e))
                entry.batches.extend(
                    sorted((m for e, m in batches if e == epoch), key=lambda m: m.base_offset)
                )
        self._entries = dict(sorted(entries.items(), key=lambda item: item[1].batches[-1].base_offset))

    def rows(self) -> list[ProducerRow]:
        return [
            (producer_id, entry.epoch, entry.last_seen_ms, list(entry.batches))
            for producer_id, entry in self._entries.items()
        ]

    def restore(self, rows: list[ProducerRow]) -> None:
        self._entries.clear()
        for producer_id, epoch, last_seen_ms, batches in rows:
            entry = self._entries[producer_id] = ProducerEntry(epoch, last_seen_ms)
            entry.batches.extend(BatchMark(*batch) for batch in batches)
