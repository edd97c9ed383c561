"""Where in the files an index is, and reading entries from there on.

A sequential reader (a follower that is sent what is new) finds its place among the hints. Any other search is a
bisection among the segments, one in a sparse index, and a few headers.
"""

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from penstock.batch import HEADER_SIZE
from penstock.errors import CorruptLog
from penstock.log.chain import SegmentChain
from penstock.log.controls import Controls
from penstock.log.segment import LENGTH_OVERHEAD, MIN_BATCH_LENGTH, Segment

_PLACE = Struct(">qi11xi")
"""base_offset, batch_length and last_offset_delta of a batch's header: all that counting looks at."""
ZERO_WIDTH_DELTA = -1


class Place(NamedTuple):
    """A boundary in the files."""

    at: int
    """The number of the segment. A boundary between two segments is the beginning of the second."""
    position: int
    boundary: int
    """The index that was asked for or, if that is within a batch, the batch's own. Where compaction left a gap, any
    index in the gap is a boundary."""


def place_of(chain: SegmentChain, controls: Controls, index: int) -> Place:
    """The place of the last boundary that is not after `index`, which is in the log."""
    count = controls.count_before(index)
    offset = index - controls.gone - count
    at = _segment_of(chain, controls, offset, count)
    segment = chain.segments[at]
    chain.use(segment)
    start, seen = _anchor(chain, controls, at, offset)
    shift = controls.gone + seen
    for position, header in segment.headers(start, segment.size):
        here = header.base_offset + shift
        if here >= index:
            return Place(at, position, index)
        if header.is_zero_width:
            shift += 1
        elif header.next_offset + shift > index:
            return Place(at, position, here)
    return Place(at, segment.size, index)


def _segment_of(chain: SegmentChain, controls: Controls, offset: int, count: int) -> int:
    """The number of the segment that holds, or will hold, what stands at `offset` behind `count` control entries."""
    at = max(bisect_right(chain.bases, offset) - 1, 0)
    # The control entries at a segment's first offset may stand, in part, at the end of the segment before.
    if at > 0 and chain.bases[at] == offset and _controls_before(chain, controls, at) > count:
        at -= 1
    return at


def _controls_before(chain: SegmentChain, controls: Controls, at: int) -> int:
    """How many of the control entries stand in segments before number `at`."""
    base_offset = chain.bases[at]
    count = bisect_left(controls.offsets, base_offset)
    if at == 0 or count == len(controls) or controls.offsets[count] != base_offset:
        return count if at > 0 else 0
    return sum(segment.control_count for segment in chain.segments[:at])


def _anchor(chain: SegmentChain, controls: Controls, at: int, offset: int) -> tuple[int, int]:
    """A position in the segment, not after the first entry at `offset`, and the control entries before it: of the
    index entries for the greatest offset that is not after this one, the first."""
    segment = chain.segments[at]
    index = segment.load_index()
    number = bisect_right(index.offsets, offset - segment.base_offset) - 1
    if number < 0 or index.offsets[number] == 0:
        return 0, _controls_before(chain, controls, at)
    relative = index.offsets[number]
    position = index.positions[bisect_left(index.offsets, relative)]
    return position, bisect_left(controls.offsets, segment.base_offset + relative)


def end_before(segment: Segment, position: int) -> int:
    """The offset after the last entry before `position`."""
    if position == 0:
        return segment.base_offset
    start = segment.load_index().floor_position(position - 1)[1]
    return max(header.next_offset for _, header in segment.headers(start, position))


def read_entries(chain: SegmentChain, controls: Controls, index: int, max_bytes: int) -> tuple[bytes, int]:
    """Whole entries from boundary `index`, which is in the log, and the index after them. Stops at a segment's end."""
    found = chain.index_hints.get(index)
    if found is None:
        place = place_of(chain, controls, index)
        if place.boundary != index:
            raise ValueError(f"index {index} is within the batch at {place.boundary}")
        segment, position = chain.segments[place.at], place.position
    else:
        segment, position = found
    while position >= segment.size:
        if segment is chain.active:
            return b"", index
        segment, position = chain.segments[bisect_right(chain.bases, segment.base_offset)], 0
    chain.use(segment)
    data = segment.file.read_at(position, min(max(max_bytes, HEADER_SIZE), segment.size - position))
    shift = controls.gone + controls.count_before(index)
    end, end_index = _whole_entries(segment, position, data, shift)
    if end == 0:
        size = LENGTH_OVERHEAD + _PLACE.unpack_from(data)[1]
        data = segment.file.read_at(position, size)
        end, end_index = _whole_entries(segment, position, data, shift)
    chain.index_hints.put(end_index, segment, position + end)
    return data if end == len(data) else data[:end], end_index


def _whole_entries(segment: Segment, position: int, data: bytes, shift: int) -> tuple[int, int]:
    """How many bytes of `data` are whole entries, and the index after them. `shift`: the first one's index less its
    offset."""
    at, end_index, size = 0, -1, len(data)
    while at + HEADER_SIZE <= size:
        base_offset, length, last_offset_delta = _PLACE.unpack_from(data, at)
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
