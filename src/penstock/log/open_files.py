"""The files of segments that are open: a bounded number on each disk, however many partitions there are.

A process may open so many files and no more, and connections need some of them. So when a segment opens its file and
the bound is reached, the file of another segment is closed, one that was not used recently. It is opened again when it
is needed: a segment's file has one name as long as its log is open.

**A file with bytes that are not flushed stays open, or is flushed before it is closed.** Linux reports that bytes could
not be written once to each descriptor that was open when it happened; one that is opened later may not be told, and the
kernel may have dropped the bytes. If such a file were closed and flushed through another descriptor, the flush could
succeed although the bytes are lost. For the same reason a flush that fails here is final: the segment takes no more
writes and no more flushes, as after every failed flush.

A flush in a thread uses a descriptor meanwhile, so a pinned file is not in the list: at most twice the bound is open.
Everything happens on the event loop. Other threads open files of their own, and close them soon.
"""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.segment import Segment

UNBOUNDED = 2**63


class OpenFiles:
    """The segments with an open file, those that were opened longest ago first."""

    def __init__(self, most: int = UNBOUNDED) -> None:
        self._most = max(1, most)
        self._segments: dict[Segment, None] = {}
        self.opened = 0
        """How often a file was opened that had been closed, or that was never open before."""
        self._thread = threading.get_ident()

    def __len__(self) -> int:
        return len(self._segments)

    def make_room(self) -> None:
        """Call before a file is opened: closes one if there are too many."""
        while len(self._segments) >= self._most and self.close_one():
            pass

    def add(self, segment: "Segment") -> None:
        """Its file is open, and may be closed when others need its place."""
        self._thread = threading.get_ident()
        self.make_room()
        self._segments[segment] = None

    def forget(self, segment: "Segment") -> None:
        self._segments.pop(segment, None)

    def close_one(self) -> bool:
        """Whether there was a file to close. Never in another thread: its owner may be using it."""
        if threading.get_ident() != self._thread or not self._segments:
            return False
        segment = self._least_used()
        del self._segments[segment]
        segment.evict()
        return True

    def _least_used(self) -> "Segment":
        """One that was not used since this came to it last, and is flushed. If all were used, the next one that is
        flushed; if none is, any."""
        segments = self._segments
        for _ in range(2 * len(segments)):
            segment = next(iter(segments))
            if not segment.used and not segment.dirty:
                return segment
            segment.used = False
            del segments[segment]
            segments[segment] = None
        return next(iter(segments))
