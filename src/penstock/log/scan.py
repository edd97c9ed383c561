"""Reading a segment's file batch by batch, checking everything: for recovery, compaction and scrubbing."""

from collections.abc import Iterator

from penstock.batch import HEADER_SIZE, BatchHeader, check_batch
from penstock.batch.header import LENGTH_OVERHEAD
from penstock.errors import BatchError
from penstock.log.disk import File
from penstock.log.segment import Segment, newest_timestamp

SCAN_WINDOW = 1024 * 1024
"""Bytes per read; a larger batch is read whole."""


class BadBatch(Exception):
    """The bytes at `position` are not a valid batch, or not the one that must follow."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def scan(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of every batch in a range of a file. Raises BadBatch at the first wrong one."""
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
    return LENGTH_OVERHEAD + int.from_bytes(window[at + 8 : at + 12], "big")


def _read_window(file: File, position: int, end: int) -> memoryview:
    data = file.read_at(position, min(SCAN_WINDOW, end - position))
    size = _size_at(memoryview(data), 0)
    if size is not None and len(data) < size <= end - position:
        data = file.read_at(position, size)
    return memoryview(data)


def note(segment: Segment, position: int, header: BatchHeader) -> None:
    """Enters a batch that was read into the segment's index and facts."""
    if header.is_zero_width:
        segment.note_control(position, header.size, header.base_offset)
    else:
        segment.note(position, header.size, header.base_offset, header.next_offset, newest_timestamp(header))
