"""What a log does besides being written and read: flushes, snapshots, removal of files, compaction, scrubbing.

Each of these is begun on the event loop, run by a thread, and finished on the loop.
"""

from collections.abc import Callable

from penstock.errors import CorruptLog, StorageError
from penstock.log.compaction import MAX_KEYS, CompactionPlan, cleanable, is_due, swap_in
from penstock.log.cutting import Cutting
from penstock.log.flush import FlushTicket
from penstock.log.scrub import ScrubPlan, look_again
from penstock.log.segment import Segment

SCRUB_BYTES = 64 * 1024 * 1024
"""How much one scrub reads, about: a tenth of a second of one core."""


class Tending(Cutting):
    """The upkeep of a log."""

    # --- flushing

    def begin_flush(self) -> FlushTicket | None:
        """A ticket for all that is not flushed yet, or None. Its `run` goes to a thread, then `finish_flush`."""
        if self.failed is not None or not self.dirty:
            return None
        ticket = self._flushing.begin(self._end_point(), self.end_index, self._appended_bytes)
        if self._upkeep.is_capture_due(self._chain.active, self._appended_bytes):
            ticket.capture = self._capture()
        return ticket

    def finish_flush(self, ticket: FlushTicket, error: StorageError | None = None) -> None:
        """The ticket came back. An error is final: what was not flushed may be lost, and no second flush would tell."""
        if not self._flushing.finish(ticket, succeeded=error is None):
            return
        if error is not None and self.failed is None:
            self.failed = error
        if self.failed is not None or self._disk.volatile:
            return
        self._upkeep.hold(ticket.capture)
        try:
            self._upkeep.save_checkpoint_when_due(self._facts, ticket.appended_bytes)
        except StorageError as problem:
            self.failed = problem

    # --- indexes, snapshots, garbage

    def take_garbage(self) -> Callable[[], None] | None:
        """Work for a thread, if there is any: indexes and a snapshot to save, expired segments to remove.

        To be asked for every few seconds; this is also when the checkpoint catches up. None while the last
        such work has not ended.
        """
        upkeep, chain = self._upkeep, self._chain
        if not upkeep.settle(chain.active) or self.failed is not None or chain.active is None:
            return None
        self._drop_prefix()
        chain.let_cool()
        removable = len(upkeep.removable())
        if removable:
            self._announce_removal(upkeep.garbage[removable:])
        if not self._disk.volatile:
            upkeep.save_checkpoint_if_changed(self._facts())
        is_flushed = self._flushing.point == self._end_point()
        if (
            is_flushed
            and upkeep.is_capture_due(chain.active, self._appended_bytes)
            and not upkeep.is_holding()
        ):
            upkeep.hold(self._capture())
        return upkeep.take_chores(chain.segments)

    def _announce_removal(self, staying: list[Segment]) -> None:
        """The chores flush this before the first file goes: recovery must not miss what was to go."""
        before = staying[0].removed_before if staying else None
        self._state.removed = before or self._state.removed_before(self._chain.bases[0])

    # --- compaction

    def plan_compaction(self, now_ms: int, *, max_keys: int = MAX_KEYS) -> CompactionPlan | None:
        """A pass over the sealed segments, if one is due. Its `run` goes to a thread, then `finish_compaction`."""
        config = self.config
        if not config.cleanup_compact or self.failed is not None:
            return None
        flushed = self._settled_segments()
        segments = cleanable(flushed, config, self._state.cleaned_offset, now_ms)
        if not self._disk.volatile:
            # Positions will change, and snapshots in these segments will be of no use.
            segments = [segment for segment in segments if segment.base_offset < self._upkeep.snapshot_base]
        if not segments or not is_due(segments, config, self._state.cleaned_offset, now_ms):
            if flushed and is_due(flushed, config, self._state.cleaned_offset, now_ms):
                self._upkeep.want_snapshot()
            return None
        self._plan = CompactionPlan(
            self._disk,
            self.path,
            config,
            segments=segments,
            cleaned_offset=self._state.cleaned_offset,
            producer_ids=self._state.producers.ids(),
            generation=self._generation,
            now_ms=now_ms,
            max_keys=max_keys,
        )
        return self._plan

    def _settled_segments(self) -> list[Segment]:
        """Sealed, flushed, and committed to the last entry."""
        settled: list[Segment] = []
        limit, controls = self._settled_index(), self._state.controls.gone
        for segment in self._chain.segments[:-1]:
            controls += segment.control_count
            if (
                segment.base_offset >= self._flushing.point.base_offset
                or segment.next_offset + controls > limit
            ):
                break
            settled.append(segment)
        return settled

    def finish_compaction(self, plan: CompactionPlan) -> None:
        """Puts the new segments in place, unless the log has changed under the plan. Blocks for a few flushes."""
        self._plan = None
        if plan.generation != self._generation or not plan.complete or self.failed is not None:
            plan.discard()
            return
        self._upkeep.cancel()
        self._generation += 1
        self._state.cleaned_offset = plan.cleaned_offset
        try:
            self._swap_in(plan)
        except StorageError as problem:
            # Half of it may be in place: what is on the disk is no longer what is known here.
            self.failed = problem
            raise
        for segment, horizon_ms in plan.horizons.items():
            if segment.delete_horizon_ms != horizon_ms:
                segment.delete_horizon_ms = horizon_ms
                self._upkeep.must_save(segment)

    def _swap_in(self, plan: CompactionPlan) -> None:
        self._state.swapping = True
        self._upkeep.checkpoint.save_durably(self._facts())
        for replacement in plan.replacements:
            swap_in(self._disk, self.path, replacement)
            segment = self._new_segment(replacement.head.base_offset)
            segment.adopt(replacement.head)
            segment.index = replacement.entries
            segment.base_snapshot = replacement.sources[0].base_snapshot
            self._chain.replace(replacement.sources, segment)
            self._upkeep.forget(replacement.sources)
            self._upkeep.must_save(segment)
        # Told with the next save: until then a restart only repeats the pass.
        self._state.swapping = False

    # --- scrubbing

    def plan_scrub(self, from_offset: int = 0, *, max_bytes: int = SCRUB_BYTES) -> ScrubPlan | None:
        """A new reading of sealed segments, from the one that holds `from_offset` on; None if there is none. Its `run`
        goes to a thread, then `finish_scrub`; `plan.next_offset` is where the next one goes on."""
        flushed = self._flushing.point.base_offset
        sealed = [s for s in self._chain.segments[:-1] if s.base_offset < flushed]
        chosen: list[Segment] = []
        for segment in sealed:
            if segment.next_offset > from_offset and sum(other.size for other in chosen) < max_bytes:
                chosen.append(segment)
        if not chosen or self.failed is not None:
            return None
        first = self._chain.segments.index(chosen[0])
        before = sum(segment.control_count for segment in self._chain.segments[:first])
        return ScrubPlan(
            self._disk,
            segments=chosen,
            ends=[self._chain.bases[first + number + 1] for number in range(len(chosen))],
            controls=self._state.controls.expected_from(before),
            gaps_below=self.cleaned_offset,
            is_last=chosen[-1] is sealed[-1],
        )

    def look_again(self, index: int, max_bytes: int) -> CorruptLog | None:
        """What is wrong with the entries that `read_entries` gives from this boundary on; None: they are whole."""
        if not self.first_index <= index < self.end_index:
            return None
        gaps_below = self.end_offset if self.config.cleanup_compact else self.cleaned_offset
        try:
            return look_again(self._chain, self._state.controls, index, max_bytes, gaps_below=gaps_below)
        except CorruptLog as problem:
            return problem
        except (StorageError, ValueError) as problem:  # what cannot be read is as lost as what is wrong
            return CorruptLog(self.path, 0, str(problem))

    def finish_scrub(self, plan: ScrubPlan) -> CorruptLog | None:
        """What the scrub found wrong in what is still part of this log. The log goes on: its owner decides what the
        rest of it is worth."""
        if plan.wrong is None:
            return None
        source, problem = plan.wrong
        is_as_it_was = source.segment in self._chain.segments[:-1] and source.segment.size == source.size
        return problem if is_as_it_was else None
