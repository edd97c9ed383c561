"""A cache of file positions: the next read of a sequential reader, or of one at the log's end, starts at one of them.

Two generations of a dict: when the young one is full it becomes the old one and the old one is dropped. That bounds
both memory and the cost of a `put`, and keeps the last CAPACITY to 2 * CAPACITY positions.
"""

from penstock.log.segment import Segment

CAPACITY = 256
"""Positions in one generation: the appends of a busy second between two flushes, and one position per reader."""


class PositionCache:
    """Maps an offset (or an index) to the segment and position at which the batch with it begins, or will begin."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[int, tuple[Segment, int]] = {}
        self._old: dict[int, tuple[Segment, int]] = {}

    def put(self, offset: int, segment: Segment, position: int) -> None:
        if len(self._young) >= CAPACITY:
            self._old, self._young = self._young, {}
        self._young[offset] = (segment, position)

    def get(self, offset: int) -> tuple[Segment, int] | None:
        return self._young.get(offset) or self._old.get(offset)

    def clear(self) -> None:
        """Positions are no longer valid: truncation, compaction, deletion of the prefix."""
        self._young, self._old = {}, {}
