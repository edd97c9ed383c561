"""Record headers that control delivery, read once per queue when it comes to the record.

    penstock-deliver-at   when it is due, milliseconds since 1970
    penstock-delay-ms     the same, counted from the record's timestamp
    penstock-ttl-ms       when it expires, counted from its timestamp, or from when it is due

Values are decimal digits in ASCII. A value that is not a number is ignored: the log has accepted the record, and a
message that is never delivered would be worse than one that is delivered too early. Numbers may have any length; a time
beyond the year 9999 is lowered to its end. Most batches have no such header, and then their records are not opened: one
search for the common prefix of the headers finds that out.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.batch import BatchHeader, Record, iter_headers, read_records, scan_batch, unpacked_bytes
from penstock.errors import BatchError
from penstock.log.aborted import NOTHING_ABORTED, AbortedRanges
from penstock.node.queues.record_marks import RecordMarks
from penstock.queue.values import ScanResult

PREFIX = b"penstock-"
DELIVER_AT = "penstock-deliver-at"
DELAY_MS = "penstock-delay-ms"
TTL_MS = "penstock-ttl-ms"

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a later time is a mistake, such as nanoseconds."""
UNPACKED_BYTES = 16 * 1024 * 1024
"""Bytes unpacked in one call, apart from a single batch that is larger: some 20 ms of the event loop."""
BATCH_BYTES_MAX = 64 * 1024 * 1024
"""A batch that unpacks to more is not opened: a few kilobytes can unpack to gigabytes."""
DIGITS_MAX = 18
"""A longer number is beyond the limit in any case and is not parsed: a header may be very long."""


class RecordTimes(NamedTuple):
    """When a record is due and when it expires, milliseconds since 1970; None if its headers do not say."""

    due_ms: int | None
    expires_ms: int | None


def scan_batches(
    data: bytes, start: int, marks: RecordMarks, aborted: AbortedRanges = NOTHING_ABORTED
) -> tuple[int, ScanResult]:
    """Times, gaps and marks of the offsets from `start` on, and the offset where they end: behind the batches in
    `data`, or before the first batch with which more than UNPACKED_BYTES would have to be unpacked. The markers of
    transactions are gaps, and so are the records of `aborted` ones."""
    found = _Found(marks)
    at = start
    unpacked = 0
    for position, header in iter_headers(data):
        if header.next_offset <= at:
            continue
        unpacked += 0 if header.compression == 0 else unpacked_bytes(data, position, header)
        if unpacked > UNPACKED_BYTES and at > start:
            break
        first = max(at, header.base_offset)
        if first > at:
            found.gap(at, first)
        if header.control or aborted.covers(header):
            found.gap(first, header.next_offset)
        else:
            _scan_batch(data, position, header, first, found)
        at = header.next_offset
    return at, found.result()


class _Found:
    """What the batches have told so far."""

    def __init__(self, marks: RecordMarks) -> None:
        self.marks = marks
        self.gaps: list[tuple[int, int]] = []
        self.deferred: list[tuple[int, int]] = []
        self.expiring: list[tuple[int, int]] = []

    def gap(self, first: int, end: int) -> None:
        self.gaps.append((first, end - 1))
        self.marks.skip(end - first)

    def add(self, records: list[Record], first: int, end: int) -> None:
        """The records of a batch from the offset `first` on."""
        at = first
        for record in _from(records, first):
            if record.offset > at:
                self.gap(at, record.offset)
            at = record.offset + 1
            self.marks.add(record)
            times = times_of(record) if record.headers else None
            if times is not None and times.due_ms is not None:
                self.deferred.append((record.offset, times.due_ms))
            if times is not None and times.expires_ms is not None:
                self.expiring.append((record.offset, times.expires_ms))
        if at < end:
            self.gap(at, end)

    def result(self) -> ScanResult:
        marks = self.marks
        return ScanResult(
            gaps=self.gaps,
            deferred=self.deferred,
            expiring=self.expiring,
            keys=marks.keys,
            lanes=marks.lanes,
        )


def times_of(record: Record) -> RecordTimes:
    """The times in a record's headers."""
    due = expires = ttl = None
    for name, value in record.headers:
        if name == DELIVER_AT:
            due = _number(value)
        elif name == DELAY_MS and (delay := _number(value)) is not None:
            due = record.timestamp + delay
        elif name == TTL_MS:
            ttl = _number(value)
    if ttl is not None:
        expires = max(record.timestamp, due or 0) + ttl
    return RecordTimes(_sane(due), _sane(expires))


def _scan_batch(data: bytes, position: int, header: BatchHeader, first: int, found: _Found) -> None:
    """Opens the records if they have to be read. An unreadable batch is delivered as it is: its consumer will find out
    what is wrong with it."""
    marks, end = found.marks, header.next_offset
    is_whole = header.record_count == end - header.base_offset
    most = most_unpacked(data, position, header)
    try:
        if is_whole and not marks.needs_keys and not _mentions(data, position, header):
            marks.unopened(first, end)
            return
        if is_whole and marks.takes_columns:
            _, payload, columns = scan_batch(data, position, max_bytes=most)
            if not _has_prefix(payload, position, header):
                marks.add_columns(payload, columns, first)
                return
        records = read_records(data, position, max_bytes=most)
    except BatchError:
        marks.unopened(first, end)
    else:
        found.add(records, first, end)


def _mentions(data: bytes, position: int, header: BatchHeader) -> bool:
    if header.compression == 0:
        return _has_prefix(data, position, header)
    payload = scan_batch(data, position, max_bytes=most_unpacked(data, position, header))[1]
    return _has_prefix(payload, position, header)


def _has_prefix(payload: bytes, position: int, header: BatchHeader) -> bool:
    """Whether a record may have a header of ours. The payload of a batch that is not compressed is the buffer with all
    batches."""
    if header.compression == 0:
        return payload.find(PREFIX, position, position + header.size) >= 0
    return PREFIX in payload


def most_unpacked(data: bytes, position: int, header: BatchHeader) -> int:
    """The limit for unpacking one batch, here and where it is shown to people: not more than the batch declares."""
    return min(BATCH_BYTES_MAX, unpacked_bytes(data, position, header))


def _from(records: list[Record], first: int) -> Iterator[Record]:
    return (record for record in records if record.offset >= first)


def _number(value: bytes | None) -> int | None:
    if value is None or not value.isdigit():
        return None
    digits = value.lstrip(b"0") or b"0"
    return int(digits) if len(digits) <= DIGITS_MAX else LATEST_MS


def _sane(time_ms: int | None) -> int | None:
    return None if time_ms is None else min(time_ms, LATEST_MS)
