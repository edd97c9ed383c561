"""The segments of a log in their order: finding offsets, reading bytes, and closing files that are not read.

A sequential reader finds its next position in the cache of positions. Any other read is one bisection among the
segments, one in a sparse index and a few headers. So the cost of a read does not depend on the length of the log.
"""

from bisect import bisect_left, bisect_right

from penstock.errors import CorruptLog
from penstock.log.checked_read import checked_length
from penstock.log.cold_range import ColdRange, find_cold
from penstock.log.open_files import OpenFiles
from penstock.log.position_cache import PositionCache
from penstock.log.segment import Segment

MAX_OPEN_SEALED = 4
"""Sealed segments that are kept open, per log: enough for two lagging readers, each of which crosses from one segment
to the next. Bounds the memory of indexes."""


class Segments:
    """Segments without a gap between them. The last one is the active one, if there is any."""

    __slots__ = (
        "_open_files",
        "_open_sealed",
        "active",
        "bases",
        "controls",
        "index_positions",
        "positions",
        "segments",
    )

    def __init__(self, segments: list[Segment], controls: list[int], open_files: OpenFiles) -> None:
        self._open_files = open_files
        for segment in segments:
            segment.join(open_files)
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1] if segments else None
        self.controls = controls
        """Offsets of the control entries in these segments, in order. The same list as in the log's state."""
        self.positions = PositionCache()
        """Where batches begin, by offset."""
        self.index_positions = PositionCache()
        """Where entries begin, by Raft's index."""
        self._open_sealed: dict[Segment, None] = {}
        """Sealed segments that were read recently, the latest last."""

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    # --- changing

    def add(self, segment: Segment) -> None:
        """It becomes the active one."""
        segment.join(self._open_files)
        sealed = self.active
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        if sealed is not None:
            self.use(sealed)

    def drop_first(self) -> Segment:
        """Its file stays open: it may still have to be flushed."""
        segment = self.segments.pop(0)
        del self.bases[0]
        self._open_sealed.pop(segment, None)
        self._clear_positions()
        return segment

    def drop_after(self, at: int) -> list[Segment]:
        """Makes segment number `at` the active one; returns those after it."""
        dropped = self.segments[at + 1 :]
        del self.segments[at + 1 :]
        del self.bases[at + 1 :]
        self.active = self.segments[at]
        self._open_sealed.pop(self.active, None)
        self._forget(dropped)
        return dropped

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replaces sealed segments by one with the same offsets."""
        new.join(self._open_files)
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [new]
        self.bases = [segment.base_offset for segment in self.segments]
        self._forget(old)

    def _clear_positions(self) -> None:
        self.positions.clear()
        self.index_positions.clear()

    def _forget(self, segments: list[Segment]) -> None:
        self._clear_positions()
        for segment in segments:
            self._open_sealed.pop(segment, None)
            segment.close()

    # --- open files and indexes

    def use(self, segment: Segment) -> None:
        """The segment is read. A sealed one stays open, and the one that was unread for longest is closed instead."""
        if segment is self.active:
            return
        self._open_sealed.pop(segment, None)
        self._open_sealed[segment] = None
        if len(self._open_sealed) > MAX_OPEN_SEALED:
            oldest = next(iter(self._open_sealed))
            del self._open_sealed[oldest]
            oldest.close_unused()

    def close_unused(self) -> None:
        """After work that may have opened many segments."""
        for segment in self.segments[:-1]:
            if segment not in self._open_sealed:
                segment.close_unused()

    # --- reading

    def read(self, offset: int, max_bytes: int, limit: int, first_max: int, is_checked: bool) -> bytes:
        """Whole batches from the one that holds `offset`, which is in the log, and below `limit`. The first one may
        exceed `max_bytes`, up to `first_max`. `is_checked`: as `checked_read` says; CorruptLog if the first one is
        wrong."""
        segment, position = self._start_of_read(offset)
        stop, next_offset = self._end_of_read(segment, position, offset, limit)
        end = stop
        if stop - position > max_bytes:
            end, cut_offset = self._shorten(segment, position, position + max_bytes, first_max)
            if end < stop:
                next_offset = cut_offset
        if end <= position:
            return b""
        if next_offset is not None:
            self.positions.put(next_offset, segment, end)
        data = segment.file.read_at(position, end - position)
        if is_checked and position < segment.written_from:
            return self._checked(segment, position, data, end)
        return data

    def _checked(self, segment: Segment, position: int, data: bytes, end: int) -> bytes:
        """The batches before the first one that is wrong, or so many as one read checks."""
        if segment.checked_from <= position and end <= segment.checked_to and len(data) == end - position:
            return data
        size = checked_length(data)
        if not size:
            raise CorruptLog(segment.path, position, "the checksum of a batch is wrong, or its length")
        segment.note_checked(position, position + size)
        return data if size == len(data) else data[:size]

    def cold_range(self, offset: int, max_bytes: int) -> ColdRange | None:
        """The range that `read` would wait for. A reader that begins looks for its batch in the file, so its range
        starts at the index entry before that batch."""
        segment, position = self.positions.get(offset) or self._entry_before(offset)
        if position >= segment.size:
            segment, position = self._entry_before(offset)
        return find_cold(segment, position, max_bytes)

    def _entry_before(self, offset: int) -> tuple[Segment, int]:
        segment = self.segments[bisect_right(self.bases, offset) - 1]
        position = segment.load_index().floor(offset - segment.base_offset)[1]
        self.use(segment)
        return segment, position

    def batch_size(self, offset: int, limit: int) -> int:
        """The size of the first batch that `read` would return; 0 if there is none."""
        segment, position = self._start_of_read(offset)
        stop, _ = self._end_of_read(segment, position, offset, limit)
        return next((header.size for _, header in segment.headers(position, stop)), 0)

    def _start_of_read(self, offset: int) -> tuple[Segment, int]:
        segment, position = self.positions.get(offset) or self._find(offset)
        if position >= segment.size:
            segment, position = self._find(offset)
        segment, position = self._after_controls(segment, position, offset)
        self.use(segment)
        return segment, position

    def _find(self, offset: int) -> tuple[Segment, int]:
        """The segment and position of the first batch that ends at or after `offset`."""
        at = bisect_right(self.bases, offset) - 1
        number = bisect_left(self.controls, offset)
        no_control = number == len(self.controls) or self.controls[number] != offset
        while True:
            segment = self.segments[at]
            position = segment.locate(offset, no_control=no_control)
            # Compaction may have removed all from here to the segment's end.
            if position < segment.size or segment is self.active:
                return segment, position
            self.use(segment)
            at += 1

    def _after_controls(self, segment: Segment, position: int, offset: int) -> tuple[Segment, int]:
        """Where compaction left a gap, a control entry may be where the batch of `offset` would be: a position that was
        cached when nothing followed yet leads there."""
        controls = self.controls
        number = bisect_right(controls, offset)
        if number == len(controls) or not segment.base_offset <= controls[number] <= segment.next_offset:
            return segment, position
        control = controls[number]
        is_there = segment.load_index().first_at(control - segment.base_offset) == position
        return self._find(control) if is_there else (segment, position)

    def _end_of_read(
        self, segment: Segment, position: int, offset: int, limit: int
    ) -> tuple[int, int | None]:
        """Where a read from `position` of this segment must stop, and the offset that follows there, if known."""
        stop = limit if limit < segment.next_offset else segment.next_offset
        controls = self.controls
        if controls and controls[-1] > offset:
            for control in controls[bisect_right(controls, offset) :]:
                if control > stop:
                    break
                at = segment.load_index().first_at(control - segment.base_offset)
                # Where compaction left a gap, the batch that was found may be after the control entry.
                if at is not None and at > position:
                    return at, None
        if stop == segment.next_offset:
            return segment.size, stop
        cached = self.positions.get(stop)
        if cached is not None and cached[0] is segment:
            return cached[1], stop
        return segment.locate(stop), stop

    def _shorten(self, segment: Segment, position: int, end: int, first_max: int) -> tuple[int, int | None]:
        """The last position before `end` where a batch begins, as far as the index knows; else by the headers."""
        relative, cut = segment.load_index().floor_position(end)
        if cut > position:
            return cut, relative + segment.base_offset
        cut, next_offset = position, None
        for at, header in segment.headers(position, end):
            following = at + header.size
            if following > end and not (at == position and header.size <= first_max):
                break
            cut, next_offset = following, header.next_offset
        return cut, next_offset
