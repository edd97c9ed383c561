"""Opening a log after whatever happened to it. `layout` has the argument; here is the procedure.

Two kinds of wrong bytes leave this room in two ways: `CorruptLog` for what was flushed, a shorter log for
what was not.
"""

from collections.abc import Iterator
from typing import NoReturn

from penstock.batch import HEADER_SIZE, BatchHeader, check_batch
from penstock.errors import BatchError, CorruptLog
from penstock.log.checkpoint import Checkpoint, FlushPoint
from penstock.log.disk import Disk, File
from penstock.log.index import SegmentIndex
from penstock.log.layout import (
    CALLERS_OWN,
    CLEANED_SUFFIX,
    CONTROL_HEAD,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
    offsets_of,
    swap_range,
)
from penstock.log.producers import UNSEEN, ProducerStates
from penstock.log.segment import Segment, newest_timestamp
from penstock.log.snapshot import Snapshot, load_snapshot, newest_snapshot, snapshot_path
from penstock.log.terms import TermCache
from penstock.types import NO_TERM, Term

SCAN_WINDOW = 1024 * 1024
"""Read at once while scanning; a larger batch is read whole."""


class BadBatch(Exception):
    """The bytes at `position` are not the batch that must stand there."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class LogState:
    """What a log knows besides its bytes. Rebuilt batch by batch with `replay`, kept up by the log itself."""

    __slots__ = ("controls", "end_offset", "last_term", "producers", "producers_from", "terms")

    def __init__(self) -> None:
        self.end_offset = 0
        self.last_term: int = NO_TERM
        self.terms = TermCache()
        self.controls: list[int] = []
        """Offsets of the control entries in all segments, in order. Short: one per reign or membership."""
        self.producers = ProducerStates()
        self.producers_from = 0
        """Batches below this offset are known to `producers` already."""

    def restore(self, snapshot: Snapshot) -> None:
        self.end_offset = snapshot.offset
        self.last_term = snapshot.last_term
        self.terms = TermCache(snapshot.terms)
        self.controls = list(snapshot.controls)
        self.producers.restore(snapshot.producers)

    def replay(self, header: BatchHeader, batch: memoryview, cleaned_offset: int) -> None:
        """Takes the next batch of the log into account; raises ValueError if it cannot be the next one. Below
        `cleaned_offset` compaction may have removed what would be."""
        expected = self.end_offset
        if not (header.base_offset == expected or expected < header.base_offset <= cleaned_offset):
            raise ValueError(f"offset {header.base_offset} where {expected} must follow")
        if header.is_zero_width:
            self._replay_control(header, batch[HEADER_SIZE:])
        elif header.leader_epoch != self.last_term:
            # The first batch after a deleted prefix is believed: its term's beginning is gone.
            if self.last_term != NO_TERM:
                raise ValueError(f"term {header.leader_epoch} within term {self.last_term}")
            self.last_term = header.leader_epoch
            self.terms.begin(self.last_term, header.base_offset)
        if header.producer_id >= 0 and header.base_offset >= self.producers_from:
            self.producers.record(header, header.base_offset, UNSEEN)
        self.end_offset = header.next_offset

    def _replay_control(self, header: BatchHeader, payload: memoryview) -> None:
        if len(payload) < CONTROL_HEAD.size:
            raise ValueError("a control entry without term and offset")
        kind, term, offset = CONTROL_HEAD.unpack_from(payload)
        if (term, offset) != (header.leader_epoch, header.base_offset) or kind > CALLERS_OWN:
            raise ValueError(f"a control entry of term {term} at {offset} is stamped otherwise")
        if term < self.last_term:
            raise ValueError(f"term {term} begins after term {self.last_term}")
        if term > self.last_term:
            self.last_term = term
            self.terms.begin(term, offset)
        self.controls.append(header.base_offset)


def scan(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of every batch in a range of a file. Raises BadBatch where it stops making
    sense."""
    window, window_start = memoryview(b""), position
    while position < end:
        at = position - window_start
        size = _size_at(window, at)
        if size is None or at + size > len(window):
            window, window_start, at = _read_window(file, position, end), position, 0
        try:
            header = check_batch(window, at)
        except BatchError as problem:
            raise BadBatch(position, problem.message) from None
        yield position, header, window[at : at + header.size]
        position += header.size


def _size_at(window: memoryview, at: int) -> int | None:
    """The size that the batch at `at` claims, if its length field is in the window."""
    if at + HEADER_SIZE > len(window):
        return None
    return 12 + int.from_bytes(window[at + 8 : at + 12], "big")


def _read_window(file: File, position: int, end: int) -> memoryview:
    data = file.read_at(position, min(SCAN_WINDOW, end - position))
    size = _size_at(memoryview(data), 0)
    if size is not None and len(data) < size <= end - position:
        data = file.read_at(position, size)
    return memoryview(data)


