"""The state of idempotent producers, by which a log never stores a retry twice.

A producer (id, epoch) numbers its records; each batch must begin one after the last. The last REMEMBERED_BATCHES
batches are kept because a client may have that many requests in flight (max.in.flight is at most 5 with idempotence)
and may repeat any of them: the answer to a repetition has the offsets of the original. The rules are Kafka's:

 epoch lower than known                      INVALID_PRODUCER_EPOCH: a newer producer uses this id
 epoch higher, first sequence not 0          OUT_OF_ORDER_SEQUENCE_NUMBER
 same epoch, one of the remembered batches   a duplicate
 same epoch, not the next sequence           OUT_OF_ORDER_SEQUENCE_NUMBER
 unknown id                                  any sequence is accepted: retention or expiry may have removed the rest
 not transactional, in a transaction         INVALID_TXN_STATE

The marker that ends a transaction (`transactions`) comes from the transaction's coordinator, and has no sequence:

 epoch lower than known                      INVALID_PRODUCER_EPOCH
 epoch higher                                fences the producer; the next batch begins with sequence 0
 an older coordinator than known             TRANSACTION_COORDINATOR_FENCED

The state follows from the log batch by batch, so replaying the log rebuilds it; snapshots shorten the replay and keep
the state of records that retention removed.
"""

from collections import deque
from typing import NamedTuple

import msgspec

from penstock.batch import BatchHeader, Buffer, EndMarker, read_marker
from penstock.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT
from penstock.errors import ErrorCode, KafkaError
from penstock.log.transactions import Transactions
from penstock.types import NO_TIMESTAMP, Producer

REMEMBERED_BATCHES = 5
MAX_PRODUCERS = 10_000
"""Per partition, about 1 KB each. Each client instance takes a new id, so without a bound a client in a crash loop
would fill the memory until expiry; past the bound the producer that has been silent longest is forgotten. A producer
with an open transaction is not: its epoch keeps old instances out. There are at most MAX_OPEN_TRANSACTIONS of those."""
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
NO_COORDINATOR = -1
NO_SEQUENCE = -1
NO_TRANSACTION = -1


class TransactionRows(msgspec.Struct, array_like=True, frozen=True):
    """The transactions of a log in a snapshot. Older snapshots have none."""

    open: list[tuple[int, int]] = []
    """Producer id and first offset of each open transaction."""
    coordinator_epochs: list[tuple[int, int]] = []
    """Producer id, and the highest coordinator epoch of its markers."""
    aborted: bytes = b""
    """The index of aborted transactions (`AbortedIndex.encode`)."""


class ProducerFacts(NamedTuple):
    """One producer, as DescribeProducers tells it; -1 where there is nothing to tell."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class ProducerEntry:
    """One producer."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen_ms")

    def __init__(self, epoch: int, last_seen_ms: int, coordinator_epoch: int = NO_COORDINATOR) -> None:
        self.epoch = epoch
        self.batches: deque[BatchMark] = deque(maxlen=REMEMBERED_BATCHES)
        self.last_seen_ms = last_seen_ms
        self.coordinator_epoch = coordinator_epoch
        """The highest of its markers."""


