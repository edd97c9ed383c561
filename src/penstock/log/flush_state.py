"""How far a log is flushed, and the ticket that flushes the rest.

The event loop captures what is dirty in a `FlushTicket`, a thread runs it, and the loop enters the result. A ticket
touches nothing but the files that it captured, so the log may meanwhile append, roll, truncate or even be deleted:
captured files stay open until the ticket is back. A truncation lowers what the ticket will count as flushed, and a
reset voids it. A second ticket is not issued before the first is back: its end could overtake the files of the first.

The flushed end is kept as a position in the files, which recovery understands, and as Raft's index: several control
entries have the same offset, and some of them may be flushed while others are not.
"""

from contextlib import suppress

from penstock.log.capture import Capture
from penstock.log.checkpoint import FlushPoint
from penstock.log.disk import Disk, File
from penstock.log.segment import Segment


class FlushTicket:
    """`run` flushes everything below `point.offset`. The caller may sync the whole disk instead."""

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
        self._files: list[File] = [file for segment in segments if (file := segment.pin()) is not None]
        self._folders = folders
        self.segments = segments
        self.point = point
        self.index = index
        self.appended_bytes = appended_bytes
        self.capture: Capture | None = None
        self.files = 0 if disk.volatile else len(self._files) + len(folders)
        """How many flushes `run` does: its cost."""

    def run(self) -> None:
        """Flushes, in any thread. Raises StorageError; the caller passes it to `Flushes.finish` and never retries."""
        for file in self._files:
            file.flush()
        for folder in self._folders:
            # If the log was destroyed meanwhile, its folder is gone and needs no flush.
            with suppress(FileNotFoundError):
                self._disk.sync_dir(folder)

    def release(self) -> None:
        """Unpins the segments; called on the event loop once `run` has returned."""
        for segment in self.segments:
            segment.unpin()


class FlushState:
    """Which part of one log is flushed, which part is being flushed, and which files are dirty."""

    __slots__ = ("_folders", "_segments", "index", "point", "ticket")

    def __init__(self, point: FlushPoint, index: int) -> None:
        self._segments: list[Segment] = []
        self._folders: list[str] = []
        self.point = point
        """All before it is on the disk."""
        self.index = index
        """The same position as Raft's index."""
        self.ticket: FlushTicket | None = None
        """The ticket that was issued and is not back."""

    @property
    def is_dirty(self) -> bool:
        return bool(self._segments or self._folders)

    def mark(self, segment: Segment) -> None:
        """The segment has bytes that are not flushed."""
        if not segment.dirty:
            segment.dirty = True
            self._segments.append(segment)

    def mark_folder(self, folder: str) -> None:
        """The folder has names that are not flushed."""
        if folder not in self._folders:
            self._folders.append(folder)

    def issue(self, disk: Disk, end: FlushPoint, end_index: int, appended_bytes: int) -> FlushTicket:
        """A ticket for all dirty files. Everything in them is before `end`. Raises StorageError if one of them was
        closed, and the flush before that has failed."""
        if self.ticket is not None:
            raise RuntimeError("a flush of this log is under way")
        for segment in self._segments:
            segment.check_flushed()
        segments, self._segments = self._segments, []
        folders, self._folders = self._folders, []
        for segment in segments:
            segment.dirty = False
        self.ticket = FlushTicket(
            disk, segments, folders, point=end, index=end_index, appended_bytes=appended_bytes
        )
        return self.ticket

    def finish(self, ticket: FlushTicket, *, succeeded: bool) -> bool:
        """False for a ticket issued before a reset: it says nothing about this log."""
        ticket.release()
        if ticket is not self.ticket:
            return False
        self.ticket = None
        if succeeded:
            self.point = max(self.point, ticket.point)
            self.index = max(self.index, ticket.index)
        return True

    def truncate(self, cut: FlushPoint, cut_index: int, dropped: list[Segment]) -> None:
        """Everything behind `cut` is removed. The ticket that is out does not flush what will be written there."""
        self._segments = [segment for segment in self._segments if segment not in dropped]
        self.point = min(self.point, cut)
        self.index = min(self.index, cut_index)
        if self.ticket is not None:
            self.ticket.point = min(self.ticket.point, cut)
            self.ticket.index = min(self.ticket.index, cut_index)
            self.ticket.capture = None