class Recovery:
    """Reads one log's folder. After `run`, `segments`, `state`, `checkpoint` and `start_offset` describe
    it."""

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
        self.start_offset = 0
        self.start_controls = 0
        self.scanned_bytes = 0
        """What the newest snapshot did not cover."""
        self.leftovers: list[Segment] = []
        """Segments that only wait for their removal."""
        self.unsaved: list[Segment] = []
        """Segments whose indexes were rebuilt."""

    def run(self) -> None:
        self._names = self._disk.list_dir(self._folder)
        self._finish_swaps()
        self._remove_leftovers()
        self.checkpoint.load()
        bases = offsets_of(self._names, LOG_SUFFIX)
        if not bases:
            self._open_empty()
            return
        self.segments = [self._segment(base) for base in bases]
        snapshot = self._choose_snapshot()
        self.start_controls = self.checkpoint.facts.start_controls
        self.start_offset = self.checkpoint.facts.start_offset
        if snapshot is not None:
            self.start_offset = max(self.start_offset, snapshot.start_offset)
        self._set_leftovers_aside(snapshot)
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        self._draw_line(snapshot)
        first = self._restore(snapshot) if snapshot is not None else self._begin_without()
        self._scan_from(first, snapshot.position if snapshot is not None else 0)
        self.state.terms.delete_prefix(self.start_offset)
        if self.state.end_offset < max(self._line.offset, self.start_offset):
            reason = (
                f"the log ends before offset {self.state.end_offset}, and {self._line.offset} was flushed"
            )
            self._corrupt(self.segments[-1], self.segments[-1].size, reason)

    # --- names

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _finish_swaps(self) -> None:
        """A swap file is complete and flushed before it gets its name; all that it replaces may go."""
        swaps = [name for name in self._names if name.endswith(SWAP_SUFFIX)]
        if swaps and not self._repair:
            raise CorruptLog(
                self._path(swaps[0]), 0, "an unfinished compaction; opening for writing finishes it"
            )
        for name in swaps:
            finish_swap(self._disk, self._folder, name)
        if swaps:
            self._names = self._disk.list_dir(self._folder)

    def _remove_leftovers(self) -> None:
        if self._repair:
            for name in self._names:
                if name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
                    self._disk.remove(self._path(name))

    def _set_leftovers_aside(self, snapshot: Snapshot | None) -> None:
        """Segments of a deleted prefix that are of no more use: those that the snapshot makes dispensable and,
        without one, those whose removal may have begun. Others are read once more, for what they say of
        producers and terms."""
        limit = self.checkpoint.facts.first_base
        if snapshot is not None:
            limit = min(self.start_offset, snapshot.base_offset)
        while len(self.segments) > 1 and self.segments[1].base_offset <= limit:
            self.leftovers.append(self.segments.pop(0))

    def _open_empty(self) -> None:
        """No segment. That is right only for a log that never had a flushed byte."""
        facts = self.checkpoint.facts
        if facts.flushed.position > 0 or facts.flushed.offset > facts.start_offset:
            path = self._path(file_name(facts.flushed.base_offset, LOG_SUFFIX))
            raise CorruptLog(path, 0, f"gone, and it was flushed up to byte {facts.flushed.position}")
        self.start_offset = self.state.end_offset = facts.start_offset

    def _segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self._folder, base_offset, self._interval)
        segment.size = self._file_sizes[segment] = self._disk.size(segment.path)
        return segment

    # --- where to begin, and what was promised

    def _choose_snapshot(self) -> Snapshot | None:
        """The newest that is whole. Not one in a segment that went with the prefix, or that compaction has changed."""
        bases = {segment.base_offset for segment in self.segments}
        oldest = max(min(bases), self.checkpoint.facts.first_base)
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
        # A line at position 0 says nothing of that file, whose name may not have been flushed yet.
        sizes = {segment.base_offset: segment.size for segment in self.segments}
        size = sizes.get(line.base_offset, 0)
        if size < line.position:
            path = self._path(file_name(line.base_offset, LOG_SUFFIX))
            raise CorruptLog(path, size, f"the file ends here, and it was flushed up to byte {line.position}")
        self._line = line

    def _is_promised(self, segment: Segment, position: int) -> bool:
        return (segment.base_offset, position) < (self._line.base_offset, self._line.position)

    # --- what is known without reading the log

    def _begin_without(self) -> int:
        """All is scanned. An older snapshot, whose positions compaction has changed, may know more of producers than
        what compaction has left: then it is believed about those."""
        first = self.segments[0].base_offset
        self.state.end_offset = first
        older = newest_snapshot(self._disk, self._folder, first, self._line.offset)
        if older is not None:
            self.state.producers.restore(older.producers)
            self.state.producers_from = older.offset
        return 0

    def _restore(self, snapshot: Snapshot) -> int:
        """The state as of the snapshot; returns the number of its segment."""
        number = next(i for i, s in enumerate(self.segments) if s.base_offset == snapshot.base_offset)
        for at in range(number):
            self._restore_sealed(self.segments[at], self.segments[at + 1].base_offset)
        self._restore_active(self.segments[number], snapshot)
        self.state.restore(snapshot)
        gone = len(snapshot.controls) - sum(segment.control_count for segment in self.segments[: number + 1])
        del self.state.controls[:gone]
        self.start_controls = snapshot.start_controls + gone
        return number

    def _restore_sealed(self, segment: Segment, next_base: int) -> None:
        head = segment.read_saved_head()
        if head is not None and head[:3] == (segment.base_offset, segment.size, next_base):
            segment.adopt(head)
        else:
            self._index_only(segment, segment.size)
            if not self._may_follow(segment.next_offset, next_base):
                reason = (
                    f"ends before offset {segment.next_offset}, and the next segment begins at {next_base}"
                )
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
        """Rebuilds the books of a segment, or its first part, whose effect on the state is known."""
        segment.index = SegmentIndex()
        term = NO_TERM
        try:
            for position, header, _ in scan(segment.file, 0, end):
                if (
                    not self._may_follow(segment.next_offset, header.base_offset)
                    or header.leader_epoch < term
                ):
                    reason = f"offset {header.base_offset} of term {header.leader_epoch} is out of order"
                    raise BadBatch(position, reason)
                term = Term(header.leader_epoch)
                note(segment, position, header)
        except BadBatch as problem:
            self._corrupt(segment, problem.position, problem.reason)
        self.unsaved.append(segment)

    # --- reading the rest

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
        """False if the log was found to end in this segment."""
        state, cleaned_offset = self.state, self.checkpoint.facts.cleaned_offset
        if position == 0 and not self._enter_segment(segment, at):
            return False
        try:
            for here, header, batch in scan(segment.file, position, end):
                try:
                    state.replay(header, batch, cleaned_offset)
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

    def _enter_segment(self, segment: Segment, at: int) -> bool:
        """Whether this segment may follow on what was read so far; if not, the log ended before it."""
        end_offset, base_offset = self.state.end_offset, segment.base_offset
        previous = self.segments[at - 1] if at > 0 else None
        if self._may_follow(end_offset, base_offset):
            self.state.end_offset = base_offset
            if previous is not None:
                previous.next_offset = base_offset
            return True
        assert previous is not None
        reason = f"offset {base_offset} is next, where {end_offset} must follow"
        self._end_here(previous, at - 1, previous.size, reason)
        return False

    def _may_follow(self, end_offset: int, base_offset: int) -> bool:
        """Offsets go on without a gap, except where compaction has been."""
        return end_offset == base_offset or end_offset < base_offset <= self.checkpoint.facts.cleaned_offset

    def _scanned(self, segment: Segment) -> None:
        if segment not in self.unsaved:
            self.unsaved.append(segment)

    def _end_here(self, segment: Segment, at: int, position: int, reason: str) -> None:
        """The log ends at this position, or it is corrupt."""
        if self._is_promised(segment, position) or not self._repair:
            self._corrupt(segment, position, reason)
        for later in reversed(self.segments[at + 1 :]):
            later.close()
            remove_segment(self._disk, self._folder, later.base_offset)
            self._disk.sync_dir(self._folder)
        del self.segments[at + 1 :]
        remove_indexes(self._disk, self._folder, segment.base_offset)
        self._disk.sync_dir(self._folder)
        segment.file.truncate(position)
        segment.file.flush()

    def _corrupt(self, segment: Segment, position: int, reason: str) -> NoReturn:
        raise CorruptLog(segment.path, position, reason)

    def unflushed(self) -> list[Segment]:
        """Segments with bytes above the line: read back, but perhaps from memory only."""
        return [s for s in self.segments if s.size and not self._is_promised(s, s.size - 1)]


