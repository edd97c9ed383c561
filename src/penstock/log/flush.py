"""Flushing one log: what is dirty is captured on the event loop, flushed in a thread, entered on the loop.

A ticket touches nothing but the files that it captured, so the log may go on meanwhile: append, roll, truncate, even be
deleted (captured files stay open until the ticket is back). A truncation lowers what the ticket will be taken to have
flushed, and a reset voids it. A second ticket may not be taken before the first is back: its end could overtake the
other's files.

How far the log is flushed is kept as a place in the files, which recovery understands, and as Raft's index: control
entries of one offset may be flushed in part, and the offset alone would not tell.
"""

from contextlib import suppress

from penstock.log.checkpoint import FlushPoint
from penstock.log.disk import Disk, File
from penstock.log.segment import Segment
from penstock.log.snapshot import Snapshot


class FlushTicket:
    """`run` flushes everything below `point.offset`. Instead of it the whole disk may be synced."""

    __slots__ = (
        "_disk",
        "_files",
        "_folders",
        "appended_bytes",
        "capture",
        "files",
        "index",
        "point",
        "segments",
    )

    def __init__(
        self,
        disk: Disk,
        segments: list[Segment],
        folders: list[str],
        *,
        point: FlushPoint,
        index: int,
        appended_bytes: int,
    ) -> None:
        self._disk = disk
        self._files: list[File] = [segment.pin() for segment in segments]
        self._folders = folders
        self.segments = segments
        self.point = point
        self.index = index
        self.appended_bytes = appended_bytes
        self.capture: Capture | None = None
        self.files = 0 if disk.volatile else len(self._files) + len(folders)
        """How many flushes `run` will do: what it costs."""

    def run(self) -> None:
        """In any thread. Raises StorageError; the caller hands it to `finish_flush` and never tries again."""
        for file in self._files:
            file.flush()
        for folder in self._folders:
            # The folder of a log that was destroyed meanwhile is gone, and with it the reason to flush.
            with suppress(FileNotFoundError):
                self._disk.sync_dir(folder)

    def release(self) -> None:
        """On the event loop, once `run` has returned."""
        for segment in self.segments:
            segment.unpin()


class Capture:
    """What housekeeping will write once everything below `snapshot.offset` is flushed: indexes, the snapshots of the
    beginnings of segments, then the snapshot. In this order: a snapshot says that those before it are there."""

    __slots__ = ("base_snapshots", "indexes", "segments", "snapshot")

    def __init__(self, snapshot: Snapshot, segments: list[Segment]) -> None:
        self.snapshot = snapshot
        self.segments = segments
        self.indexes = [(segment.head(), segment.load_index().copy()) for segment in segments]
        self.base_snapshots = [(s, s.base_snapshot) for s in segments if s.base_snapshot is not None]

    def keep(self, segments: set[Segment]) -> None:
        """Compaction and retention may have taken segments away since; their indexes must not come back."""
        pairs = [pair for pair in zip(self.segments, self.indexes, strict=True) if pair[0] in segments]
        self.segments = [segment for segment, _ in pairs]
        self.indexes = [index for _, index in pairs]


class Flushing:
    """What of one log is flushed, what is being flushed, and what is not."""

    __slots__ = ("_disk", "_folders", "_segments", "index", "point", "ticket")

    def __init__(self, disk: Disk, point: FlushPoint, index: int) -> None:
        self._disk = disk
        self._segments: list[Segment] = []
        self._folders: list[str] = []
        self.point = point
        """All before it is on the disk."""
        self.index = index
        """The same place, counted in Raft's way."""
        self.ticket: FlushTicket | None = None
        """The one that is out."""

    @property
    def is_dirty(self) -> bool:
        return bool(self._segments or self._folders)

    def mark(self, segment: Segment) -> None:
        """It has bytes that are not flushed."""
        if not segment.dirty:
            segment.dirty = True
            self._segments.append(segment)

    def mark_folder(self, folder: str) -> None:
        """It has names that are not flushed."""
        if folder not in self._folders:
            self._folders.append(folder)

    def begin(self, end: FlushPoint, end_index: int, appended_bytes: int) -> FlushTicket:
        """A ticket for all that is dirty, which is before `end`."""
        if self.ticket is not None:
            raise RuntimeError("a flush of this log is under way")
        segments, self._segments = self._segments, []
        folders, self._folders = self._folders, []
        for segment in segments:
            segment.dirty = False
        self.ticket = FlushTicket(
            self._disk, segments, folders, point=end, index=end_index, appended_bytes=appended_bytes
        )
        return self.ticket

    def finish(self, ticket: FlushTicket, *, succeeded: bool) -> bool:
        """False for a ticket of a log that was reset meanwhile: it says nothing of this one."""
        ticket.release()
        if ticket is not self.ticket:
            return False
        self.ticket = None
        if succeeded:
            self.point = max(self.point, ticket.point)
            self.index = max(self.index, ticket.index)
        return True

    def truncate(self, cut: FlushPoint, cut_index: int, dropped: list[Segment]) -> None:
        """What is behind `cut` goes. The ticket that is out will not have flushed what comes to stand there."""
        self._segments = [segment for segment in self._segments if segment not in dropped]
        self.point = min(self.point, cut)
        self.index = min(self.index, cut_index)
        if self.ticket is not None:
            self.ticket.point = min(self.ticket.point, cut)
            self.ticket.index = min(self.ticket.index, cut_index)
            self.ticket.capture = None
