"""Messages that are settled within transactions which have not ended yet.

Such messages stay leased, to the transaction instead of the consumer: the lease has no deadline, and the end of the
consumer does not end it. So no other consumer gets them, later messages of the same key wait, and in a strict queue all
later ones. The end of the transaction decides:

- Committed: the settlement is applied, as an acknowledgement would have been. Its record in the state topic counts from
  that moment; it is deleted in the same write that stores the messages as done.
- Aborted: the messages are given back like those of a consumer that retries them: the delivery counts, and the queue's
  backoff applies. A message that makes every transaction fail becomes a dead letter in the end.

The next leader holds the messages of open transactions again before it reads the log, and before it looks for messages
whose delivery count has reached the limit: the transaction may have done one of these.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.queue.chunk import Chunk
from penstock.queue.held_ranges import Held, by_kind, held_ranges
from penstock.queue.leases import Lease, Leases, still_held
from penstock.queue.offset_table import OffsetTable
from penstock.queue.settlements import SettledRange, TransactionSettlement
from penstock.queue.states import runs
from penstock.queue.values import AckKind, Acknowledgement

MAX_HELD = 10_000
"""Messages that open transactions hold in one queue on one partition. Consumers must renew their leases; a transaction
holds its messages until it ends, which may be an hour. A record of as many ranges has 220 KB; the topic takes 1 MB."""
HOLDER = "\0transaction "
"""The beginning of a holder's name in the table of leases. No consumer's name begins with a zero byte."""

_KINDS = {int(kind): kind for kind in (AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT)}

Settle = Callable[[int, int, Held, int | None, str], None]
"""Applies one kind to a part of a lease: the time, the kind, the part, the delay of a release, the consumer."""


_Piece = tuple[Chunk, int, int]
"""A part of a chunk: index, end index."""


class _Open(NamedTuple):
    settlement: TransactionSettlement
    lease: Lease


class OpenSettlements:
    """The open settlements of one queue on one partition, by the suffix of their record."""

    def __init__(self, table: OffsetTable, leases: Leases, settle: Settle) -> None:
        self._table = table
        self._leases = leases
        self._settle = settle
        self._open: dict[bytes, _Open] = {}
        self._taken = 0
        """How many messages were given to transactions that are open: some may have been deleted since."""

    @property
    def held(self) -> int:
        """How many messages open transactions hold."""
        return sum(each.lease.held for each in self._open.values())

    def begin(
        self, suffix: bytes, member: str, transactional_id: str, acks: Iterable[Acknowledgement]
    ) -> tuple[list[ErrorCode], TransactionSettlement | None]:
        """Moves the messages from the member to the transaction: all of each acknowledgement, or nothing of it. An
        error for each, and the settlement to store; None if there is none. POLICY_VIOLATION: they are too many."""
        acks = list(acks)
        self._check_room(acks)
        lease: Lease | None = None
        ranges: list[SettledRange] = []
        errors: list[ErrorCode] = []
        for ack in acks:
            held, error = self._check(member, ack)
            errors.append(error)
            for kind, (chunk, start, stop, _) in by_kind(held or [], ack.kinds):
                lease = lease or self._leases.open(HOLDER + transactional_id, None)
                self._leases.take(chunk, start, stop)
                self._leases.give(lease, chunk, start, stop)
                for first, end, deliveries in runs(chunk.deliveries, start, stop):
                    offsets = chunk.base + first, chunk.base + end - 1
                    ranges.append(SettledRange(*offsets, _KINDS[kind], deliveries, ack.delay_ms))
        if lease is None:
            return errors, None
        settlement = TransactionSettlement(member, transactional_id, tuple(ranges))
        self._add(suffix, settlement, lease)
        return errors, settlement

    def _add(self, suffix: bytes, settlement: TransactionSettlement, lease: Lease) -> None:
        self._open[suffix] = _Open(settlement, lease)
        self._taken += settlement.messages

    def _check_room(self, acks: list[Acknowledgement]) -> None:
        count = sum(max(0, ack.last - ack.first + 1) for ack in acks)
        if self._taken + count > MAX_HELD:
            message = f"transactions hold {self._taken} messages here: {count} more would exceed {MAX_HELD}"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)

    def _check(self, member: str, ack: Acknowledgement) -> tuple[list[Held] | None, ErrorCode]:
        first, last, kinds, _ = ack
        if last < first or len(kinds) not in (1, last - first + 1) or not _KINDS.keys() >= set(kinds):
            return None, ErrorCode.INVALID_REQUEST
        held = held_ranges(self._table, self._leases, member, first, last)
        return held, ErrorCode.NONE if held is not None else ErrorCode.INVALID_RECORD_STATE

    def restore(self, settlements: Mapping[bytes, TransactionSettlement]) -> None:
        """Holds the messages of stored settlements; the log has not been read yet."""
        for suffix, settlement in settlements.items():
            lease = self._leases.open(HOLDER + settlement.transactional_id, None)
            for one in settlement.ranges:
                self._table.hold_unread(lease, one.first, one.last + 1, one.deliveries)
            if lease.held:
                self._add(suffix, settlement, lease)
            else:  # retention has deleted all of them
                self._leases.close(lease)

    def end(self, now_ms: int, suffix: bytes, *, commit: bool) -> TransactionSettlement | None:
        """The transaction ended. Returns the settlement that was applied; None if it was aborted or is unknown."""
        ended = self._open.pop(suffix, None)
        if ended is None:
            return None
        settlement, lease = ended
        self._taken -= settlement.messages
        for one, (chunk, start, stop) in self._held_by(settlement, lease):
            kind, delay_ms = (one.kind, one.delay_ms) if commit else (AckKind.RELEASE, None)
            self._settle(now_ms, kind, (chunk, start, stop, lease), delay_ms, settlement.consumer)
        return settlement if commit else None

    def _held_by(self, settlement: TransactionSettlement, lease: Lease) -> list[tuple[SettledRange, _Piece]]:
        """The parts that retention has left. A lease that holds nothing is closed, and another may have its slot."""
        if not lease.held:
            return []
        return [
            (one, (chunk, first, end))
            for one in settlement.ranges
            for chunk, start, stop in self._table.pieces(one.first, one.last + 1)
            for first, end in still_held(lease, chunk, start, stop)
        ]
