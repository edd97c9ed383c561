"""The unacked batches of one partition, in order, with sequence numbers so that none is written twice or skipped.

    waiting ──take──> in flight ──acked──> gone
       ^                  │ failed
       └──── returned <───┘        once nothing is in flight any more

The broker accepts a batch only if its first sequence number follows the last one that it has seen of this producer. So:

1. Batches are sent in the order of their sequence numbers, and a batch that failed is sent again with the same number:
   if the broker had written it after all, it sees the number again and writes nothing.
2. After one batch has failed, those behind it fail too (OUT_OF_ORDER_SEQUENCE_NUMBER). Nothing is sent until all of
   them are answered; then all are sent again, in order.
3. A broker remembers the last five batches of a producer and no more. So, counted from the oldest that is not acked, at
   most five have been sent: those in flight, and those that were acked after one that failed (`_acked_ahead`).
4. All batches in flight went to one broker: another leader gets none before the old one has answered.
5. If the broker has lost the producer's state (it refuses the sequence number of the oldest batch in flight), the
   batches are sent again under a new producer id, numbered from 0: `restart`.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from penstock.batch import Record, build_batch, read_header, read_records
from penstock.batch.outgoing import renumber
from penstock.client.wire.settings import MAX_IN_FLIGHT
from penstock.types import TopicPartition

SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequence numbers wrap from 2**31 - 1 to 0."""


class Identity(NamedTuple):
    """The producer id and epoch of the batches."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A record batch in wire format."""

    data: bytes
    rows: int
    sequence: int
    deadline_s: float
    """By the monotonic clock: when its delivery times out."""
    index: int = -1
    """Its number among all batches of the queue. Halves have the number of the whole."""


class PartitionQueue:
    """Decides which batch is sent next. Does no I/O."""

    def __init__(self, tp: TopicPartition, identity: Identity, *, transactional: bool = False) -> None:
        self.topic_partition = tp
        self.transactional = transactional
        """The batches are part of a transaction: rule 5 does not apply, because the transaction must be aborted."""
        self.identity = identity
        self.next_sequence = 0
        self.not_before_s = 0.0
        """By the monotonic clock: the end of the pause after a failure."""
        self.tries = 0
        """Failures since the last batch that was acked."""
        self.retry_until_s = 0.0
        """By the monotonic clock: when retries end, counted from the first of them."""
        self.node_id = -1
        """The broker that has the batches in flight."""
        self.lost_state = False
        """The broker has lost the producer's state: rule 5."""
        self.restarted = False
        """There is a new producer id, under which nothing has been acked yet."""
        self._added = 0
        self._acked_ahead: list[int] = []
        """Rule 3: the indexes of batches that were acked while an earlier one had failed."""
        self._waiting: deque[Batch] = deque()
        self._in_flight: deque[Batch] = deque()
        self._returned: deque[Batch] = deque()

    @property
    def empty(self) -> bool:
        return not (self._waiting or self._in_flight or self._returned)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def head(self) -> Batch:
        """The next to be sent."""
        return self._waiting[0]

    def add(self, batch: Batch) -> None:
        """Takes a batch that carries `identity` and `next_sequence`."""
        assert batch.sequence == self.next_sequence
        self.next_sequence = (self.next_sequence + batch.rows) & SEQUENCE_MASK
        self._waiting.append(replace(batch, index=self._added))
        self._added += 1

    def has_work(self) -> bool:
        if self._returned or not self._waiting:
            return False
        oldest = (self._in_flight or self._waiting)[0].index
        gone = len(self._in_flight) + sum(1 for index in self._acked_ahead if index > oldest)
        return gone < MAX_IN_FLIGHT

    def may_go_to(self, node_id: int) -> bool:
        return not self._in_flight or self.node_id == node_id

    def take(self, node_id: int) -> Batch:
        batch = self._waiting.popleft()
        self._in_flight.append(batch)
        self.node_id = node_id
        return batch

    def acked(self) -> None:
        """The oldest in flight is written."""
        written = self._in_flight.popleft()
        if self._returned:
            self._acked_ahead.append(written.index)
        else:
            self._acked_ahead = [index for index in self._acked_ahead if index > written.index]
        self.tries = 0
        self.restarted = False
        self._settle()

    def is_first(self) -> bool:
        """Whether no failed batch is before the oldest in flight."""
        return not self._returned

    def failed(self) -> None:
        """The oldest in flight was not written."""
        self._returned.append(self._in_flight.popleft())
        self._settle()

    def failed_too_large(self) -> int:
        """The oldest in flight is too large: its records are sent again in two batches, with the same numbers.

        Returns by how many bytes the two batches are larger than the one.
        """
        whole = self._in_flight.popleft()
        parts = halves(whole, self.identity)
        self._returned.extend(parts)
        self._settle()
        return sum(len(part.data) for part in parts) - len(whole.data)

    def restart(self, identity: Identity) -> None:
        """Sends everything again with a new producer id (rule 5)."""
        assert not self._in_flight
        self.identity = identity
        self.next_sequence = 0
        self.lost_state = False
        self.restarted = True
        self._acked_ahead.clear()
        batches, self._waiting = self._waiting, deque()
        for batch in batches:
            self.add(numbered(batch, identity, self.next_sequence))

    def _settle(self) -> None:
        if self._returned and not self._in_flight:
            self._returned.extend(self._waiting)
            self._waiting, self._returned = self._returned, deque()


def numbered(batch: Batch, identity: Identity, sequence: int) -> Batch:
    data = renumber(
        batch.data, producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=sequence
    )
    return replace(batch, data=data, sequence=sequence)


def halves(batch: Batch, identity: Identity) -> list[Batch]:
    """Splits a batch of at least two records."""
    records = read_records(batch.data)
    middle = len(records) // 2
    header = read_header(batch.data)
    parts = []
    for start, part in ((0, records[:middle]), (middle, records[middle:])):
        sequence = (batch.sequence + start) & SEQUENCE_MASK
        data = batch_of(part, header.compression, identity, sequence, transactional=header.transactional)
        parts.append(replace(batch, data=data, rows=len(part), sequence=sequence))
    return parts


def batch_of(
    records: list[Record],
    compression: int,
    identity: Identity,
    sequence: int,
    *,
    transactional: bool = False,
) -> bytes:
    """A batch of these records, with offsets from 0."""
    return build_batch(
        [record._replace(offset=tp) for tp, record in enumerate(records)],
        leader_epoch=-1,
        compression=compression,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
