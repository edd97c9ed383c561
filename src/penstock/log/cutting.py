"""Taking away from a log: its end, when a leader was wrong, and its beginning, when nobody wants it any more.

The order in which a truncation touches the disk is its proof. First nothing on the disk may promise what goes
(snapshots, then the checkpoint's line); then segments go from the end on; then the last file is cut. After a power cut
anywhere in between, recovery finds whole entries, in order, with an end that is not before the cut.
"""

from contextlib import suppress

from penstock.errors import DiskFull, ErrorCode, KafkaError, StorageError
from penstock.log.checkpoint import FlushPoint
from penstock.log.files import remove_indexes, remove_segment
from penstock.log.parts import LogParts, controls_in
from penstock.log.places import end_before, place_of
from penstock.log.replay import replay_producers
from penstock.log.retention import expired
from penstock.log.rolling import set_limits
from penstock.log.segment import Segment
from penstock.log.snapshot import remove_snapshots_above, snapshot_path
from penstock.types import Offset


class Cutting(LogParts):
    """Truncation, deletion of the prefix, retention."""

    # --- the end

    def truncate(self, offset: Offset) -> None:
        """Removes everything from `offset` on, control entries included, durably. Never cuts a batch: the one
        that holds `offset` goes whole. Blocks for a flush or two: a leader was wrong, and that is rare."""
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot truncate {self.path} to {offset}: it holds {self.start_offset} to {self.end_offset}",
            )
        if self._chain.segments:
            place = place_of(self._chain, self._state.controls, self.index_at(offset))
            self.truncate_to_index(self.index_at(self.offset_at(place.boundary)))

    def truncate_to_index(self, index: int) -> None:
        """Removes every entry behind this boundary, durably. Blocks for a flush or two."""
        if not self.first_index <= index <= self.end_index:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot truncate {self.path} to index {index}: it holds {self.first_index} to {self.end_index}",
            )
        if index == self.end_index:
            return
        self._check_writable()
        place = place_of(self._chain, self._state.controls, index)
        if place.boundary != index:
            raise ValueError(f"{self.path}: index {index} is within the batch at {place.boundary}")
        at, position = place.at, place.position
        if position == 0 and at > 0:
            at, position = at - 1, self._chain.segments[at - 1].size
        self._upkeep.cancel()
        self._generation += 1
        try:
            self._truncate(at, FlushPoint(self.offset_at(index), self._chain.bases[at], position), index)
        except StorageError as problem:
            # Some of it may be gone: only opening it anew tells.
            self.failed = problem
            raise

    def _truncate(self, at: int, cut: FlushPoint, index: int) -> None:
        """Cuts segment number `at`."""
        chain, state = self._chain, self._state
        active = chain.segments[at]
        # Behind a gap that compaction left, the last entry ends before the log does.
        line = cut._replace(offset=end_before(active, cut.position))
        gaps = (state.cleaned_offset, state.gaps_below)
        state.truncate(cut.offset, state.controls.count_before(index))
        controls = len(state.controls) - controls_in(chain.segments[:at])
        self._take_back_from(at, cut, controls)
        dropped = chain.drop_after(at)
        self._flushing.truncate(line, index, dropped)
        self._upkeep.forget(dropped)
        if line != cut:
            self._truncate_to_gap(active, line, controls, gaps, dropped)
            return
        self._lower_line(cut)
        self._remove(dropped, active)
        active.truncate(cut.position, cut.offset, controls)
        active.open_for_appending()

    def _remove(self, dropped: list[Segment], active: Segment) -> None:
        for segment in reversed(dropped):
            remove_segment(self._disk, self.path, segment.base_offset)
            self._disk.sync_dir(self.path)
        # Other batches will stand at the positions that the saved index of this one knows.
        remove_indexes(self._disk, self.path, active.base_offset)
        self._disk.sync_dir(self.path)
        set_limits(active, self.config, self.path)

    def _truncate_to_gap(
        self, last: Segment, line: FlushPoint, controls: int, gaps: tuple[int, int], dropped: list[Segment]
    ) -> None:
        """Only the name of a segment can tell an end that no entry reaches. It must be on the disk before what tells
        more is cut; until then recovery takes it for out of place. And until then gaps must be allowed where they were,
        or recovery would find the end before this one."""
        state, end_offset = self._state, self.end_offset
        narrowed = (state.cleaned_offset, state.gaps_below)
        state.cleaned_offset, state.gaps_below = gaps
        self._lower_line(line)
        self._remove(dropped, last)
        segment = self._new_segment(end_offset)
        segment.create()
        self._disk.sync_dir(self.path)
        last.truncate(line.position, end_offset, controls)
        self._upkeep.must_save(last)
        segment.base_snapshot = self._snapshot_at(FlushPoint(end_offset, end_offset, 0), 0)
        self._chain.add(segment)
        if self._flushing.point == line:
            self._flushing.point = self._end_point()
        state.cleaned_offset, state.gaps_below = narrowed
        self._upkeep.checkpoint.save_durably(self._facts())

    def _take_back_from(self, at: int, cut: FlushPoint, controls: int) -> None:
        """Producers forget what was truncated."""
        state, segments = self._state, self._chain.segments[: at + 1]
        if len(state.producers):
            rebuilt, _ = replay_producers(self._disk, self.path, segments, cut.offset)
            self._chain.let_cool()
            state.producers.truncate(cut.offset, rebuilt)
        snapshot = self._snapshot_at(cut, controls)
        if cut.offset == cut.base_offset > 0:
            # The file with the state of the segment's beginning may have been replaced by that of a later place.
            segments[-1].base_snapshot = snapshot
        if state.removed.base_offset and not self._disk.volatile:
            # What producers sent in the deleted prefix might be known only here, were the power cut now.
            for segment in segments:
                if segment.base_offset >= self._flushing.point.base_offset:
                    segment.file.flush()
            self._disk.sync_dir(self.path)
            self._disk.write_file_atomic(snapshot_path(self.path, cut.offset), snapshot.encode())

    def _lower_line(self, cut: FlushPoint) -> None:
        """Before bytes go, nothing on the disk may promise them."""
        remove_snapshots_above(self._disk, self.path, *cut)
        self._upkeep.distrust_snapshots()
        known = self._upkeep.checkpoint.facts
        if (
            known.flushed > cut
            or max(known.start_offset, known.cleaned_offset, known.gaps_below) > cut.offset
        ):
            self._upkeep.checkpoint.save_durably(self._facts())

    # --- the beginning

    def delete_prefix(self, offset: Offset) -> None:
        """Makes `offset` the first that can be read. Files wholly below it go with the next `take_garbage`."""
        if offset <= self.start_offset:
            return
        limit = self._deletable()
        if offset > limit:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete {self.path} up to {offset}: it is flushed and committed up to {limit}",
            )
        self._state.start_offset = offset
        self._drop_prefix()
        self._upkeep.save_checkpoint(self._facts())

    def _deletable(self) -> Offset:
        """Records below this offset may be deleted."""
        committed = self.commit_offset
        return self.flushed_offset if committed is None else min(self.flushed_offset, committed)

    def _drop_prefix(self, limit: int | None = None) -> None:
        """Takes segments wholly below the start out of the log. The log goes on in the last one. Control entries behind
        `limit` stay, and their segments: they may have to be truncated yet."""
        chain, state = self._chain, self._state
        limit = self._settled_index() if limit is None else limit
        active = chain.active
        if (
            active is not None
            and active.has_records
            and active.next_offset <= self.start_offset
            and self.end_index <= limit
        ):
            # Without room for one more file the last segment has to stay; `take_garbage` tries again.
            with suppress(DiskFull):
                self._start_segment()
        dropped = []
        while len(chain.segments) > 1 and chain.bases[1] <= self.start_offset:
            if chain.bases[1] + state.controls.gone + chain.segments[0].control_count > limit:
                break
            segment = chain.drop_first()
            self._generation += 1
            segment.removed_before = state.removed_before(segment.base_offset)
            state.controls.drop_first(segment.control_count)
            segment.base_snapshot = None
            dropped.append(segment)
        self._upkeep.garbage += dropped
        self._upkeep.forget(dropped)
        state.terms.delete_prefix(self.start_offset)

    def expired(self, now_ms: int) -> list[Segment]:
        """Segments that retention no longer keeps, oldest first."""
        return expired(self._chain.segments, self.config, self._deletable(), now_ms)

    def apply_retention(self, now_ms: int) -> int:
        """Drops what has expired; returns its bytes. The files go with the next `take_garbage`."""
        self._state.producers.expire(now_ms)
        segments = self.expired(now_ms)
        before = self.size_bytes
        if segments:
            self.delete_prefix(Offset(segments[-1].next_offset))
        return before - self.size_bytes
