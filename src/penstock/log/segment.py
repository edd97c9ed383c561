"""One segment: a file of batches, its indexes, and the facts known about both.

A segment is *active* while it is the log's last, and sealed afterwards. The active one always has its index in memory.
A sealed one opens file and index when it is read, and `close_unused` closes them again, so that a log of any length
costs a bounded number of bytes. `open_files` bounds the descriptors of all logs: it may close the file of any segment
that was added to a log's list (`join`), and the segment opens it again when it is used.

`note` is the only method that enters a batch into index and facts, whether it was just appended or read by recovery: so
recovered indexes are equal to those that were lost, and replicas roll at the same offsets.
"""

from collections.abc import Iterator
from struct import Struct

from penstock.batch import HEADER_SIZE, BatchHeader, Buffer, read_header
from penstock.batch.header import LENGTH_OVERHEAD, MIN_BATCH_LENGTH
from penstock.errors import BatchError, CorruptLog, StorageError
from penstock.log.checkpoint import Removed
from penstock.log.disk import Disk, File
from penstock.log.index import HEAD_SIZE, IndexHead, SegmentIndex, read_head
from penstock.log.layout import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, sidecar
from penstock.log.open_files import OpenFiles
from penstock.log.snapshot import Snapshot

EXTENT = Struct(">qi11xi")
"""base_offset, batch_length and last_offset_delta of a batch's header: all that a search needs."""
MAX_OFFSET_SPAN = 2**31 - 1
"""The most offsets in one segment: the index has 4 bytes for an offset."""
UNLIMITED = 2**63
PROBE_SIZE = 4096
"""Read at once when headers are wanted: a page. Small batches come many to a probe."""