class ProducerStates:
    """All producers of one partition, the longest silent first, and their transactions."""

    __slots__ = ("_entries", "_max_producers", "transactions")

    def __init__(self, max_producers: int = MAX_PRODUCERS) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._max_producers = max_producers
        self.transactions = Transactions()

    def __len__(self) -> int:
        return len(self._entries)

    # --- a leader's decisions

    def check(self, header: BatchHeader) -> BatchMark | None:
        """None if the batch is the next one, the original if it is a repetition; raises if it is neither."""
        entry = self._entries.get(header.producer_id)
        if entry is not None:
            first, epoch = header.base_sequence, header.producer_epoch
            if epoch == entry.epoch:
                last_known = entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE
                if first != (last_known + 1) & SEQUENCE_MASK:
                    return _find_repeated(entry, header, last_known)
            elif epoch < entry.epoch:
                raise _fenced(header.producer_id, epoch, entry)
            elif first != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} began epoch {epoch} with sequence {first}: expected 0",
                )
        if header.attributes & TRANSACTIONAL_BIT:
            self.transactions.check_room(header.producer_id)
        elif header.producer_id in self.transactions.open:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, and this batch is not transactional",
            )
        return None

    def check_marker(self, header: BatchHeader, marker: EndMarker) -> None:
        """Refuses a marker of a fenced producer, and of a coordinator that another one has replaced."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        if header.producer_epoch < entry.epoch:
            raise _fenced(header.producer_id, header.producer_epoch, entry)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {header.producer_id}: a marker of coordinator epoch {marker.coordinator_epoch} after one "
                f"of {entry.coordinator_epoch}",
            )

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this producer is open, which it began with this epoch."""
        if producer_id not in self.transactions.open:
            return False
        entry = self._entries.get(producer_id)
        return entry is not None and entry.epoch == epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        """The highest of this producer's markers; NO_COORDINATOR if none is known."""
        entry = self._entries.get(producer_id)
        return NO_COORDINATOR if entry is None else entry.coordinator_epoch

    def next_sequence(self, producer: Producer) -> int:
        """The sequence with which the leader's own coordinator continues for this producer: the commits of offsets in a
        transaction come without one. KafkaError as for a batch."""
        entry = self._entries.get(producer.producer_id)
        self.transactions.check_room(producer.producer_id)
        if entry is None or producer.epoch > entry.epoch:
            return 0
        if producer.epoch < entry.epoch:
            raise _fenced(producer.producer_id, producer.epoch, entry)
        return (entry.batches[-1].last_sequence + 1) & SEQUENCE_MASK if entry.batches else 0

    # --- from the batches

    def enter(self, header: BatchHeader, batch: Buffer, now_ms: int, *, is_committed: bool = False) -> None:
        """The log has this stored batch, which has a producer; a control batch that is no marker changes nothing.
        `is_committed`: it cannot be lost any more."""
        if not header.attributes & CONTROL_BIT:
            self.record(header, header.base_offset, now_ms)
        elif (marker := read_marker(batch, header)) is not None:
            self.record_marker(header, header.base_offset, marker, now_ms, is_committed=is_committed)

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """The batch is in the log at `base_offset`."""
        producer_id = header.producer_id
        entry = self._entries.pop(producer_id, None)
        if entry is None:
            entry = ProducerEntry(header.producer_epoch, now_ms)
        elif entry.epoch != header.producer_epoch:
            entry = ProducerEntry(header.producer_epoch, now_ms, entry.coordinator_epoch)
        self._entries[producer_id] = entry
        entry.last_seen_ms = now_ms
        last = header.base_sequence + header.last_offset_delta & SEQUENCE_MASK
        last_offset = base_offset + header.last_offset_delta
        mark = BatchMark(header.base_sequence, last, base_offset, last_offset, header.max_timestamp)
        entry.batches.append(mark)
        if header.attributes & TRANSACTIONAL_BIT:
            self.transactions.begin(producer_id, base_offset)
        if len(self._entries) > self._max_producers:
            self._forget_silent()

    def record_marker(
        self,
        header: BatchHeader,
        base_offset: int,
        marker: EndMarker,
        now_ms: int,
        *,
        is_committed: bool = False,
    ) -> None:
        """The marker is in the log at `base_offset`."""
        producer_id, epoch, coordinator_epoch = (
            header.producer_id,
            header.producer_epoch,
            marker.coordinator_epoch,
        )
        entry = self._entries.pop(producer_id, None)
        if entry is None:
            entry = ProducerEntry(epoch, now_ms, coordinator_epoch)
        elif epoch > entry.epoch:
            entry = ProducerEntry(epoch, now_ms, max(entry.coordinator_epoch, coordinator_epoch))
        self._entries[producer_id] = entry
        entry.last_seen_ms = now_ms
        entry.coordinator_epoch = max(entry.coordinator_epoch, coordinator_epoch)
        self.transactions.end(producer_id, base_offset, commit=marker.commit, is_committed=is_committed)
        if len(self._entries) > self._max_producers:
            self._forget_silent()

    def _forget_silent(self) -> None:
        """Forgets the producer that has been silent longest. Those with an open transaction go to the back of the line,
        so that the next search does not meet them again."""
        pinned = self.transactions.open
        for _ in range(len(self._entries)):
            producer_id = next(iter(self._entries))
            entry = self._entries.pop(producer_id)
            if producer_id not in pinned:
                return
            self._entries[producer_id] = entry

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> None:
        expired = []
        for producer_id, entry in self._entries.items():
            if entry.last_seen_ms == UNSEEN:
                entry.last_seen_ms = now_ms
            elif now_ms - entry.last_seen_ms >= expiration_ms and producer_id not in self.transactions.open:
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
            entry = _merged(self._entries.get(producer_id), rebuilt._entries.get(producer_id), offset)
            if entry is not None:
                entries[producer_id] = entry
        self._entries = dict(sorted(entries.items(), key=lambda item: _last_base_offset(item[1])))
        self.transactions.truncate(offset, rebuilt.transactions)

    # --- in snapshots, and for people

    def rows(self) -> list[ProducerRow]:
        return [
            (producer_id, entry.epoch, entry.last_seen_ms, list(entry.batches))
            for producer_id, entry in self._entries.items()
        ]

    def transaction_rows(self, *, with_aborted: bool = True) -> TransactionRows:
        transactions = self.transactions
        epochs = [(pid, entry.coordinator_epoch) for pid, entry in self._entries.items()]
        return TransactionRows(
            list(transactions.open.items()),
            [(pid, epoch) for pid, epoch in epochs if epoch != NO_COORDINATOR],
            transactions.aborted.encode() if with_aborted else b"",
        )

    def restore(self, rows: list[ProducerRow], transactions: TransactionRows) -> None:
        self._entries.clear()
        for producer_id, epoch, last_seen_ms, batches in rows:
            entry = self._entries[producer_id] = ProducerEntry(epoch, last_seen_ms)
            entry.batches.extend(BatchMark(*batch) for batch in batches)
        for producer_id, coordinator_epoch in transactions.coordinator_epochs:
            if producer_id in self._entries:
                self._entries[producer_id].coordinator_epoch = coordinator_epoch
        self.transactions.restore(transactions.open, transactions.aborted)

    def facts(self) -> list[ProducerFacts]:
        """All producers, for DescribeProducers."""
        first_offsets = self.transactions.open
        return [
            ProducerFacts(
                producer_id,
                entry.epoch,
                entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE,
                entry.batches[-1].timestamp if entry.batches else NO_TIMESTAMP,
                entry.coordinator_epoch,
                first_offsets.get(producer_id, NO_TRANSACTION),
            )
            for producer_id, entry in self._entries.items()
        ]


