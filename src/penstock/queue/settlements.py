"""Settlements within transactions of producers: which messages, how, and by whom; and their records.

    suffix  uint8 3 | int64 number of the claim | int64 number      unique: each driver claims the queue first
    value   int16 version 0 | int16 length and UTF-8 bytes: consumer | the same: transactional id | int32 count |
            count times: int64 first, int32 length, uint8 kind, uint8 deliveries, int64 delay in ms, -1 for none

`state_records.py` has the other records of the state topic. The record of a settlement is part of its producer's
transaction: it counts from the marker that commits the transaction, and until the queue's own records contain it. Then
it is deleted.
"""

import struct
from typing import NamedTuple

from penstock.queue.state_records import StateRecordReader, unknown_format
from penstock.queue.values import AckKind, Acknowledgement

VERSION = 0
NO_DELAY = -1

_RANGE = struct.Struct(">qiBBq")
_KINDS = frozenset({AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT})


class SettledRange(NamedTuple):
    """Consecutive offsets with one delivery count. `delay_ms`: of a release; None: the queue's backoff."""

    first: int
    last: int
    kind: AckKind
    deliveries: int
    delay_ms: int | None = None

    @property
    def acknowledgement(self) -> Acknowledgement:
        return Acknowledgement(self.first, self.last, bytes((self.kind,)), self.delay_ms)


class TransactionSettlement(NamedTuple):
    """The actions of one consumer on messages, within one transaction."""

    consumer: str
    transactional_id: str
    ranges: tuple[SettledRange, ...]

    @property
    def messages(self) -> int:
        """How many there are."""
        return sum(one.last - one.first + 1 for one in self.ranges)


def encode_settlement(settlement: TransactionSettlement) -> bytes:
    parts = [struct.pack(">h", VERSION), _text(settlement.consumer), _text(settlement.transactional_id)]
    parts.append(struct.pack(">i", len(settlement.ranges)))
    for first, last, kind, deliveries, delay_ms in settlement.ranges:
        delay = NO_DELAY if delay_ms is None else delay_ms
        parts.append(_RANGE.pack(first, last - first + 1, kind, deliveries, delay))
    return b"".join(parts)


def decode_settlement(data: bytes) -> TransactionSettlement:
    reader = StateRecordReader(data)
    (version,) = reader.fields(">h")
    if version != VERSION:
        raise unknown_format(f"settlement version {version}")
    consumer, transactional_id = reader.text(), reader.text()
    (count,) = reader.fields(">i")
    ranges = tuple(_decode_range(reader) for _ in range(count))
    reader.finish()
    return TransactionSettlement(consumer, transactional_id, ranges)


def _decode_range(reader: StateRecordReader) -> SettledRange:
    first, length, kind, deliveries, delay_ms = reader.fields(_RANGE.format)
    if first < 0 or length < 1 or kind not in _KINDS or not deliveries:
        raise unknown_format(f"a settlement of {length} at {first}, kind {kind}, {deliveries} deliveries")
    delay = None if delay_ms == NO_DELAY else delay_ms
    return SettledRange(first, first + length - 1, AckKind(kind), deliveries, delay)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
