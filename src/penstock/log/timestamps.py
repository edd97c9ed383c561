"""Finding records by timestamp. The time index says where to begin; then batches are read until one fits.

Producers set the timestamps, which need not rise, so "the first record at or after T" is the first in the order of
offsets whose timestamp is T or later, as in Kafka.
"""

from collections.abc import Sequence

from penstock.batch import BatchHeader, Record, read_records
from penstock.errors import BatchError, CorruptLog
from penstock.log.segment import Segment, newest_timestamp


def first_at_or_after(segments: Sequence[Segment], timestamp: int, start: int, limit: int) -> Record | None:
    """The first record with offset in [start, limit) that is not earlier than `timestamp`."""
    for segment in segments:
        if segment.next_offset <= start or segment.max_timestamp < timestamp:
            continue
        if segment.base_offset >= limit:
            break
        found = _first_in(segment, timestamp, start, limit)
        if found is not None:
            return found
    return None


def greatest_timestamp(segments: Sequence[Segment], start: int, limit: int) -> int:
    """The greatest timestamp of all batches with offsets in [start, limit); -1 if none has a timestamp."""
    greatest = -1
    for segment in segments:
        if segment.base_offset >= limit:
            break
        if segment.max_timestamp > greatest:
            greatest = max(greatest, _greatest_in(segment, start, limit))
    return greatest


def _first_in(segment: Segment, timestamp: int, start: int, limit: int) -> Record | None:
    index = segment.load_index()
    begin = max(start - segment.base_offset, index.offset_before_time(timestamp))
    for position, header in segment.headers(index.floor(begin)[1], segment.size):
        if header.base_offset >= limit:
            return None
        if newest_timestamp(header) < timestamp or header.next_offset <= start:
            continue
        for record in _records(segment, position, header):
            if record.timestamp >= timestamp and start <= record.offset < limit:
                return record
    return None


def _greatest_in(segment: Segment, start: int, limit: int) -> int:
    if start <= segment.base_offset and segment.next_offset <= limit:
        return segment.max_timestamp
    index = segment.load_index()
    if start > segment.base_offset:
        # The index has maxima from the segment's beginning only. A prefix that ends within a segment is rare.
        greatest, begin = -1, segment.locate(start)
    else:
        greatest, known_offset = index.max_time_before(limit - segment.base_offset)
        begin = index.floor(known_offset)[1]
    for _, header in segment.headers(begin, segment.size):
        if header.next_offset > limit:
            break
        greatest = max(greatest, newest_timestamp(header))
    return greatest


def _records(segment: Segment, position: int, header: BatchHeader) -> list[Record]:
    try:
        return read_records(segment.file.read_at(position, header.size))
    except BatchError as problem:
        raise CorruptLog(segment.path, position, problem.message) from None
