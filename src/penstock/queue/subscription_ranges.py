"""Which offsets of a partition are done: all below the first undone one, and ranges above it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[int, int]
"""The first offset, and the end: the last plus one."""


class DoneRanges:
    """Only grows. The ranges neither touch each other nor begin at the first undone offset."""

    __slots__ = ("_ends", "_starts", "first_undone")

    def __init__(self, first_undone: int, ranges: Iterable[Range] = ()) -> None:
        self.first_undone = first_undone
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    def __contains__(self, offset: int) -> bool:
        if offset < self.first_undone:
            return True
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __len__(self) -> int:
        """How many ranges there are above the first undone offset."""
        return len(self._starts)

    def ranges(self) -> Iterable[Range]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, first: int, end: int) -> bool:
        """Returns whether any offset was not done before. Ranges that touch are merged."""
        starts, ends = self._starts, self._ends
        first = max(first, self.first_undone)
        if first >= end:
            return False
        low = bisect_left(ends, first)
        high = bisect_right(starts, end)
        if low < high:
            if starts[low] <= first and end <= ends[low]:
                return False
            first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low:high] = [first]
        ends[low:high] = [end]
        if starts[0] <= self.first_undone:
            self.first_undone = ends[0]
            del starts[0], ends[0]
        return True