def note(segment: Segment, position: int, header: BatchHeader) -> None:
    """Enters a batch that was read into the segment's books."""
    if header.is_zero_width:
        segment.note_control(position, header.size, header.base_offset)
    else:
        segment.note(position, header.size, header.base_offset, header.next_offset, newest_timestamp(header))


def remove_segment(disk: Disk, folder: str, base_offset: int) -> None:
    """The log itself goes last: indexes without it are harmless, it without indexes costs a scan."""
    remove_indexes(disk, folder, base_offset)
    disk.remove(Segment.sidecar(folder, base_offset, LOG_SUFFIX))


def remove_indexes(disk: Disk, folder: str, base_offset: int) -> None:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.remove(Segment.sidecar(folder, base_offset, suffix))


def finish_swap(disk: Disk, folder: str, name: str) -> None:
    """Puts a compacted segment in the place of what it replaces. May be repeated at any point."""
    base, end = swap_range(name)
    for old in offsets_of(disk.list_dir(folder), LOG_SUFFIX):
        if base < old < end:
            remove_segment(disk, folder, old)
    remove_indexes(disk, folder, base)
    disk.sync_dir(folder)
    disk.rename(f"{folder}/{name}", Segment.sidecar(folder, base, LOG_SUFFIX))
    disk.sync_dir(folder)
