"""Which offsets of a partition are done: all below a floor, and ranges above it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[int, int]
"""From the first offset to the one behind the last."""


class DoneRanges:
    """Grows only. The ranges are apart from each other and from the floor, so the floor is the lowest that is not
    done."""

    __slots__ = ("_ends", "_starts", "floor")

    def __init__(self, floor: int, ranges: Iterable[Range] = ()) -> None:
        self.floor = floor
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    def __contains__(self, offset: int) -> bool:
        if offset < self.floor:
            return True
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __len__(self) -> int:
        """How many ranges there are above the floor."""
        return len(self._starts)

    def ranges(self) -> Iterable[Range]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, first: int, end: int) -> bool:
        """Whether that was news. What touches is one range afterwards."""
        starts, ends = self._starts, self._ends
        first = max(first, self.floor)
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
        if starts[0] <= self.floor:
            self.floor = ends[0]
            del starts[0], ends[0]
        return True
