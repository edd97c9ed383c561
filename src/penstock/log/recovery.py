"""Opening a log after a clean stop or a crash. `layout` explains why it is correct; this is the procedure.

Wrong bytes have one of two results: `CorruptLog` if they were flushed, a shorter log if they were not.
"""

from bisect import bisect_left, bisect_right
from typing import NoReturn

from penstock.errors import CorruptLog
from penstock.log.checkpoint import Checkpoint, FlushPoint
from penstock.log.disk import Disk
from penstock.log.index import SegmentIndex
from penstock.log.layout import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    RESET_NAME,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    file_name,
    offsets_of,
)
from penstock.log.reset import finish_reset
from penstock.log.scan import BadBatch, note, scan
from penstock.log.segment import Segment
from penstock.log.segment_files import finish_swap, remove_indexes, remove_segment
from penstock.log.snapshot import Snapshot, load_snapshot, newest_snapshot, snapshot_path
from penstock.log.state import LogState
from penstock.types import NO_TERM, Offset, Term


class Recovery:
    """Reads one log's folder. After `run`, `segments`, `state`, `checkpoint` and `start_offset` describe it."""

    def __init__(self, disk: Disk, folder: str, interval: int, *, repair: bool) -> None:
        self._disk = disk
        self._folder = folder
        self._interval = interval
        self._repair = repair
        self._names: list[str] = []
        self._line = FlushPoint(0, 0, 0)
        self._file_sizes: dict[Segment, int] = {}
        self.checkpoint = Checkpoint(disk, folder)
        self.segments: list[Segment] = []
        self.state = LogState()
        self.cuts: list[str] = []
        """The bytes that were cut off, for the operator: a torn tail is no error, but worth a log line."""
        self.scanned_bytes = 0
        """Bytes that the newest snapshot did not cover."""
        self.deleted: list[Segment] = []
        """Segments of a deleted prefix, to be removed."""
        self.unsaved: list[Segment] = []
        """Segments whose indexes were rebuilt."""

    def run(self) -> None:
        self._names = self._disk.list_dir(self._folder)
        self._finish_reset()
        self._finish_swaps()
        self._remove_temporary_files()
        self.checkpoint.load()
        if self.checkpoint.facts.swapping:
            self._forget_snapshots(self.checkpoint.facts.cleaned_offset)
        self.state.adopt(self.checkpoint.facts)
        bases = offsets_of(self._names, LOG_SUFFIX)
        if not bases:
            self._open_empty()
            return
        self.segments = [self._segment(base) for base in bases]
        snapshot = self._choose_snapshot()
        state = self.state
        if snapshot is not None:
            state.start_offset = max(state.start_offset, Offset(snapshot.start_offset))
        self._set_deleted_aside(snapshot)
        if self.segments[0].base_offset > state.start_offset:
            self._lose_all(snapshot)
            return
        self._draw_line(snapshot)
        first = self._restore(snapshot) if snapshot is not None else self._begin_without()
        self._scan_from(first, snapshot.position if snapshot is not None else 0)
        state.terms.delete_prefix(state.start_offset)
        if state.end_offset < max(self._line.offset, state.start_offset):
            reason = (
                f"the log ends before offset {self.state.end_offset}, and {self._line.offset} was flushed"
            )
            self._corrupt(self.segments[-1], self.segments[-1].size, reason)
        # After an interrupted truncation: entries that will be written behind the end will have no gaps.
        state.cleaned_offset = min(state.cleaned_offset, state.end_offset)
        state.gaps_below = min(state.gaps_below, state.end_offset)
        state.transactions.trim(state.start_offset)
        self._forget_aborted_without_marker()

    # --- names

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _finish_reset(self) -> None:
        """The file that announces a reset is complete and flushed before it gets its name: from then on the old log no
        longer counts."""
        if RESET_NAME not in self._names:
            return
        if not self._repair:
            raise CorruptLog(
                self._path(RESET_NAME), 0, "an unfinished reset; opening for writing completes it"
            )
        finish_reset(self._disk, self._folder)
        self._names = self._disk.list_dir(self._folder)

    def _finish_swaps(self) -> None:
        """A swap file is complete and flushed before it gets its name; the segments that it replaces may be removed."""
        swaps = [name for name in self._names if name.endswith(SWAP_SUFFIX)]
        if swaps and not self._repair:
            raise CorruptLog(
                self._path(swaps[0]), 0, "an unfinished compaction; opening for writing completes it"
            )
        for name in swaps:
            finish_swap(self._disk, self._folder, name)
        if swaps:
            self._names = self._disk.list_dir(self._folder)

    def _forget_snapshots(self, below: int) -> None:
        """Removes snapshots in segments that a compaction was about to replace. Recovery treats this log as not
        compacted, and would then take them for valid."""
        for offset in offsets_of(self._names, SNAPSHOT_SUFFIX) if self._repair else ():
            snapshot = load_snapshot(self._disk, self._folder, offset)
            if snapshot is None or snapshot.base_offset < below:
                self._disk.remove(snapshot_path(self._folder, offset))
        self._disk.sync_dir(self._folder)
        self._names = self._disk.list_dir(self._folder)

    def _remove_temporary_files(self) -> None:
        if self._repair:
            for name in self._names:
                if name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
                    self._disk.remove(self._path(name))

    def _set_deleted_aside(self, snapshot: Snapshot | None) -> None:
        """Takes out segments of a deleted prefix: those that the snapshot makes dispensable or, without one, those
        whose removal may have begun. The others are read once more, for the state of producers and terms."""
        limit = self.checkpoint.facts.removed.base_offset
        if snapshot is not None:
            limit = min(self.state.start_offset, snapshot.base_offset)
            if self._may_need_controls_at(limit, snapshot):
                limit -= 1
        while len(self.segments) > 1 and self.segments[1].base_offset <= limit:
            self.deleted.append(self.segments.pop(0))

    def _may_need_controls_at(self, offset: int, snapshot: Snapshot) -> bool:
        """Control entries at the log's start may be at the end of the segment before, and not be committed; unless that
        segment had left the log already. The first version did not record that, and wrote no such entries."""
        gone = max(snapshot.first_base, self.checkpoint.facts.removed.base_offset)
        is_recorded = snapshot.first_base > 0 or snapshot.start_controls == 0
        return is_recorded and offset > gone and offset in snapshot.controls

    def _open_empty(self) -> None:
        """There is no segment. That is possible only for a log that never had a flushed byte."""
        facts = self.checkpoint.facts
        if facts.flushed.position > 0 or facts.flushed.offset > facts.start_offset:
            path = self._path(file_name(facts.flushed.base_offset, LOG_SUFFIX))
            raise CorruptLog(path, 0, f"is gone, although it was flushed up to byte {facts.flushed.position}")
        self.state.begin_at(self.state.start_offset)

    def _lose_all(self, snapshot: Snapshot | None) -> None:
        """The first segment is gone. Its name may never have been flushed, while the names of later ones were."""
        facts, start_offset = self.checkpoint.facts, self.state.start_offset
        if snapshot is not None or facts.flushed > (start_offset, start_offset, 0) or not self._repair:
            path = self._path(file_name(start_offset, LOG_SUFFIX))
            raise CorruptLog(path, 0, f"is gone, and the next segment is {self.segments[0].path}")
        for segment in reversed(self.segments):
            remove_segment(self._disk, self._folder, segment.base_offset)
            self._disk.sync_dir(self._folder)
        self.segments = []
        self.state.begin_at(start_offset)

    def _segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self._folder, base_offset, self._interval)
        segment.size = self._file_sizes[segment] = self._disk.size(segment.path)
        return segment

    # --- where to begin, and the flushed line

    def _choose_snapshot(self) -> Snapshot | None:
        """The newest valid one whose segment was neither deleted with the prefix nor changed by compaction."""
        bases = {segment.base_offset for segment in self.segments}
        oldest = max(min(bases), self.checkpoint.facts.removed.base_offset)
        for offset in reversed(offsets_of(self._names, SNAPSHOT_SUFFIX)):
            snapshot = load_snapshot(self._disk, self._folder, offset)
            if snapshot is None:
                if self._repair:
                    self._disk.remove(snapshot_path(self._folder, offset))
            elif snapshot.base_offset >= self.checkpoint.facts.cleaned_offset and (
                snapshot.base_offset in bases or snapshot.base_offset > oldest
            ):
                return snapshot
        return None

    def _draw_line(self, snapshot: Snapshot | None) -> None:
        """Below this line every byte was flushed."""
        first = self.segments[0].base_offset
        line = self.checkpoint.facts.flushed
        if snapshot is not None:
            known = FlushPoint(snapshot.offset, snapshot.base_offset, snapshot.position)
            line = max(line, known)
        if line.base_offset < first:
            line = FlushPoint(first, first, 0)
        # A line at position 0 does not imply that the file exists: its name may not have been flushed yet.
        sizes = {segment.base_offset: segment.size for segment in self.segments}
        size = sizes.get(line.base_offset, 0)
        if size < line.position:
            path = self._path(file_name(line.base_offset, LOG_SUFFIX))
            raise CorruptLog(
                path, size, f"the file ends here, although it was flushed up to byte {line.position}"
            )
        self._line = line

    def _is_promised(self, segment: Segment, position: int) -> bool:
        return (segment.base_offset, position) < (self._line.base_offset, self._line.position)

    # --- restoring a snapshot

    def _begin_without(self) -> int:
        """Everything will be scanned. An older snapshot, whose positions compaction has changed, may have producers
        that the compacted log no longer shows: recovery takes only those from it."""
        first = self.segments[0].base_offset
        self.state.begin_at(first)
        older = newest_snapshot(self._disk, self._folder, first, self._line.offset)
        if older is not None:
            self.state.producers.restore(older.producers, older.transactions)
            self.state.producers_from = older.offset
        return 0

    def _restore(self, snapshot: Snapshot) -> int:
        """Restores the state as of the snapshot; returns the number of its segment."""
        number = next(i for i, s in enumerate(self.segments) if s.base_offset == snapshot.base_offset)
        for at in range(number):
            self._restore_sealed(self.segments[at], self.segments[at + 1].base_offset)
        self._restore_active(self.segments[number], snapshot)
        present = sum(segment.control_count for segment in self.segments[: number + 1])
        self.state.restore(snapshot, present)
        return number

    def _restore_sealed(self, segment: Segment, next_base: int) -> None:
        head = segment.read_saved_head()
        if head is not None and head[:3] == (segment.base_offset, segment.size, next_base):
            segment.adopt(head)
        else:
            self._index_only(segment, segment.size)
            if not self.state.may_follow(segment.next_offset, next_base):
                reason = f"the segment ends before offset {segment.next_offset}, and the next one begins at {next_base}"
                self._corrupt(segment, segment.size, reason)
            segment.next_offset = next_base

    def _restore_active(self, segment: Segment, snapshot: Snapshot) -> None:
        head = segment.read_saved_head()
        if (
            head is not None
            and head.base_offset == segment.base_offset
            and head.log_size >= snapshot.position
        ):
            segment.size = snapshot.position
            segment.load_index().truncate(snapshot.position)
            segment.resume(snapshot.position, snapshot.offset, snapshot.control_count)
        else:
            self._index_only(segment, snapshot.position)
        self.unsaved.append(segment)

    def _index_only(self, segment: Segment, end: int) -> None:
        """Rebuilds the index and facts of a segment, or of its first part, whose batches are already in the state."""
        segment.index = SegmentIndex()
        term = NO_TERM
        try:
            for position, header, _ in scan(segment.file, 0, end):
                if (
                    not self.state.may_follow(segment.next_offset, header.base_offset)
                    or header.leader_epoch < term
                ):
                    reason = f"offset {header.base_offset} of term {header.leader_epoch} is out of order"
                    raise BadBatch(position, reason)
                term = Term(header.leader_epoch)
                note(segment, position, header)
        except BadBatch as problem:
            self._corrupt(segment, problem.position, problem.reason)
        self.unsaved.append(segment)

    # --- scanning the rest

    def _scan_from(self, number: int, position: int) -> None:
        for at in range(number, len(self.segments)):
            segment = self.segments[at]
            end = self._file_sizes[segment]
            if at > number:
                position = 0
            if position == 0:
                segment.index = SegmentIndex()
                segment.next_offset = segment.base_offset
            segment.size = position
            if not self._scan_segment(segment, at, position, end):
                return

    def _scan_segment(self, segment: Segment, at: int, position: int, end: int) -> bool:
        """False if the log ends in this segment."""
        if position == 0 and not self._enter_segment(segment, at):
            return False
        try:
            if end and not self._is_promised(segment, end - 1):
                self._see_the_disk(segment)
            for here, header, batch in scan(segment.file, position, end):
                try:
                    self.state.replay(header, batch)
                except ValueError as problem:
                    raise BadBatch(here, str(problem)) from None
                note(segment, here, header)
                self.scanned_bytes += header.size
        except BadBatch as problem:
            self._end_here(segment, at, problem.position, problem.reason)
            return False
        finally:
            self._scanned(segment)
        return True

    def _see_the_disk(self, segment: Segment) -> None:
        """Flushes the bytes above the line, which may be in memory only, and makes the system read them from the disk.
        If a flush failed in a process that has ended, the system may have dropped bytes and still show them. Recovery
        would count them as flushed, and a later power cut would make them look like rot."""
        if self._repair:
            segment.file.flush()
        segment.file.forget_cached()

    def _enter_segment(self, segment: Segment, at: int) -> bool:
        """Whether this segment may follow the entries read so far; if not, the log ended before it."""
        end_offset, base_offset = self.state.end_offset, segment.base_offset
        previous = self.segments[at - 1] if at > 0 else None
        if self.state.may_follow(end_offset, base_offset):
            self.state.end_offset = Offset(base_offset)
            if previous is not None:
                previous.next_offset = base_offset
                segment.base_snapshot = self._base_snapshot(base_offset)
            return True
        assert previous is not None
        reason = f"the next segment begins at offset {base_offset}, where {end_offset} must follow"
        self._end_here(previous, at - 1, previous.size, reason)
        return False

    def _base_snapshot(self, base_offset: int) -> Snapshot:
        point = FlushPoint(base_offset, base_offset, 0)
        return self.state.snapshot_at(point, 0, self.segments[0].base_offset)

    def _scanned(self, segment: Segment) -> None:
        if segment not in self.unsaved:
            self.unsaved.append(segment)

    def _end_here(self, segment: Segment, at: int, position: int, reason: str) -> None:
        """The log ends at this position, or it is corrupt."""
        if self._is_promised(segment, position) or not self._repair:
            self._corrupt(segment, position, reason)
        lost = segment.file.size - position + sum(later.file.size for later in self.segments[at + 1 :])
        self.cuts.append(
            f"{segment.path} at byte {position}: {lost} bytes that were never flushed are cut off ({reason})"
        )
        for later in reversed(self.segments[at + 1 :]):
            later.close()
            remove_segment(self._disk, self._folder, later.base_offset)
            self._disk.sync_dir(self._folder)
        del self.segments[at + 1 :]
        remove_indexes(self._disk, self._folder, segment.base_offset)
        self._disk.sync_dir(self._folder)
        segment.file.truncate(position)
        segment.file.flush()

    def _forget_aborted_without_marker(self) -> None:
        """The snapshot may be older than the compaction that removed a marker: `aborted` says why its entry must go."""
        state = self.state
        markers = state.transactions.aborted.last_offsets
        compacted = bisect_left(markers, max(state.cleaned_offset, state.gaps_below))
        state.transactions.aborted.remove([at for at in markers[:compacted] if not self._has_control_at(at)])

    def _has_control_at(self, offset: int) -> bool:
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        segment = self.segments[at]
        position = segment.locate(offset)
        header = next((header for _, header in segment.headers(position, segment.size)), None)
        return header is not None and header.base_offset == offset and header.control

    def _corrupt(self, segment: Segment, position: int, reason: str) -> NoReturn:
        raise CorruptLog(segment.path, position, reason)

    def close(self) -> None:
        """The log cannot be opened: closes its files."""
        for segment in (*self.segments, *self.deleted):
            segment.close()

    def has_unflushed_names(self) -> bool:
        """Whether a segment has bytes above the line: recovery has flushed these, but not the name of the segment."""
        return any(s.size and not self._is_promised(s, s.size - 1) for s in self.segments)
