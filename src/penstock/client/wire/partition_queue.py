"""One partition's batches on their way out, in order, numbered so that none is written twice or skipped.

    waiting ──take──> in flight ──acked──> gone
       ^                  │ come_back
       └──── returned <───┘        once nothing is in flight any more

The broker takes a batch only if its first sequence number follows the last one it has seen of this producer. So:

1. Batches leave in the order of their sequence numbers, and a batch that comes back goes again with the same number:
   if the broker had written it after all, it sees the number again and writes nothing.
2. After one has come back, those behind it come back too (OUT_OF_ORDER_SEQUENCE_NUMBER). Nothing is sent until all are
   back; then all go again, in order.
3. A broker remembers the last five batches of a producer and no more. So from the oldest that is not acked on, five at
   most have gone: those in flight, and those that were acked past one that came back (`_holes`).
4. All that are in flight went to one broker: another leader gets none before the old one's answers are in.
5. A broker that has lost track of the producer (the oldest batch in flight is refused for its number) gets the
   batches again under a new producer id, counted from 0: `restart`.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from penstock.batch import Record, build_batch, read_header, read_records, renumber
from penstock.types import TopicPartition

SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequence numbers wrap from 2**31 - 1 to 0."""
MAX_IN_FLIGHT: Final = 5


class Identity(NamedTuple):
    """Who a broker thinks is producing."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Bytes as they go on the wire."""

    data: bytes
    rows: int
    sequence: int
    deadline_s: float
    """By the monotonic clock: when nobody waits for it any longer."""
    index: int = -1
    """Its place among all that the queue was given. Halves share that of the whole."""


class PartitionQueue:
    """Decides what may go next. Sends nothing itself."""

    def __init__(self, place: TopicPartition, identity: Identity) -> None:
        self.place = place
        self.identity = identity
        self.next_sequence = 0
        self.not_before_s = 0.0
        """By the monotonic clock: a pause after a refusal."""
        self.tries = 0
        """Refusals since the last batch that was acked."""
        self.troubled_until_s = 0.0
        """By the monotonic clock: how long the trouble that began with the first of them is waited out."""
        self.node_id = -1
        """The broker that has those in flight."""
        self.lost_track = False
        """The broker does not know the producer any more: rule 5."""
        self.restarted = False
        """... and was given a new one, under which nothing has been acked yet."""
        self._added = 0
        self._holes: list[int] = []
        """Of rule 3: the indexes of batches that were acked while one before them had come back."""
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
        """The next to go."""
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
        gone = len(self._in_flight) + sum(1 for hole in self._holes if hole > oldest)
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
            self._holes.append(written.index)
        else:
            self._holes = [hole for hole in self._holes if hole > written.index]
        self.tries = 0
        self.restarted = False
        self._settle()

    def is_first(self) -> bool:
        """Whether nothing that came back stands before the oldest in flight."""
        return not self._returned

    def come_back(self) -> None:
        """The oldest in flight was not taken."""
        self._returned.append(self._in_flight.popleft())
        self._settle()

    def come_back_in_halves(self) -> int:
        """The oldest in flight is too large: its records go again in two batches, with the numbers they had.

        Returns how many bytes there are now that were not there before.
        """
        whole = self._in_flight.popleft()
        parts = halves(whole, self.identity)
        self._returned.extend(parts)
        self._settle()
        return sum(len(part.data) for part in parts) - len(whole.data)

    def restart(self, identity: Identity) -> None:
        """Everything goes again as a new producer's (rule 5)."""
        assert not self._in_flight
        self.identity = identity
        self.next_sequence = 0
        self.lost_track = False
        self.restarted = True
        self._holes.clear()
        batches, self._waiting = self._waiting, deque()
        for batch in batches:
            self.add(numbered(batch, identity, self.next_sequence))

    def _settle(self) -> None:
        if self._returned and not self._in_flight:
            self._returned.extend(self._waiting)
            self._waiting, self._returned = self._returned, deque()


def numbered(batch: Batch, identity: Identity, sequence: int) -> Batch:
    data = renumber(
        batch.data,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
    )
    return replace(batch, data=data, sequence=sequence)


def halves(batch: Batch, identity: Identity) -> list[Batch]:
    """Two batches with the records of one that has at least two."""
    records = read_records(batch.data)
    middle = len(records) // 2
    compression = read_header(batch.data).compression
    parts = []
    for start, part in ((0, records[:middle]), (middle, records[middle:])):
        sequence = (batch.sequence + start) & SEQUENCE_MASK
        data = batch_of(part, compression, identity, sequence)
        parts.append(replace(batch, data=data, rows=len(part), sequence=sequence))
    return parts


def batch_of(records: list[Record], compression: int, identity: Identity, sequence: int) -> bytes:
    """Records as a batch, their offsets counted from 0."""
    return build_batch(
        [record._replace(offset=place) for place, record in enumerate(records)],
        leader_epoch=-1,
        compression=compression,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
    )
