"""Checks the answers that clients got against the promises to them. Values are unique, so each check is linear.

1  A write that was acknowledged with acks=all is in the log once, at the offset that its client was told.
2  A write of an idempotent producer is there at most once, however often it was sent; a repetition is answered with the
   same offset.
3  A write that was acknowledged before another one began is before it in the log.
4  Records that are read were committed and never change. No reader goes backwards.
5  A reader that asks a leader sees everything that was acknowledged before it asked.
"""

from collections.abc import Iterable

from penstock.batch import Record, check_batch, iter_headers, read_records
from penstock.errors import BatchError
from penstock.sim.checks import Witness
from penstock.sim.entries import Entry
from penstock.sim.outcome import Violation


class Write:
    """One batch that a client wants stored."""

    __slots__ = ("acked_at", "attempts", "begun_at", "count", "idempotent", "offset", "value")

    def __init__(self, value: str, count: int, begun_at: float, *, idempotent: bool) -> None:
        self.value = value
        self.count = count
        """Records, whose values are `value` and a number from 0 on."""
        self.begun_at = begun_at
        self.idempotent = idempotent
        self.attempts = 0
        self.acked_at: float | None = None
        self.offset = -1

    def record_value(self, number: int) -> bytes:
        return f"{self.value}.{number}".encode()


class History:
    """The writes to one partition, and what clients were told about them."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.acked_end = 0
        """The offset behind the last record that was acknowledged."""
        self.acks = 0
        self.reads = 0

    def begin(self, write: Write) -> None:
        self.writes.append(write)

    def ack(self, write: Write, offset: int, now: float) -> None:
        if write.acked_at is not None and write.offset != offset:
            raise Violation(
                "a repetition gets the same offset", f"{write.value} was told {write.offset}, then {offset}"
            )
        write.acked_at, write.offset = now, offset
        self.acked_end = max(self.acked_end, offset + write.count)
        self.acks += 1

    def read(self, witness: Witness, *, reader: str, offset: int, data: bytes) -> int:
        """Checks what a reader got from `offset` on; returns where it goes on."""
        self.reads += 1
        for position, header in iter_headers(data):
            wrong = witness.wrong_with(header.base_offset, data[position : position + header.size])
            if wrong:
                raise Violation(
                    "what is read was committed",
                    f"{reader} reads {header.base_offset} of term {header.leader_epoch}, which {wrong}",
                )
            if header.next_offset <= offset:
                raise Violation(
                    "no reader goes backwards", f"{reader} wants {offset} and gets {header.base_offset}"
                )
            offset = header.next_offset
        return offset

    def watermark(self, *, reader: str, watermark: int, acked_end: int) -> None:
        """A leader answered with it. `acked_end` is what had been acknowledged when it was asked."""
        if watermark < acked_end:
            raise Violation(
                "who asks a leader sees what was acknowledged",
                f"{reader} sees an end of {watermark}, and {acked_end} was acknowledged before it asked",
            )

    # --- at the end

    def check(self, truth: Iterable[Entry]) -> None:
        offsets = _offsets_by_value(truth)
        for write in self.writes:
            self._check_write(write, offsets)
        self._check_order()

    def _check_write(self, write: Write, offsets: dict[bytes, list[int]]) -> None:
        for number in range(write.count):
            found = offsets.get(write.record_value(number), [])
            if write.acked_at is not None and found != [write.offset + number]:
                raise Violation(
                    "what is acknowledged is there once",
                    f"{write.value}.{number} was acknowledged at {write.offset + number} and stands at {found}",
                )
            if write.idempotent and len(found) > 1:
                raise Violation(
                    "a repetition is not stored again", f"{write.value}.{number} stands at {found}"
                )

    def _check_order(self) -> None:
        acked = sorted((w for w in self.writes if w.acked_at is not None), key=lambda write: write.offset)
        earliest_ack, of = float("inf"), ""
        for write in reversed(acked):
            if write.begun_at > earliest_ack:
                raise Violation(
                    "later writes stand later",
                    f"{write.value} was begun after {of} had been acknowledged, and stands before it",
                )
            if write.acked_at is not None and write.acked_at < earliest_ack:
                earliest_ack, of = write.acked_at, write.value


def _offsets_by_value(truth: Iterable[Entry]) -> dict[bytes, list[int]]:
    """The offsets of each value."""
    offsets: dict[bytes, list[int]] = {}
    for entry in truth:
        if not entry.control:
            for record in read_records(entry.data):
                offsets.setdefault(mark_of(record), []).append(record.offset)
    return offsets


def mark_of(record: Record) -> bytes:
    """The bytes that distinguish a record from all others: its value, or those that a tombstone has instead."""
    return (record.headers[0][1] or b"") if record.headers else (record.value or b"")


def is_whole(data: bytes) -> bool:
    """Whether all checksums are right: a client checks them, and fetches from another replica if one is wrong."""
    position = 0
    try:
        while position < len(data):
            position += check_batch(data, position).size
    except BatchError:
        return False
    return True
