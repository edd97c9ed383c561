"""Where in the files an index is, and reading entries from there on.

A sequential reader (a leader that sends new entries to a follower) finds its position in the cache. Any other search is
a bisection among the segments, one in a sparse index, and a few headers.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from penstock.batch import HEADER_SIZE
from penstock.batch.header import LENGTH_OVERHEAD, MIN_BATCH_LENGTH
from penstock.errors import CorruptLog
from penstock.log.controls import Controls
from penstock.log.segment import EXTENT, Segment
from penstock.log.segments import Segments

ZERO_WIDTH_DELTA = -1


class Boundary(NamedTuple):
    """A position between two entries (see `controls`), in the files."""

    segment_number: int
    """A boundary between two segments is the beginning of the second."""
    position: int
    entry_index: int
    """The index that was asked for or, if that is within a batch, the batch's own. Where compaction left a gap, any
    index in the gap is a boundary."""


def boundary_at(segments: Segments, controls: Controls, index: int) -> Boundary:
    """The last boundary that is not after `index`, which is in the log."""
    count = controls.count_before(index)
    offset = index - controls.gone - count
    at = _segment_of(segments, controls, offset, count)
    segment = segments.segments[at]
    segments.use(segment)
    start, seen = _anchor(segments, controls, at, offset)
    shift = controls.gone + seen
    for position, header in segment.headers(start, segment.size):
        here = header.base_offset + shift
        if here >= index:
            return Boundary(at, position, index)
        if header.is_zero_width:
            shift += 1
        elif header.next_offset + shift > index:
            return Boundary(at, position, here)
    return Boundary(at, segment.size, index)


def _segment_of(segments: Segments, controls: Controls, offset: int, count: int) -> int:
    """The number of the segment that holds, or will hold, the entry at `offset` after `count` control entries."""
    at = max(bisect_right(segments.bases, offset) - 1, 0)
    # Some of the control entries at a segment's first offset may be at the end of the segment before.
    if at > 0 and segments.bases[at] == offset and _controls_before(segments, controls, at) > count:
        at -= 1
    return at


def _controls_before(segments: Segments, controls: Controls, at: int) -> int:
    """How many of the control entries are in segments before number `at`."""
    base_offset = segments.bases[at]
    count = bisect_left(controls.offsets, base_offset)
    if at == 0 or count == len(controls) or controls.offsets[count] != base_offset:
        return count if at > 0 else 0
    return sum(segment.control_count for segment in segments.segments[:at])


def _anchor(segments: Segments, controls: Controls, at: int, offset: int) -> tuple[int, int]:
    """A position in the segment, not after the first entry at `offset`, and the control entries before it: of the
    index entries for the greatest offset that is not after this one, the first."""
    segment = segments.segments[at]
    index = segment.load_index()
    number = bisect_right(index.offsets, offset - segment.base_offset) - 1
    if number < 0 or index.offsets[number] == 0:
        return 0, _controls_before(segments, controls, at)
    relative = index.offsets[number]
    position = index.positions[bisect_left(index.offsets, relative)]
    return position, bisect_left(controls.offsets, segment.base_offset + relative)


def end_before(segment: Segment, position: int) -> int:
    """The offset after the last entry before `position`."""
    if position == 0:
        return segment.base_offset
    start = segment.load_index().floor_position(position - 1)[1]
    return max(header.next_offset for _, header in segment.headers(start, position))


def read_entries(segments: Segments, controls: Controls, index: int, max_bytes: int) -> tuple[bytes, int]:
    """Whole entries from boundary `index`, which is in the log, and the index after them. Stops at a segment's end."""
    cached = segments.index_positions.get(index)
    if cached is None:
        found = boundary_at(segments, controls, index)
        if found.entry_index != index:
            raise ValueError(f"index {index} is within the batch at {found.entry_index}")
        segment, position = segments.segments[found.segment_number], found.position
    else:
        segment, position = cached
    while position >= segment.size:
        if segment is segments.active:
            return b"", index
        segment, position = segments.segments[bisect_right(segments.bases, segment.base_offset)], 0
    segments.use(segment)
    data = segment.file.read_at(position, min(max(max_bytes, HEADER_SIZE), segment.size - position))
    shift = controls.gone + controls.count_before(index)
    end, end_index = _whole_entries(segment, position, data, shift)
    if end == 0:
        size = LENGTH_OVERHEAD + EXTENT.unpack_from(data)[1]
        data = segment.file.read_at(position, size)
        end, end_index = _whole_entries(segment, position, data, shift)
    segments.index_positions.put(end_index, segment, position + end)
    return data if end == len(data) else data[:end], end_index


def _whole_entries(segment: Segment, position: int, data: bytes, shift: int) -> tuple[int, int]:
    """How many bytes of `data` are whole entries, and the index after them. `shift`: the first one's index less its
    offset."""
    at, end_index, size = 0, -1, len(data)
    while at + HEADER_SIZE <= size:
        base_offset, length, last_offset_delta = EXTENT.unpack_from(data, at)
        if length < MIN_BATCH_LENGTH:
            raise CorruptLog(segment.path, position + at, f"a batch of {length} bytes")
        following = at + LENGTH_OVERHEAD + length
        if following > size:
            break
        if last_offset_delta == ZERO_WIDTH_DELTA:
            shift += 1
        end_index = base_offset + last_offset_delta + 1 + shift
        at = following
    if at == 0 and position + size >= segment.size:
        raise CorruptLog(segment.path, position, "the file ends within a batch")
    return at, end_index