def _find_repeated(entry: ProducerEntry, header: BatchHeader, last_known: int) -> BatchMark:
    first, last = header.base_sequence, header.last_sequence
    for mark in entry.batches:
        if mark.first_sequence == first and mark.last_sequence == last:
            return mark
    raise KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {first} after {last_known}",
    )


def _fenced(producer_id: int, epoch: int, entry: ProducerEntry) -> KafkaError:
    message = f"producer {producer_id} has epoch {epoch}, and the current epoch is {entry.epoch}"
    return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)


def _merged(known: ProducerEntry | None, rebuilt: ProducerEntry | None, offset: int) -> ProducerEntry | None:
    """One producer after a truncation; None if all that was known of it is removed. The epoch and the coordinator epoch
    that markers have set are in `rebuilt`."""
    both = [entry for entry in (known, rebuilt) if entry is not None]
    batches = {(entry.epoch, mark) for entry in both for mark in entry.batches if mark.base_offset < offset}
    epochs = [epoch for epoch, _ in batches] + ([rebuilt.epoch] if rebuilt is not None else [])
    if not epochs:
        return None
    epoch = max(epochs)
    merged = ProducerEntry(epoch, max(entry.last_seen_ms for entry in both), both[-1].coordinator_epoch)
    merged.batches.extend(sorted((m for e, m in batches if e == epoch), key=lambda m: m.base_offset))
    return merged


def _last_base_offset(entry: ProducerEntry) -> int:
    """Producers of which only a marker is known count as the longest silent."""
    return entry.batches[-1].base_offset if entry.batches else -1
