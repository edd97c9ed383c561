"""The state of one log that its writer, truncation, retention, flushes, compaction and maintenance share.

`LogFiles` owns the segments, the state that follows from their batches, the flushed point and the checkpoint. The other
objects of a log hold a reference to it and keep only what is their own. A reset replaces the inner objects, so no other
object keeps a reference to those.

Not thread-safe, on purpose: every method runs on the event loop. Blocking work is handed out as an object that a thread
runs (a flush ticket, a maintenance task, a compaction plan, a scrub plan). It touches only what it captured, and the
loop then enters its result.
"""

from contextlib import suppress

from penstock.config import TopicConfig
from penstock.errors import CorruptLog, OutOfResources, StorageError
from penstock.log.checkpoint import Checkpoint, CheckpointFacts, FlushPoint
from penstock.log.disk import Disk
from penstock.log.flush_state import FlushState
from penstock.log.rolling import set_limits
from penstock.log.segment import Segment
from penstock.log.segments import Segments
from penstock.log.snapshot import Snapshot
from penstock.log.state import LogState
from penstock.types import Index


class LogFiles:
    """The files of one partition's log, and what is known about them."""

    __slots__ = (
        "appended_bytes",
        "checkpoint",
        "commit_index",
        "config",
        "deleted",
        "disk",
        "failed",
        "flushed",
        "generation",
        "parent",
        "path",
        "recovered_index",
        "segments",
        "state",
        "unsaved",
    )

    def __init__(self, disk: Disk, path: str, config: TopicConfig) -> None:
        self.disk = disk
        self.path = path
        self.parent = path.rpartition("/")[0]
        self.config = config
        self.failed: StorageError | None = None
        """Why the log takes no more appends."""
        self.commit_index: Index | None = None
        """Entries below it can never be truncated; None: all flushed entries are committed. Retention, prefix deletion
        and compaction stay below it. The owner of a replicated log sets it after opening, and then as it grows."""
        self.recovered_index = 0
        """Where the log ended when it was opened. Markers below it that are not committed yet are missing in the list
        of ended transactions: that is in memory only."""
        self.generation = 0
        """Rises whenever segments change other than by growing: compaction plans made before are void."""
        self.appended_bytes = 0
        """Bytes that this process has appended."""
        self.state = LogState()
        self.segments = Segments([], self.state.controls.offsets, disk.open_files)
        self.flushed = FlushState(FlushPoint(0, 0, 0), 0)
        self.checkpoint = Checkpoint(disk, path)
        self.deleted: list[Segment] = []
        """Segments that are no longer part of the log, and still on the disk."""
        self.unsaved: list[Segment] = []
        """Segments whose index files are missing or outdated; the active one may be among them."""

    # --- positions

    def end_point(self) -> FlushPoint:
        """The log's end, as a flush would record it."""
        end_offset, active = self.state.end_offset, self.segments.active
        if active is None:
            return FlushPoint(end_offset, end_offset, 0)
        return FlushPoint(end_offset, active.base_offset, active.size)

    def first_index(self) -> int:
        """The index of the first entry that is still here. Readers may start later: within a batch, or behind it."""
        bases, state = self.segments.bases, self.state
        return (bases[0] if bases else state.end_offset) + state.controls.gone

    def stable_index(self) -> int:
        """Entries below it are flushed and can never be truncated."""
        flushed = self.flushed.index
        return flushed if self.commit_index is None else min(flushed, self.commit_index)

    def snapshot_at(self, point: FlushPoint, control_count: int) -> Snapshot:
        """On a volatile disk snapshots stay in memory, one per segment, and there is no recovery."""
        first_base, with_aborted = self.segments.bases[0], not self.disk.volatile
        return self.state.snapshot_at(point, control_count, first_base, with_aborted=with_aborted)

    # --- errors

    def check_writable(self) -> None:
        if self.failed is not None:
            raise StorageError(f"{self.path} takes no writes: {self.failed}")

    def change_failed(self, problem: StorageError | CorruptLog) -> None:
        """A change of several files broke off: only reopening the log tells what it holds."""
        self.failed = problem if isinstance(problem, StorageError) else StorageError(str(problem))

    def write_failed(self, problem: StorageError) -> None:
        """A full disk and too many open files are temporary. Any other error means that the disk is not to be
        trusted."""
        if not isinstance(problem, OutOfResources):
            self.failed = problem

    # --- checkpoint

    def checkpoint_facts(self) -> CheckpointFacts:
        return self.state.facts(self.flushed.point)

    def save_checkpoint(self) -> None:
        """Writes the checkpoint without a flush. Ignores errors: the older checkpoint claims less and is still true."""
        with suppress(StorageError):
            self.checkpoint.save(self.checkpoint_facts())

    def save_checkpoint_durably(self) -> None:
        self.checkpoint.save_durably(self.checkpoint_facts())

    # --- segments

    def new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.disk, self.path, base_offset, self.config.index_interval_bytes)
        set_limits(segment, self.config, self.path)
        return segment

    def start_segment(self) -> Segment:
        """Seals the active segment, if any, and begins the next one at the log's end."""
        segments, end_offset = self.segments, self.state.end_offset
        if not segments.segments:
            self.disk.make_dir(self.path)
            self.flushed.mark_folder(self.parent)
            if not self.disk.volatile:
                # Allocates the file now, so that later saves work on a full disk.
                self.checkpoint.save(self.checkpoint_facts())
        sealed = segments.active
        if sealed is not None and self.state.gaps_below >= end_offset:
            self._flush_before_gap(sealed)
        segment = self.new_segment(end_offset)
        segment.create()
        self.flushed.mark_folder(self.path)
        if sealed is not None:
            segment.base_snapshot = self.snapshot_at(FlushPoint(end_offset, end_offset, 0), 0)
            self.mark_unsaved(sealed)
        segments.add(segment)
        return segment

    def _flush_before_gap(self, active: Segment) -> None:
        """Where offsets may be missing, recovery cannot tell the end of a segment that was never flushed from a gap,
        and would continue with the next one. So the next segment is created only when all before it is on the disk,
        names included."""
        try:
            active.file_for_writing().flush()
            self.disk.sync_dir(self.path)
        except StorageError as problem:
            self.failed = problem  # the system may have dropped what it could not write
            raise

    def mark_unsaved(self, segment: Segment) -> None:
        """The segment was sealed, or its index files are outdated."""
        segment.load_index()
        segment.index_saved = False
        if segment not in self.unsaved:
            self.unsaved.append(segment)

    def forget_unsaved(self, segments: list[Segment]) -> None:
        """The indexes of these segments need no saving."""
        gone = frozenset(segments)
        self.unsaved = [other for other in self.unsaved if other not in gone]

    def close(self) -> None:
        for segment in [*self.segments.segments, *self.deleted]:
            segment.close()
