"""A copy of a log's state and indexes, taken on the event loop, for a maintenance task to write."""

from penstock.log.segment import Segment
from penstock.log.snapshot import Snapshot


class Capture:
    """A maintenance task writes it once everything below `snapshot.offset` is flushed: indexes, then the snapshots of
    the beginnings of segments, then the snapshot. In this order: a snapshot implies that the files before it exist."""

    __slots__ = ("base_snapshots", "indexes", "segments", "snapshot")

    def __init__(self, snapshot: Snapshot, segments: list[Segment]) -> None:
        self.snapshot = snapshot
        self.segments = segments
        self.indexes = [(segment.head(), segment.load_index().copy()) for segment in segments]
        self.base_snapshots = [(s, s.base_snapshot) for s in segments if s.base_snapshot is not None]

    def keep(self, segments: set[Segment]) -> None:
        """Drops the indexes of segments that compaction or retention has removed since: they must not come back."""
        pairs = [pair for pair in zip(self.segments, self.indexes, strict=True) if pair[0] in segments]
        self.segments = [segment for segment, _ in pairs]
        self.indexes = [index for _, index in pairs]
