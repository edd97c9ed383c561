"""Messages that were handed out, taken from the stored batches that hold them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.batch import Record, iter_headers, read_records
from penstock.errors import BatchError
from penstock.web.api.reading import UNPACKED_BYTES_MAX

Range = tuple[int, int]
"""First and last offset."""
Handed = tuple[int, int, int]
"""First and last offset, and the how manieth delivery this is."""


class Job(NamedTuple):
    record: Record
    deliveries: int


class Opened(NamedTuple):
    """`unreadable` are in batches that do not unpack, `missing` were deleted since it was known what there is."""

    jobs: list[Job]
    unreadable: list[Range]
    missing: list[Range]


def open_jobs(data: bytes, acquired: Sequence[Handed]) -> Opened:
    """The records of these ranges, which are in order."""
    unreadable: list[Range] = []
    found: list[Record] = []
    for position, header in iter_headers(data):
        wanted = list(_within(acquired, header.base_offset, header.next_offset - 1))
        if not wanted:
            continue
        try:
            opened = [] if header.control else read_records(data, position, max_bytes=UNPACKED_BYTES_MAX)
        except BatchError:
            unreadable += wanted
            continue
        found += opened
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


def _within(acquired: Iterable[Handed], first: int, last: int) -> Iterator[Range]:
    for start, end, _ in acquired:
        if start <= last and end >= first:
            yield max(start, first), min(end, last)


def _without(gap: Range, others: Iterable[Range]) -> Iterator[Range]:
    """What of a range is in none of the others, which are in order."""
    at, last = gap
    for start, end in others:
        if end < at or start > last:
            continue
        if start > at:
            yield at, start - 1
        at = end + 1
    if at <= last:
        yield at, last
