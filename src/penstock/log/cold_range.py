"""Bytes of a segment that are not in the system's cache of files: a read of them waits for the disk.

Readers read on the event loop, where nothing may wait. So a reader of old records asks for the cold part of its read
first, has a thread load it, and reads afterwards, from memory. The thread touches nothing but the file, which stays
open for it: meanwhile the log may be appended to, truncated or deleted, and the read that follows finds what is there.

Linux tells whether bytes are in its cache. Where a system does not tell, nothing counts as cold.
"""

from penstock.log.disk import File
from penstock.log.segment import Segment

RECENT_BYTES = 8 * 1024 * 1024
"""The last bytes that this process has appended to a segment are in the cache: readers at the log's end ask nothing."""
READ_LEAST_BYTES = 64 * 1024
"""A read returns one batch at least, whatever its limit, so that much is looked at."""


class ColdRange:
    """A range of a segment that a thread should load. `hold` and `release` are for the event loop."""

    __slots__ = ("_count", "_file", "_position", "_segment")

    def __init__(self, segment: Segment, position: int, count: int) -> None:
        self._segment = segment
        self._position = position
        self._count = count
        self._file: File | None = None

    def hold(self) -> None:
        """Keeps the file open until `release`. One that was closed meanwhile is left alone: the read opens it."""
        self._file = self._segment.pin()

    def load(self) -> None:
        """For a thread: returns when the bytes are in the cache. Raises StorageError, or CorruptLog for
        bytes that the disk has lost."""
        if self._file is not None:
            self._file.load(self._position, self._count)

    def release(self) -> None:
        """The file may be closed again. Called once for each `hold`, when no thread loads the range."""
        self._segment.unpin()


def find_cold(segment: Segment, position: int, max_bytes: int) -> ColdRange | None:
    """The range of a read of so many bytes at this position, if a part of it is cold."""
    size = segment.size
    if position >= segment.written_from and size - position <= RECENT_BYTES:
        return None
    count = min(max(max_bytes, READ_LEAST_BYTES), size - position)
    return None if segment.file.is_cached(position, count) else ColdRange(segment, position, count)
