"""When a log is compacted, and how the result of a pass replaces the old segments. `compaction` has the pass itself."""

from penstock.errors import CorruptLog, StorageError
from penstock.log.aborted import AbortedRanges
from penstock.log.compaction import CompactionPlan, cleanable, is_due, swap_in
from penstock.log.key_map import MAX_KEYS
from penstock.log.log_files import LogFiles
from penstock.log.maintenance import Maintenance
from penstock.log.segment import Segment


class Compactor:
    """Plans and finishes the compaction passes of one log."""

    __slots__ = ("_files", "_maintenance", "_plan")

    def __init__(self, files: LogFiles, maintenance: Maintenance) -> None:
        self._files = files
        self._maintenance = maintenance
        self._plan: CompactionPlan | None = None

    def plan(self, now_ms: int, *, max_keys: int = MAX_KEYS) -> CompactionPlan | None:
        """A pass over the sealed segments, if one is due. The caller runs it in a thread, then calls `finish`."""
        files, state, config = self._files, self._files.state, self._files.config
        if not config.cleanup_compact or files.failed is not None:
            return None
        stable = self._stable_segments()
        segments = cleanable(stable, config, state.cleaned_offset, now_ms)
        if not files.disk.volatile:
            # Positions will change, which makes snapshots in these segments useless.
            snapshot_base = self._maintenance.snapshot_base
            segments = [segment for segment in segments if segment.base_offset < snapshot_base]
        if not segments or not is_due(segments, config, state.cleaned_offset, now_ms):
            if stable and is_due(stable, config, state.cleaned_offset, now_ms):
                self._maintenance.want_snapshot()
            return None
        self._plan = CompactionPlan(
            files.disk,
            files.path,
            config,
            segments=segments,
            cleaned_offset=state.cleaned_offset,
            producer_ids=state.producers.ids(),
            aborted=AbortedRanges(state.transactions.aborted),
            generation=files.generation,
            now_ms=now_ms,
            max_keys=max_keys,
        )
        return self._plan

    def _stable_segments(self) -> list[Segment]:
        """Segments that are sealed, flushed, and committed to the last entry, and whose transactions are decided.

        Of a log that was opened there are none until everything that it held then is committed or truncated: a marker
        in its tail may still be lost, and would seem to decide a transaction."""
        files = self._files
        stable: list[Segment] = []
        limit, controls = files.stable_index(), files.state.controls.gone
        if limit < min(files.recovered_index, files.state.end_index):
            return stable
        unstable_from = files.state.transactions.first_unstable
        for segment in files.segments.segments[:-1]:
            controls += segment.control_count
            if (
                segment.base_offset >= files.flushed.point.base_offset
                or segment.next_offset + controls > limit
                or segment.next_offset > unstable_from
            ):
                break
            stable.append(segment)
        return stable

    def finish(self, plan: CompactionPlan) -> None:
        """Puts the new segments in place, unless the log has changed since the plan. Blocks for a few flushes."""
        files = self._files
        self._plan = None
        if plan.generation != files.generation or not plan.complete or files.failed is not None:
            plan.discard()
            return
        self._maintenance.cancel()
        files.generation += 1
        files.state.cleaned_offset = plan.cleaned_offset
        try:
            self._swap_in(plan)
        except (StorageError, CorruptLog) as problem:
            files.change_failed(problem)
            raise
        files.state.transactions.aborted.remove(plan.bare_markers)
        for segment, horizon_ms in plan.horizons.items():
            if segment.delete_horizon_ms != horizon_ms:
                segment.delete_horizon_ms = horizon_ms
                files.mark_unsaved(segment)

    def _swap_in(self, plan: CompactionPlan) -> None:
        files = self._files
        files.state.swapping = True
        files.save_checkpoint_durably()
        for replacement in plan.replacements:
            swap_in(files.disk, files.path, replacement)
            segment = files.new_segment(replacement.head.base_offset)
            segment.adopt(replacement.head)
            segment.index = replacement.entries
            segment.base_snapshot = replacement.sources[0].base_snapshot
            files.segments.replace(replacement.sources, segment)
            files.forget_unsaved(replacement.sources)
            files.mark_unsaved(segment)
        # The next checkpoint says so. A restart before it only repeats the pass.
        files.state.swapping = False

    def cancel(self) -> None:
        """The log is reset or deleted: a running pass ends early."""
        if self._plan is not None:
            self._plan.cancel()
