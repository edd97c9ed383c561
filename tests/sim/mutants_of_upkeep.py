"""Seeded bugs of compaction and retention, and of files that are closed for others."""

from penstock.log import compaction, compactor, retention, segment
from penstock.node import housekeeping
from penstock.sim.seeds import NODE
from tests.sim.mutant import Change, Mutant

UPKEEP_MUTANTS = (
    Mutant(
        "compaction above the commit",
        "a replica compacts by what its leader may still take back",
        (Change(compactor.Compactor, "_stable_segments", "or segment.next_offset + controls > limit", ""),),
        level=NODE,
        seeds=30,
    ),
    Mutant(
        "tombstones supersede nothing",
        "what was deleted comes back when its tombstone goes",
        (
            Change(
                compaction.CompactionPlan,
                "_read_keys",
                "if record.key is not None and",
                "if record.key is not None and record.value is not None and",
            ),
        ),
        level=NODE,
        seeds=400,
    ),
    Mutant(
        "tombstones go at once",
        "a reader who is behind does not learn of a deletion",
        (
            Change(
                compaction.CompactionPlan,
                "_copy",
                "source.next_offset <= self._dirty_from and 0 <= source.delete_horizon_ms <= self._now_ms",
                "True",
            ),
        ),
        level=NODE,
        seeds=500,
    ),
    Mutant(
        "compacted segment not flushed",
        "segments are removed before what replaces them is on the disk",
        (Change(compaction.CompactionPlan, "_rewrite", "target.file.flush()", "pass"),),
        level=NODE,
        seeds=20,
    ),
    Mutant(
        "retention by followers",
        "a replica deletes what is old by its own clock",
        (Change(housekeeping.Housekeeping, "_tidy", "if partition.leads:", "if True:"),),
        level=NODE,
        seeds=20,
    ),
    Mutant(
        "young records deleted",
        "retention by age deletes too early",
        (Change(retention, "_count_by_age", "<= retention_ms", "<= retention_ms // 2"),),
        level=NODE,
        seeds=150,
    ),
    Mutant(
        "one segment too many",
        "retention by size leaves less than it should",
        (Change(retention, "_count_by_size", "if excess < 0:", "if excess < -segment.size:"),),
        level=NODE,
        seeds=150,
    ),
    Mutant(
        "file closed without a flush",
        "the file of a segment is closed for another one, and its bytes are taken for flushed",
        (Change(segment.Segment, "evict", "if self.dirty:", "if False:"),),
        level=NODE,
        seeds=20,
    ),
    Mutant(
        "flush before closing fails unheard",
        "bytes that could not be flushed before their file was closed are taken for flushed",
        (Change(segment.Segment, "evict", "self._flush_error = problem", "pass"),),
        level=NODE,
        seeds=1000,
    ),
)
