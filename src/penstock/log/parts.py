"""What a log is made of, and the facts that follow: the common ground of `Log`'s parts.

Not thread-safe, on purpose: every method runs on the event loop. What blocks is handed out as an object that a thread
runs (a flush ticket, chores, a compaction plan, a scrub), touches only what it captured, and comes back to the loop.
"""

from penstock.config import TopicConfig
from penstock.errors import DiskFull, StorageError
from penstock.log.chain import SegmentChain
from penstock.log.checkpoint import Checkpoint, CheckpointFacts, FlushPoint
from penstock.log.compaction import CompactionPlan
from penstock.log.disk import Disk
from penstock.log.flush import Capture, Flushing
from penstock.log.producers import ProducerStates
from penstock.log.rolling import set_limits
from penstock.log.segment import Segment
from penstock.log.snapshot import Snapshot
from penstock.log.state import LogState
from penstock.log.upkeep import Upkeep
from penstock.types import Index, Offset, Term


class LogParts:
    """Fields, facts, and how the next segment begins."""

    def __init__(self, disk: Disk, path: str, config: TopicConfig) -> None:
        self.config = config
        self.path = path
        self.failed: StorageError | None = None
        """Why the log takes no more appends."""
        self.cuts: list[str] = []
        """What opening had to cut off, in words: written but never flushed, and torn by a crash."""
        self.commit_index: Index | None = None
        """What is below can never be truncated; None: that is all that is flushed. Retention, deletion of a prefix and
        compaction stay below it. For a log of several replicas it is set right after opening, then as it grows."""
        self._disk = disk
        self._parent = path.rpartition("/")[0]
        self._state = LogState()
        self._chain = SegmentChain([], self._state.controls.offsets)
        self._upkeep = Upkeep(disk, path, Checkpoint(disk, path))
        self._generation = 0
        """Rises whenever segments change other than by growing: plans made before are void."""
        self._plan: CompactionPlan | None = None
        self._flushing = Flushing(disk, FlushPoint(0, 0, 0), 0)
        self._appended_bytes = 0

    # --- facts, by offsets

    @property
    def start_offset(self) -> Offset:
        """The first that can be read."""
        return self._state.start_offset

    @property
    def end_offset(self) -> Offset:
        """The one that the next record gets."""
        return self._state.end_offset

    @property
    def flushed_offset(self) -> Offset:
        return Offset(self._flushing.point.offset)

    @property
    def commit_offset(self) -> Offset | None:
        """What is below can never be truncated; see `commit_index`."""
        return None if self.commit_index is None else self.offset_at(self.commit_index)

    @commit_offset.setter
    def commit_offset(self, offset: Offset | None) -> None:
        self.commit_index = None if offset is None else self.index_at(offset)

    @property
    def last_term(self) -> Term:
        """Of the last entry ever, also if that went with the prefix."""
        return self._state.last_term

    def end_of_term(self, term: Term) -> tuple[Term, Offset]:
        """The last term not after `term` and where it ended, as OffsetForLeaderEpoch wants it; (-1, -1): unknown."""
        return self._state.terms.end_of(term, self.end_offset)

    def term_at(self, offset: Offset) -> Term:
        return self._state.terms.at(offset)

    # --- facts, by Raft's index (controls.py)

    @property
    def first_index(self) -> Index:
        """Of the first entry that is still here. Readers may start later: within a batch, or behind it."""
        bases = self._chain.bases
        return Index((bases[0] if bases else self.end_offset) + self._state.controls.gone)

    @property
    def end_index(self) -> Index:
        return Index(self._state.end_index)

    @property
    def flushed_index(self) -> Index:
        """All below survives a power cut."""
        return Index(self._flushing.index)

    @property
    def control_count(self) -> int:
        """Control entries ever stored and not truncated, deleted ones included: end_offset plus this is
        Raft's index."""
        return self._state.controls.total

    def offset_at(self, index: int) -> Offset:
        """The offset that the entry at this boundary has."""
        return Offset(self._state.controls.offset_at(index))

    def index_at(self, offset: int) -> Index:
        """The other way round; control entries at that offset are not counted in. Within a batch it is an index within
        the batch: `floor` of it is the batch's own."""
        return Index(self._state.controls.index_at(offset))

    # --- other facts

    @property
    def dirty(self) -> bool:
        """Whether there is something to flush."""
        return self._flushing.is_dirty

    @property
    def size_bytes(self) -> int:
        return self._chain.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._chain.segments)

    @property
    def producers(self) -> ProducerStates:
        return self._state.producers

    @property
    def cleaned_offset(self) -> Offset:
        """Below it, offsets may be missing: here, or in the log that the entries came from."""
        return Offset(max(self._state.cleaned_offset, self._state.gaps_below))

    @property
    def received_below(self) -> Offset:
        """Below it, entries may have come from a log that was compacted."""
        return Offset(self._state.gaps_below)

    def _facts(self) -> CheckpointFacts:
        return self._state.facts(self._flushing.point)

    def _end_point(self) -> FlushPoint:
        active = self._chain.active
        if active is None:
            return FlushPoint(self.end_offset, self.end_offset, 0)
        return FlushPoint(self.end_offset, active.base_offset, active.size)

    def _settled_index(self) -> int:
        """What is below is flushed and can never be truncated."""
        flushed = self._flushing.index
        return flushed if self.commit_index is None else min(flushed, self.commit_index)

    # --- common work

    def _check_writable(self) -> None:
        if self.failed is not None:
            raise StorageError(f"{self.path} takes no writes: {self.failed}")

    def _write_failed(self, problem: StorageError) -> None:
        """No space is the weather; anything else is the disk."""
        if not isinstance(problem, DiskFull):
            self.failed = problem

    def _capture(self) -> Capture:
        active = self._chain.active
        assert active is not None
        snapshot = self._snapshot_at(self._end_point(), active.control_count)
        return self._upkeep.capture(snapshot, active, self._appended_bytes)

    def _snapshot_at(self, point: FlushPoint, control_count: int) -> Snapshot:
        return self._state.snapshot_at(point, control_count, self._chain.bases[0])

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self.path, base_offset, self.config.index_interval_bytes)
        set_limits(segment, self.config, self.path)
        return segment

    def _flush_before_a_gap(self, active: Segment) -> None:
        """Where offsets may be missing, recovery cannot tell the end of a segment that was never flushed from a gap,
        and would go on with the next one. So there is a next one only when all before it is on the disk, with names.
        """
        try:
            active.file.flush()
            self._disk.sync_dir(self.path)
        except StorageError as problem:
            self.failed = problem  # the system may have dropped what it could not write
            raise

    def _start_segment(self) -> Segment:
        """Seals the active segment, if any, and begins the next one at the log's end."""
        chain = self._chain
        if not chain.segments:
            self._disk.make_dir(self.path)
            self._flushing.mark_folder(self._parent)
            if not self._disk.volatile:
                # Now, so that later saves find their place even on a full disk.
                self._upkeep.checkpoint.save(self._facts())
        if chain.active is not None and self._state.gaps_below >= self.end_offset:
            self._flush_before_a_gap(chain.active)
        segment = self._new_segment(self.end_offset)
        segment.create()
        self._flushing.mark_folder(self.path)
        if chain.active is not None:
            segment.base_snapshot = self._snapshot_at(FlushPoint(self.end_offset, self.end_offset, 0), 0)
            self._upkeep.must_save(chain.active)
        chain.add(segment)
        return segment


def controls_in(segments: list[Segment]) -> int:
    return sum(segment.control_count for segment in segments)
