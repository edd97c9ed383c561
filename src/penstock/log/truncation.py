"""Removing the end of a log, after a leader whose entries were not committed.

The order in which a truncation touches the disk is its proof. First nothing on the disk may promise the entries that go
(snapshots, then the checkpoint's flushed point); then segments are removed from the end on; then the last file is cut.
After a power cut anywhere in between, recovery finds whole entries, in order, with an end that is not before the cut.
"""

from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.log.boundaries import boundary_at, end_before
from penstock.log.checkpoint import FlushPoint
from penstock.log.log_files import LogFiles
from penstock.log.maintenance import Maintenance
from penstock.log.replay import replay_producers
from penstock.log.rolling import set_limits
from penstock.log.segment import Segment
from penstock.log.segment_files import remove_indexes, remove_segment
from penstock.log.snapshot import remove_snapshots_above, snapshot_path
from penstock.types import Offset


class Truncation:
    """Truncates one log, durably. It blocks for a flush or two; it is rare."""

    __slots__ = ("_files", "_maintenance")

    def __init__(self, files: LogFiles, maintenance: Maintenance) -> None:
        self._files = files
        self._maintenance = maintenance

    def to_offset(self, offset: Offset) -> None:
        """Removes everything from `offset` on, control entries included. Never cuts a batch: the one that holds
        `offset` is removed whole."""
        files, state = self._files, self._files.state
        if not state.start_offset <= offset <= state.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot truncate {files.path} to {offset}: it holds {state.start_offset} to {state.end_offset}",
            )
        if files.segments.segments:
            controls = state.controls
            found = boundary_at(files.segments, controls, controls.index_at(offset))
            self.to_index(controls.index_at(controls.offset_at(found.entry_index)))

    def to_index(self, index: int) -> None:
        """Removes every entry behind this boundary."""
        files, state = self._files, self._files.state
        first_index = files.first_index()
        if not first_index <= index <= state.end_index:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot truncate {files.path} to index {index}: it holds {first_index} to {state.end_index}",
            )
        if index == state.end_index:
            return
        files.check_writable()
        found = boundary_at(files.segments, state.controls, index)
        if found.entry_index != index:
            raise ValueError(f"{files.path}: index {index} is within the batch at {found.entry_index}")
        at, position = found.segment_number, found.position
        if position == 0 and at > 0:
            at, position = at - 1, files.segments.segments[at - 1].size
        self._maintenance.cancel()
        files.generation += 1
        cut = FlushPoint(state.controls.offset_at(index), files.segments.bases[at], position)
        try:
            self._truncate(at, cut, index)
        except (StorageError, CorruptLog) as problem:
            files.change_failed(problem)
            raise

    def _truncate(self, at: int, cut: FlushPoint, index: int) -> None:
        """Cuts segment number `at`."""
        files, segments, state = self._files, self._files.segments, self._files.state
        active = segments.segments[at]
        # Behind a gap that compaction left, the last entry ends before the log does.
        line = cut._replace(offset=end_before(active, cut.position))
        gaps = (state.cleaned_offset, state.gaps_below)
        state.truncate(cut.offset, state.controls.count_before(index))
        controls = len(state.controls) - sum(one.control_count for one in segments.segments[:at])
        self._restore_producers(at, cut, controls)
        dropped = segments.drop_after(at)
        files.flushed.truncate(line, index, dropped)
        files.forget_unsaved(dropped)
        if line != cut:
            self._truncate_to_gap(active, line, controls, gaps, dropped)
            return
        self._lower_flushed_point(cut)
        self._remove(dropped, active)
        active.truncate(cut.position, cut.offset, controls)

    def _remove(self, dropped: list[Segment], active: Segment) -> None:
        files = self._files
        for segment in reversed(dropped):
            remove_segment(files.disk, files.path, segment.base_offset)
            files.disk.sync_dir(files.path)
        # Its saved index points to positions that other batches will have.
        remove_indexes(files.disk, files.path, active.base_offset)
        files.disk.sync_dir(files.path)
        set_limits(active, files.config, files.path)

    def _truncate_to_gap(
        self, last: Segment, line: FlushPoint, controls: int, gaps: tuple[int, int], dropped: list[Segment]
    ) -> None:
        """The log is to end within a gap, at an offset that no entry reaches: only the name of a segment can record
        it. The name must be on the disk before the entries behind it are cut; until then recovery takes it for out of
        place. And until then gaps must stay allowed where they were, or recovery would find an earlier end."""
        files, state = self._files, self._files.state
        end_offset = state.end_offset
        narrowed = (state.cleaned_offset, state.gaps_below)
        state.cleaned_offset, state.gaps_below = gaps
        self._lower_flushed_point(line)
        self._remove(dropped, last)
        segment = files.new_segment(end_offset)
        segment.create()
        files.disk.sync_dir(files.path)
        last.truncate(line.position, end_offset, controls)
        files.mark_unsaved(last)
        segment.base_snapshot = files.snapshot_at(FlushPoint(end_offset, end_offset, 0), 0)
        files.segments.add(segment)
        if files.flushed.point == line:
            files.flushed.point = files.end_point()
        state.cleaned_offset, state.gaps_below = narrowed
        files.save_checkpoint_durably()

    def _restore_producers(self, at: int, cut: FlushPoint, controls: int) -> None:
        """Takes the truncated batches out of the state of producers and transactions."""
        files, state, disk = self._files, self._files.state, self._files.disk
        segments = files.segments.segments[: at + 1]
        if len(state.producers) or state.transactions.aborted:
            rebuilt, _ = replay_producers(disk, files.path, segments, cut.offset)
            files.segments.close_unused()
            state.producers.truncate(cut.offset, rebuilt)
        snapshot = files.snapshot_at(cut, controls)
        if cut.offset == cut.base_offset > 0:
            # The file with the segment's base snapshot may have been replaced by one of a later position.
            segments[-1].base_snapshot = snapshot
        if state.removed.base_offset and not disk.volatile:
            # If the power were cut now, nothing on the disk might have what producers sent in the deleted prefix.
            for segment in segments:
                if segment.base_offset >= files.flushed.point.base_offset:
                    segment.file_for_writing().flush()
            disk.sync_dir(files.path)
            disk.write_file_atomic(snapshot_path(files.path, cut.offset), snapshot.encode())

    def _lower_flushed_point(self, cut: FlushPoint) -> None:
        """Before bytes go, nothing on the disk may promise them."""
        files = self._files
        remove_snapshots_above(files.disk, files.path, *cut)
        self._maintenance.distrust_snapshots()
        known = files.checkpoint.facts
        if (
            known.flushed > cut
            or max(known.start_offset, known.cleaned_offset, known.gaps_below) > cut.offset
        ):
            files.save_checkpoint_durably()
