"""Finds delivered messages in the stored batches that hold them.

A batch may hold ten thousand messages, and a worker with a credit of a hundred receives it in a hundred deliveries. So
the batches that were unpacked last are cached (OpenedBatches): each is unpacked once, not once for each delivery.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from penstock.batch import BatchHeader, Record, iter_headers, read_records
from penstock.errors import BatchError
from penstock.node.queues.delivery_headers import most_unpacked

KEPT_BYTES = 32 * 1024 * 1024
"""The most bytes that all opened batches hold together, about: keys, values, and RECORD_OVERHEAD for each record."""
RECORD_OVERHEAD = 256
KEPT_FROM_RECORDS = 64
"""Batches with fewer records are unpacked faster than they are found in the cache."""
HEADER_SIZE = 61

Range = tuple[int, int]
"""First and last offset."""
Handed = tuple[int, int, int]
"""First and last offset, and the number of deliveries, this one included."""


class Job(NamedTuple):
    record: Record
    deliveries: int


class Opened(NamedTuple):
    """`unreadable` offsets are in batches that do not unpack; the records of `missing` ones were deleted meanwhile."""

    jobs: list[Job]
    unreadable: list[Range]
    missing: list[Range]


class OpenedBatches:
    """A cache of the batches that were unpacked last. A batch's key is its header, which holds its offset and checksum:
    a batch that compaction has rewritten has another header."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most = most_bytes
        self._held = 0
        self._batches: OrderedDict[bytes, tuple[list[Record], int]] = OrderedDict()
        self._lock = Lock()
        """Batches are unpacked in threads, too."""

    def open(self, data: bytes, position: int, header: BatchHeader) -> list[Record]:
        """BatchError: it does not unpack, or to more bytes than its header says."""
        most = most_unpacked(data, position, header)
        if header.record_count < KEPT_FROM_RECORDS:
            return read_records(data, position, max_bytes=most)
        key = bytes(data[position : position + HEADER_SIZE])
        with self._lock:
            found = self._batches.get(key)
            if found is not None:
                self._batches.move_to_end(key)
                return found[0]
        records = read_records(data, position, max_bytes=most)
        size = sum(len(one.value or b"") + len(one.key or b"") + RECORD_OVERHEAD for one in records)
        with self._lock:
            if key not in self._batches:
                self._batches[key] = records, size
                self._held += size
            while self._held > self._most:
                self._held -= self._batches.popitem(last=False)[1][1]
        return records


def open_jobs(data: bytes, acquired: Sequence[Handed], kept: OpenedBatches | None = None) -> Opened:
    """The records of these ranges, which are sorted."""
    kept = kept or OpenedBatches(0)
    unreadable: list[Range] = []
    found: list[Record] = []
    at = 0
    for position, header in iter_headers(data):
        while at < len(acquired) and acquired[at][1] < header.base_offset:
            at += 1
        wanted = list(_within(acquired, at, header.base_offset, header.next_offset - 1))
        if not wanted:
            continue
        try:
            opened = [] if header.control else kept.open(data, position, header)
        except BatchError:
            unreadable += wanted
            continue
        found += _among(opened, wanted)
    jobs, missing = _matched(found, acquired, unreadable)
    return Opened(jobs, unreadable, missing)


def _matched(
    found: Sequence[Record], acquired: Iterable[Handed], unreadable: Sequence[Range]
) -> tuple[list[Job], list[Range]]:
    jobs: list[Job] = []
    missing: list[Range] = []
    at = 0
    for first, last, deliveries in acquired:
        expected = first
        while at < len(found) and found[at].offset <= last:
            record = found[at]
            at += 1
            if record.offset < first:
                continue
            if record.offset > expected:
                missing.append((expected, record.offset - 1))
            jobs.append(Job(record, deliveries))
            expected = record.offset + 1
        if expected <= last:
            missing.append((expected, last))
    return jobs, [part for gap in missing for part in _without(gap, unreadable)]


def _among(records: Sequence[Record], wanted: Sequence[Range]) -> Iterable[Record]:
    """The records from the first to the last wanted offset, perhaps with others in between; they are sorted."""
    if records and records[-1].offset - records[0].offset + 1 == len(records):  # without gaps
        base = records[0].offset
        return [
            record for first, last in wanted for record in records[max(0, first - base) : last + 1 - base]
        ]
    start = bisect_left(records, wanted[0][0], key=lambda one: one.offset)
    stop = bisect_right(records, wanted[-1][1], key=lambda one: one.offset)
    return records[start:stop]


def _within(acquired: Sequence[Handed], at: int, first: int, last: int) -> Iterator[Range]:
    """The parts of the ranges from index `at` on that are within a batch; no range before it is."""
    while at < len(acquired) and acquired[at][0] <= last:
        start, end, _ = acquired[at]
        yield max(start, first), min(end, last)
        at += 1


def _without(gap: Range, others: Iterable[Range]) -> Iterator[Range]:
    """The parts of a range that are in none of the others, which are sorted."""
    at, last = gap
    for start, end in others:
        if end < at or start > last:
            continue
        if start > at:
            yield at, start - 1
        at = end + 1
    if at <= last:
        yield at, last
