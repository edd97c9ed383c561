"""The cleanup policy of a seed's topic: keep everything, compact, or delete by age and size.

Sizes and times are small, so that segments are sealed, compacted and dropped many times within a run. The topic of
committed offsets inherits the sizes and is compacted whatever the policy.
"""

from random import Random

import msgspec

DAY_MS = 86_400_000
UNLIMITED = -1


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Retention and compaction settings of one seed. `segment_ms` is by the records' own time."""

    compact: bool = False
    segment_ms: int = 1000
    dirty_ratio: float = 0.5
    tombstones_ms: int = DAY_MS
    """How long compaction keeps a tombstone. Clocks are hours apart: a day is for ever here, a second is nothing."""
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED

    @property
    def expires(self) -> bool:
        return self.retention_ms != UNLIMITED or self.retention_bytes != UNLIMITED

    @property
    def keeps_tombstones(self) -> bool:
        return self.tombstones_ms >= DAY_MS

    def topic_defaults(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact" if self.compact else "delete",
            "delete.retention.ms": str(self.tombstones_ms),
            "index.interval.bytes": "500",
            "min.cleanable.dirty.ratio": str(self.dirty_ratio),
            "retention.bytes": str(self.retention_bytes),
            "retention.ms": str(self.retention_ms),
            "segment.ms": str(self.segment_ms),
        }


def draw_policy(random: Random) -> Policy:
    """A third keep everything: there, logs can be compared byte by byte."""
    kind = random.choice(("all", "compact", "expiring"))
    if kind == "compact":
        return Policy(
            compact=True,
            segment_ms=random.choice((150, 400)),
            dirty_ratio=random.choice((0.01, 0.5)),
            tombstones_ms=random.choice((1, 1000, DAY_MS)),
        )
    if kind == "expiring":
        retention_ms, retention_bytes = random.choice(
            ((600, UNLIMITED), (1500, UNLIMITED), (UNLIMITED, 2500), (3000, 4000))
        )
        return Policy(segment_ms=200, retention_ms=retention_ms, retention_bytes=retention_bytes)
    return Policy()
