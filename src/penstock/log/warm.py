"""The few sealed segments of a log that are open for reading, the least recently read first."""

from penstock.log.segment import Segment

MAX_WARM = 4
"""Per log: two readers that lag, each crossing from one segment to the next. Bounds descriptors and index memory."""


class WarmSegments:
    """Opens nothing itself: it decides who must let go."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: dict[Segment, None] = {}

    def use(self, segment: Segment) -> None:
        self._segments.pop(segment, None)
        self._segments[segment] = None
        if len(self._segments) > MAX_WARM:
            coldest = next(iter(self._segments))
            del self._segments[coldest]
            coldest.cool()

    def holds(self, segment: Segment) -> bool:
        return segment in self._segments

    def drop(self, segment: Segment) -> None:
        """It went, or became the active one."""
        self._segments.pop(segment, None)