class Segment:
    """One file of batches. Positions are bytes from its beginning."""

    __slots__ = (
        "_closing",
        "_disk",
        "_file",
        "_flush_error",
        "_folder",
        "_force_entry",
        "_open_files",
        "_pins",
        "_unindexed",
        "base_offset",
        "base_snapshot",
        "checked_from",
        "checked_to",
        "control_count",
        "delete_horizon_ms",
        "dirty",
        "first_timestamp",
        "index",
        "index_full",
        "index_saved",
        "interval",
        "max_index_bytes",
        "max_size",
        "max_timestamp",
        "next_offset",
        "path",
        "removed_before",
        "roll_ms",
        "size",
        "used",
        "written_from",
    )

    def __init__(self, disk: Disk, folder: str, base_offset: int, interval: int) -> None:
        self._disk = disk
        self._folder = folder
        self.path = sidecar(folder, base_offset, LOG_SUFFIX)
        self.base_offset = base_offset
        self.base_snapshot: Snapshot | None = None
        """The log's state before the first entry here, until that is saved. On a volatile disk it stays."""
        self.removed_before: Removed | None = None
        """For a segment that waits for its removal: the facts to record if all segments before it are removed and it is
        not."""
        self.next_offset = base_offset
        """The offset after the last; for a compacted segment, the next segment's base."""
        self.size = 0
        self.max_timestamp = -1
        self.first_timestamp = -1
        self.max_size = UNLIMITED
        self.max_index_bytes = UNLIMITED
        self.index_full = False
        self.roll_ms = UNLIMITED
        """A batch that is this much later than the first one opens the next segment."""
        self.delete_horizon_ms = -1
        self.control_count = 0
        self.interval = interval
        self.index: SegmentIndex | None = None
        self.index_saved = False
        self.dirty = False
        """It has bytes that are in no flush ticket."""
        self._file: File | None = None
        self._open_files: OpenFiles | None = None
        self.used = False
        """Its file was used since `open_files` looked last."""
        self.written_from = 0
        """Bytes from here on were written through the open file, and need no check when they are read."""
        self.checked_from = self.checked_to = 0
        """The bytes in between have been checked since the file was opened (`checked_read`)."""
        self._flush_error: StorageError | None = None
        """Why its bytes may be lost: the flush before its file was closed has failed."""
        self._pins = 0
        self._closing = False
        self._unindexed = 0
        self._force_entry = False
        """The last entry is a control entry: the next entry gets an index entry."""

    @property
    def has_records(self) -> bool:
        """Whether it owns an offset: control entries alone do not count."""
        return self.next_offset > self.base_offset

    def has_room(self, size: int, next_offset: int, timestamp: int) -> bool:
        """Whether a batch of this size, end and time may be written here. No clock is involved: replicas must agree.

        No segment ends with a control entry while it is being written: that takes no offset, so if a crash removed it,
        the next segment would seem to follow without a gap. The entry after it is written here, even if it is full.
        """
        return (
            not (
                self.size + size > self.max_size
                # A first batch without a timestamp cannot say when to roll.
                or (timestamp - self.first_timestamp > self.roll_ms and self.first_timestamp >= 0)
                or self.index_full
                or next_offset - self.base_offset > MAX_OFFSET_SPAN
            )
            or self._force_entry
        )

    # --- files

    def create(self) -> None:
        """Makes the file, and discards what a dead process may have left under this name."""
        file = self._disk.open(self.path, create=True)
        if file.size:
            file.truncate(0)
        self._file = file
        self.index = SegmentIndex()

    @property
    def file(self) -> File:
        """The file, opened if it was closed. Ask for it again after anything else may have been opened."""
        self.used = True
        if self._file is None:
            self._open()
        assert self._file is not None
        return self._file

    def file_for_writing(self) -> File:
        self.check_flushed()
        return self.file

    def _open(self) -> None:
        if self._open_files is not None:
            self._open_files.opened += 1
            self._open_files.make_room()
        try:
            self._file = self._disk.open(self.path)
        except FileNotFoundError as problem:
            raise StorageError(f"{self.path} is gone") from problem
        self.written_from, self.checked_from, self.checked_to = self.size, 0, 0
        if self._open_files is not None:
            self._open_files.add(self)

    def note_checked(self, position: int, end: int) -> None:
        """One range is kept: that of the first reader, and of those that follow it."""
        if self.checked_to == 0:
            self.checked_from, self.checked_to = position, end
        elif self.checked_from <= position <= self.checked_to:
            self.checked_to = max(self.checked_to, end)

    def join(self, open_files: OpenFiles) -> None:
        """Belongs to a log now, and is used on the event loop only."""
        self._open_files = open_files
        self.written_from = self.size
        if self._file is not None:
            open_files.add(self)

    def check_flushed(self) -> None:
        """Raises StorageError if the flush before its file was closed has failed: it may lack bytes."""
        if self._flush_error is not None:
            raise StorageError(f"{self.path} could not be flushed: {self._flush_error}")

    def evict(self) -> None:
        """Another file needs the descriptor. `open_files` says why bytes are flushed before."""
        if self._file is not None:
            if self.dirty:
                try:
                    self._file.flush()
                except StorageError as problem:
                    self._flush_error = problem
            self._file.close()
            self._file = None

    def pin(self) -> File | None:
        """The file, which stays open until `unpin`: a flush in another thread holds its descriptor. None if it was
        closed, and so was flushed before."""
        self._pins += 1
        if self._open_files is not None:
            self._open_files.forget(self)
        return self._file

    def unpin(self) -> None:
        self._pins -= 1
        if self._pins == 0:
            if self._closing:
                self.close()
            elif self._file is not None and self._open_files is not None:
                self._open_files.add(self)

    def close(self) -> None:
        """Closes the file at once, or when the flush under way has come back."""
        self._closing = self._pins > 0
        if not self._closing and self._file is not None:
            self._file.close()
            self._file = None
            if self._open_files is not None:
                self._open_files.forget(self)

    def close_unused(self) -> None:
        """Closes what can be opened again. An index that exists in memory only stays, and a file that is not flushed
        (`open_files` says why)."""
        if self._pins == 0 and not self.dirty:
            self.close()
        if self.index_saved:
            self.index = None

    # --- index and facts

    def append(self, batch: Buffer, base_offset: int, next_offset: int, timestamp: int) -> None:
        position = self.size
        self.used = True
        if self._flush_error is not None:
            self.check_flushed()
        file = self._file if self._file is not None else self.file
        file.append(batch)
        self.note(position, len(batch), base_offset, next_offset, timestamp)

    def note(self, position: int, size: int, base_offset: int, next_offset: int, timestamp: int) -> None:
        """A batch of `size` bytes is at `position`. `timestamp` is the latest of its records."""
        if self._unindexed > self.interval or self._force_entry:
            assert self.index is not None
            self.index.add(base_offset - self.base_offset, position, self.max_timestamp)
            self.index_full = self.index.size_bytes() >= self.max_index_bytes
            self._unindexed = 0
            self._force_entry = False
        self._unindexed += size
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if self.next_offset == self.base_offset:
            self.first_timestamp = timestamp
        self.size = position + size
        self.next_offset = next_offset

    def note_control(self, position: int, size: int, offset: int) -> None:
        """A control entry is at `position`. Of several before one batch, the first has the index entry."""
        assert self.index is not None
        relative = offset - self.base_offset
        if self.index.first_at(relative) is None:
            self.index.add(relative, position, self.max_timestamp)
        self._unindexed = 0
        self._force_entry = True
        self.control_count += 1
        self.size = position + size
        if offset > self.next_offset:  # behind a gap
            self.next_offset = offset

    def truncate(self, position: int, next_offset: int, control_count: int) -> None:
        """Cuts the file, durably, and removes the cut batches from index and facts."""
        index = self.load_index()
        file = self.file_for_writing()
        file.truncate(position)
        file.flush()
        index.truncate(position)
        self.resume(position, next_offset, control_count)

    def resume(self, position: int, next_offset: int, control_count: int) -> None:
        """The index covers what is before `position`, and only that; the next batch goes there."""
        index = self.load_index()
        last_offset, last_position = index.floor_position(position)
        self.size = position
        self.next_offset = next_offset
        self.control_count = control_count
        self.index_full = index.size_bytes() >= self.max_index_bytes
        self.index_saved = False
        self._unindexed = position - last_position
        # Only a control entry can have the end's own offset, and the batch after it must have an entry.
        self._force_entry = bool(index.offsets) and last_offset + self.base_offset == next_offset
        newest = [newest_timestamp(header) for _, header in self.headers(last_position, position)]
        self.max_timestamp = max(newest + [index.times[-1] if index.times else -1])
        first = next((header for _, header in self.headers(0, position) if not header.is_zero_width), None)
        self.first_timestamp = newest_timestamp(first) if first is not None else -1

    # --- indexes

    def head(self) -> IndexHead:
        return IndexHead(
            self.base_offset,
            self.size,
            self.next_offset,
            self.max_timestamp,
            self.first_timestamp,
            self.delete_horizon_ms,
            self.control_count,
        )

    def adopt(self, head: IndexHead) -> None:
        """Takes the facts from a checked head of an index file instead of reading the segment."""
        self.size = head.log_size
        self.next_offset = head.next_offset
        self.max_timestamp = head.max_timestamp
        self.first_timestamp = head.first_timestamp
        self.delete_horizon_ms = head.delete_horizon_ms
        self.control_count = head.control_count
        self.index_saved = True

    def read_saved_head(self) -> IndexHead | None:
        """The head of the saved .index file, if there is one."""
        try:
            file = self._disk.open(sidecar(self._folder, self.base_offset, INDEX_SUFFIX))
        except FileNotFoundError:
            return None
        try:
            return read_head(file.read_at(0, HEAD_SIZE))
        except CorruptLog:
            return None
        finally:
            file.close()

    def load_index(self) -> SegmentIndex:
        """The index from memory, else from its files, else from the headers in the segment."""
        if self.index is None:
            self.index = self._read_index() or self._rebuild_index()
        return self.index

    def _read_index(self) -> SegmentIndex | None:
        """None if it is gone or damaged: it can be rebuilt."""
        head = self.read_saved_head()
        if head is None:
            return None
        try:
            offsets = self._disk.read_file(sidecar(self._folder, self.base_offset, INDEX_SUFFIX))
            times = self._disk.read_file(sidecar(self._folder, self.base_offset, TIME_INDEX_SUFFIX))
        except (FileNotFoundError, CorruptLog):
            return None
        return SegmentIndex.decode(head, offsets, times)

    def _rebuild_index(self) -> SegmentIndex:
        """The index files were lost after the segment was checked: its headers are enough."""
        fresh = Segment(self._disk, self._folder, self.base_offset, self.interval)
        fresh.index = SegmentIndex()
        for position, header in self.headers(0, self.size):
            if header.is_zero_width:
                fresh.note_control(position, header.size, header.base_offset)
            else:
                fresh.note(
                    position, header.size, header.base_offset, header.next_offset, newest_timestamp(header)
                )
        return fresh.index

    # --- reading

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch that begins in this range, which begins with one."""
        window, window_start = b"", position
        while position < end:
            at = position - window_start
            if at + HEADER_SIZE > len(window):
                window, window_start, at = self.file.read_at(position, PROBE_SIZE), position, 0
            try:
                header = read_header(window, at)
            except BatchError as problem:
                raise CorruptLog(self.path, position, problem.message) from None
            yield position, header
            position += header.size

    def locate(self, offset: int, *, no_control: bool = False) -> int:
        """The position of the first batch whose last offset is `offset` or later; the end if there is none.

        `no_control`: no control entry has this offset, so an index entry for it is that of the batch. (With one there,
        and its batch removed by compaction, the entry would be the control entry's.)
        """
        index = self.load_index()
        entry_offset, position = index.floor(offset - self.base_offset)
        # Without an index entry, a control entry may be at the segment's beginning: compaction may have left it there.
        if (
            no_control
            and entry_offset + self.base_offset == offset
            and index.first_at(entry_offset) is not None
        ):
            return position
        end, window, at = self.size, b"", 0
        while position < end:
            if at + EXTENT.size > len(window):
                window, at = self.file.read_at(position, PROBE_SIZE), 0
            if at + EXTENT.size > len(window):
                raise CorruptLog(self.path, position, "the file ends within a batch's header")
            base_offset, length, last_offset_delta = EXTENT.unpack_from(window, at)
            if length < MIN_BATCH_LENGTH:
                raise CorruptLog(self.path, position, f"a batch of {length} bytes")
            if base_offset + last_offset_delta >= offset and last_offset_delta >= 0:
                return position
            position += LENGTH_OVERHEAD + length
            at += LENGTH_OVERHEAD + length
        return end


def newest_timestamp(header: BatchHeader) -> int:
    """Some clients leave the header's maximum at -1."""
    return header.max_timestamp if header.max_timestamp >= 0 else header.base_timestamp
