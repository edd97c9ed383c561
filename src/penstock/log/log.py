"""One partition's log: append, read, flush, truncate, delete the prefix. `layout` has its bytes and its recovery.

Not thread-safe, on purpose: every method runs on the event loop. What blocks is handed out as an object that a thread
runs (a flush ticket, chores, a compaction plan), touches only what it captured, and comes back to the loop.

Invariants:
 1. start_offset <= flushed_offset <= end_offset. All below flushed_offset survives a power cut.
 2. Offsets rise by one, except where compaction has been. Each term begins with a control entry.
 3. An append writes one batch with one call, or nothing: a write that fails half-way is cut back.
 4. After a failed flush nobody knows what is on the disk: the log takes no more appends until it is opened anew and has
    read what is there. No space is not such a failure: the next append tries again.
 5. An empty log has no folder: the first append makes it.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from penstock.batch import BatchHeader, set_log_append_time, stamp, zero_width_batch
from penstock.config import TopicConfig
from penstock.errors import DiskFull, ErrorCode, KafkaError, StorageError
from penstock.log.chain import SegmentChain
from penstock.log.checkpoint import Checkpoint, CheckpointFacts, FlushPoint
from penstock.log.compaction import MAX_KEYS, CompactionPlan, cleanable, is_due, swap_in
from penstock.log.disk import Disk
from penstock.log.files import remove_indexes, remove_segment
from penstock.log.flush import Capture, Flushing, FlushTicket
from penstock.log.layout import CALLERS_OWN, DELETED_SUFFIX, TERM_START, control_payload
from penstock.log.lookup import first_at_or_after, greatest_timestamp
from penstock.log.producers import ProducerStates
from penstock.log.recovery import Recovery
from penstock.log.retention import expired
from penstock.log.rolling import set_limits
from penstock.log.segment import LENGTH_OVERHEAD, Segment
from penstock.log.snapshot import remove_snapshots_above, replay_producers, snapshot_path
from penstock.log.state import LogState
from penstock.log.upkeep import Upkeep
from penstock.types import NO_TIMESTAMP, Offset, Term, TimestampMs


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: Offset
    last_offset: Offset
    timestamp_ms: TimestampMs
    """The append time, on topics that stamp it; else -1."""
    duplicate: bool
    """It had been stored before, at these offsets, and was not stored again."""


class Log:
    """A partition's log. Made by `Log.open`."""

    def __init__(self, disk: Disk, path: str, config: TopicConfig) -> None:
        self.config = config
        self.path = path
        self.failed: StorageError | None = None
        """Why the log takes no more appends."""
        self.cuts: list[str] = []
        """What opening had to cut off, in words: written but never flushed, and torn by a crash."""
        self._disk = disk
        self._parent = path.rpartition("/")[0]
        self._state = LogState()
        self._chain = SegmentChain([], self._state.controls)
        self._upkeep = Upkeep(disk, path, Checkpoint(disk, path))
        self._generation = 0
        """Rises whenever segments change other than by growing: plans made before are void."""
        self._plan: CompactionPlan | None = None
        self._flushing = Flushing(disk, FlushPoint(0, 0, 0))
        self._appended_bytes = 0

    @classmethod
    def open(cls, disk: Disk, path: str, config: TopicConfig, *, recover: bool = True) -> Self:
        """Reads what is there. Without `recover` nothing is changed: what would have to be cut is CorruptLog."""
        log = cls(disk, path, config)
        if disk.list_dir(path):
            recovery = Recovery(disk, path, config.index_interval_bytes, repair=recover)
            recovery.run()
            log._adopt(recovery)
            log.cuts = recovery.cuts
            if recover:
                log._settle(recovery)
        return log

    # --- facts

    @property
    def start_offset(self) -> Offset:
        """The first that can be read."""
        return self._state.start_offset

    @property
    def end_offset(self) -> Offset:
        """The one that the next record gets."""
        return self._state.end_offset

    @property
    def last_term(self) -> Term:
        return self._state.last_term

    @property
    def flushed_offset(self) -> Offset:
        return Offset(self._flushing.point.offset)

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
    def control_count(self) -> int:
        """Control entries ever stored and not truncated, deleted ones included: end_offset plus this is
        Raft's index."""
        return self._state.start_controls + len(self._state.controls)

    def end_of_term(self, term: Term) -> tuple[Term, Offset]:
        """The last term not after `term` and where it ended, as OffsetForLeaderEpoch wants it; (-1, -1): unknown."""
        return self._state.terms.end_of(term, self.end_offset)

    def term_at(self, offset: Offset) -> Term:
        return self._state.terms.at(offset)

    # --- appending

    def append(self, batch: bytearray | memoryview, header: BatchHeader, term: Term, now_ms: int) -> Appended:
        """Stores a checked batch, which gets its offset and term stamped in place.

        A repetition of an idempotent producer's batch is answered with where it is. Raises KafkaError for a
        wrong sequence or epoch, DiskFull, StorageError; in all these cases nothing was stored.
        """
        if self.failed is not None:
            raise StorageError(f"{self.path} takes no writes: {self.failed}")
        if len(batch) != header.batch_length + LENGTH_OVERHEAD:
            raise ValueError(f"{len(batch)} bytes are not the batch of {header.size} that was checked")
        state = self._state
        idempotent = header.producer_id >= 0
        if idempotent:
            known = state.producers.check(header)
            if known is not None:
                return self._duplicate(known.base_offset, known.last_offset, known.timestamp)
        append_time = NO_TIMESTAMP
        if self.config.message_timestamp_log_append:
            append_time = TimestampMs(now_ms)
            batch = bytearray(set_log_append_time(batch, now_ms))
            header = header._replace(max_timestamp=now_ms)
        timestamp = header.max_timestamp
        if timestamp < 0:
            timestamp = header.base_timestamp
        base_offset = state.end_offset
        next_offset = Offset(base_offset + header.last_offset_delta + 1)
        segment = self._chain.active
        if term != state.last_term:
            segment = self._begin_term(term, len(batch), next_offset, timestamp)
        elif segment is None or not segment.has_room(len(batch), next_offset, timestamp):
            segment = self._roll_for(len(batch))
        stamp(batch, 0, base_offset, term)
        try:
            segment.append(batch, base_offset, next_offset, timestamp)
        except StorageError as problem:
            self._write_failed(problem)
            raise
        state.end_offset = next_offset
        self._appended_bytes += len(batch)
        self._chain.hints.put(next_offset, segment, segment.size)
        if not segment.dirty:
            self._flushing.mark(segment)
        if idempotent:
            state.producers.record(header, base_offset, now_ms)
        return Appended(base_offset, Offset(next_offset - 1), append_time, False)

    def append_control(self, payload: bytes, term: Term) -> None:
        """Stores an entry that clients never see and that takes no offset."""
        if self.failed is not None:
            raise StorageError(f"{self.path} takes no writes: {self.failed}")
        entry = self._control_entry(CALLERS_OWN, payload, term)
        segment = self._chain.active
        if term != self.last_term:
            segment = self._begin_term(term, len(entry), self.end_offset, NO_TIMESTAMP)
        elif segment is None or not segment.has_room(len(entry), self.end_offset, NO_TIMESTAMP):
            segment = self._roll_for(len(entry))
        self._write_control(segment, entry)

    def _duplicate(self, base_offset: int, last_offset: int, timestamp: int) -> Appended:
        append_time = timestamp if self.config.message_timestamp_log_append else NO_TIMESTAMP
        return Appended(Offset(base_offset), Offset(last_offset), TimestampMs(append_time), True)

    def _begin_term(self, term: Term, size: int, next_offset: int, timestamp: int) -> Segment:
        """Writes the term's first entry, into the segment that has room for what comes next too: were they parted, the
        term of a segment's first batch would be told only by the segment before it."""
        state = self._state
        if term < state.last_term:
            raise ValueError(f"term {term} cannot follow term {state.last_term}")
        entry = self._control_entry(TERM_START, b"", term)
        segment = self._chain.active
        if segment is None or not segment.has_room(len(entry) + size, next_offset, timestamp):
            segment = self._roll_for(size)
        self._write_control(segment, entry)
        state.terms.begin(term, state.end_offset)
        state.last_term = term
        return segment

    def _control_entry(self, kind: int, payload: bytes, term: Term) -> bytes:
        offset = self.end_offset
        return zero_width_batch(
            offset=offset, term=term, payload=control_payload(kind, term, offset, payload)
        )

    def _write_control(self, segment: Segment, entry: bytes) -> None:
        offset, position = self.end_offset, segment.size
        try:
            segment.file.append(entry)
        except StorageError as problem:
            self._write_failed(problem)
            raise
        segment.note_control(position, len(entry), offset)
        self._state.controls.append(offset)
        self._chain.hints.put(offset, segment, segment.size)
        self._flushing.mark(segment)
        self._appended_bytes += len(entry)

    def _write_failed(self, problem: StorageError) -> None:
        """No space is the weather; anything else is the disk."""
        if not isinstance(problem, DiskFull):
            self.failed = problem

    # --- rolling

    def _roll_for(self, size: int) -> Segment:
        """The active segment has no room for a batch of this size: begins the next one, if that helps."""
        if size > self.config.segment_bytes:
            reason = f"a batch of {size} bytes does not fit segment.bytes={self.config.segment_bytes}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, reason)
        active = self._chain.active
        # Two segments cannot begin at one offset.
        return active if active is not None and not active.has_records else self._start_segment()

    def _start_segment(self) -> Segment:
        """Seals the active segment, if any, and begins the next one at the log's end."""
        chain = self._chain
        if not chain.segments:
            self._disk.make_dir(self.path)
            self._flushing.mark_folder(self._parent)
            if not self._disk.volatile:
                # Now, so that later saves find their place even on a full disk.
                self._upkeep.checkpoint.save(self._facts())
        segment = self._new_segment(self.end_offset)
        segment.create()
        self._flushing.mark_folder(self.path)
        if chain.active is not None:
            self._upkeep.must_save(chain.active)
        chain.add(segment)
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self.path, base_offset, self.config.index_interval_bytes)
        set_limits(segment, self.config, self.path)
        return segment

    # --- reading

    def read(self, offset: Offset, max_bytes: int, *, limit: Offset, at_least_one: bool = True) -> bytes:
        """Whole batches from the one that holds `offset`, below `limit`, up to `max_bytes`.

        Stops at a segment's end and before a control entry: the next read goes on behind it. `at_least_one`
        gives the first batch even if it is larger than `max_bytes`. b"" means that there is nothing below the
        limit.
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.path} holds offsets {self.start_offset} to {end_offset}, not {offset}",
            )
        if limit > end_offset:
            limit = end_offset
        if offset >= limit:
            return b""
        return self._chain.read(offset, max_bytes, limit, at_least_one)

    def find_timestamp(self, timestamp: int, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the first record below `limit` that is not earlier than `timestamp`."""
        found = first_at_or_after(self._chain.segments, timestamp, self.start_offset, limit)
        self._chain.let_cool()
        if found is None:
            return None
        return found.timestamp, found.offset, self.term_at(Offset(found.offset))

    def max_timestamp(self, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the latest record below `limit`; of equals, the first."""
        newest = greatest_timestamp(self._chain.segments, self.start_offset, limit)
        return self.find_timestamp(newest, limit) if newest >= 0 else None

    # --- flushing

    def begin_flush(self) -> FlushTicket | None:
        """A ticket for all that is not flushed yet, or None. Its `run` goes to a thread, then `finish_flush`."""
        if self.failed is not None or not self.dirty:
            return None
        ticket = self._flushing.begin(self._end_point(), self._appended_bytes)
        if self._upkeep.is_capture_due(self._chain.active, self._appended_bytes):
            ticket.capture = self._capture()
        return ticket

    def finish_flush(self, ticket: FlushTicket, error: StorageError | None = None) -> None:
        """The ticket came back. An error is final: what was not flushed may be lost, and no second flush would tell."""
        self._flushing.finish(ticket, succeeded=error is None)
        if error is not None and self.failed is None:
            self.failed = error
        if self.failed is not None or self._disk.volatile:
            return
        self._upkeep.hold(ticket.capture)
        try:
            self._upkeep.save_checkpoint_when_due(self._facts, ticket.appended_bytes)
        except StorageError as problem:
            self.failed = problem

    def _end_point(self) -> FlushPoint:
        active = self._chain.active
        if active is None:
            return FlushPoint(self.end_offset, self.end_offset, 0)
        return FlushPoint(self.end_offset, active.base_offset, active.size)

    # --- upkeep

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
            # The chores flush this before the first file goes: recovery must not miss what was to go.
            staying = upkeep.garbage[removable:]
            first_base = staying[0].base_offset if staying else chain.bases[0]
            self._state.removed = (first_base, self._state.start_controls - _controls_in(staying))
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

    def _facts(self) -> CheckpointFacts:
        return self._state.facts(self._flushing.point)

    def _capture(self) -> Capture:
        active = self._chain.active
        assert active is not None
        snapshot = self._state.snapshot_at(self._end_point(), active.control_count)
        return self._upkeep.capture(snapshot, active, self._appended_bytes)

    # --- truncating and deleting

    def truncate(self, offset: Offset) -> None:
        """Removes everything from `offset` on, control entries included, durably. Never cuts a batch: the one
        that holds `offset` goes whole. Blocks for a flush or two: a leader was wrong, and that is rare."""
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot truncate {self.path} to {offset}: it holds {self.start_offset} to {self.end_offset}",
            )
        if not self._chain.segments:
            return
        self._upkeep.cancel()
        self._generation += 1
        try:
            self._truncate(*self._chain.place_to_cut(offset))
        except StorageError as problem:
            # Some of it may be gone: only opening it anew tells.
            self.failed = problem
            raise

    def _truncate(self, at: int, position: int, end_offset: int) -> None:
        """Cuts segment number `at` at `position`, where `end_offset` would follow."""
        chain = self._chain
        cut = FlushPoint(end_offset, chain.bases[at], position)
        self._state.truncate(end_offset)
        self._take_back_from(at, cut)
        dropped = chain.drop_after(at)
        self._flushing.truncate(cut, dropped)
        self._upkeep.forget(dropped)
        self._lower_line(cut)
        for segment in reversed(dropped):
            remove_segment(self._disk, self.path, segment.base_offset)
            self._disk.sync_dir(self.path)
        # Other batches will stand at the positions that the saved index of this one knows.
        remove_indexes(self._disk, self.path, cut.base_offset)
        self._disk.sync_dir(self.path)
        active = chain.segments[-1]
        set_limits(active, self.config, self.path)
        active.truncate(position, end_offset, len(chain.controls) - _controls_in(chain.segments[:-1]))
        active.open_for_appending()

    def _take_back_from(self, at: int, cut: FlushPoint) -> None:
        """Producers forget what was truncated."""
        producers, segments = self._state.producers, self._chain.segments[: at + 1]
        if not len(producers):
            return
        rebuilt, has_snapshot = replay_producers(self._disk, self.path, segments, cut.offset)
        self._chain.let_cool()
        producers.truncate(cut.offset, rebuilt)
        if not has_snapshot and self._state.removed != (0, 0) and not self._disk.volatile:
            # What they sent in the deleted prefix would be known only here, were the power cut now.
            for segment in segments:
                segment.file.flush()
            self._disk.sync_dir(self.path)
            snapshot = self._state.snapshot_at(cut, len(self._chain.controls) - _controls_in(segments[:-1]))
            self._disk.write_file_atomic(snapshot_path(self.path, cut.offset), snapshot.encode())

    def _lower_line(self, cut: FlushPoint) -> None:
        """Before bytes go, nothing on the disk may promise them."""
        remove_snapshots_above(self._disk, self.path, *cut)
        self._upkeep.distrust_snapshots()
        known = self._upkeep.checkpoint.facts
        if known.flushed > cut or max(known.start_offset, known.cleaned_offset) > cut.offset:
            self._upkeep.checkpoint.save_durably(self._facts())

    def delete_prefix(self, offset: Offset) -> None:
        """Makes `offset` the first that can be read. Files wholly below it go with the next `take_garbage`."""
        if offset <= self.start_offset:
            return
        if offset > self.flushed_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete {self.path} up to {offset}: it is flushed up to {self.flushed_offset}",
            )
        self._state.start_offset = offset
        self._drop_prefix()
        self._upkeep.save_checkpoint(self._facts())

    def _drop_prefix(self) -> None:
        """Takes segments wholly below the start out of the log. The log goes on in the last one."""
        chain = self._chain
        active = chain.active
        if active is not None and active.has_records and active.next_offset <= self.start_offset:
            # Without room for one more file the last segment has to stay; `take_garbage` tries again.
            with suppress(DiskFull):
                self._start_segment()
        while len(chain.segments) > 1 and chain.bases[1] <= self.start_offset:
            segment = chain.drop_first()
            self._generation += 1
            self._state.start_controls += segment.control_count
            self._upkeep.garbage.append(segment)
            self._upkeep.forget([segment])
        self._state.terms.delete_prefix(self.start_offset)

    def expired(self, now_ms: int) -> list[Segment]:
        """Segments that retention no longer keeps, oldest first."""
        return expired(self._chain.segments, self.config, self.flushed_offset, now_ms)

    def apply_retention(self, now_ms: int) -> int:
        """Drops what has expired; returns its bytes. The files go with the next `take_garbage`."""
        self._state.producers.expire(now_ms)
        segments = self.expired(now_ms)
        if segments:
            self.delete_prefix(Offset(segments[-1].next_offset))
        return sum(segment.size for segment in segments)

    # --- compaction

    def plan_compaction(self, now_ms: int, *, max_keys: int = MAX_KEYS) -> CompactionPlan | None:
        """A pass over the sealed segments, if one is due. Its `run` goes to a thread, then `finish_compaction`."""
        config = self.config
        if not config.cleanup_compact or self.failed is not None:
            return None
        flushed = [s for s in self._chain.segments[:-1] if s.base_offset < self._flushing.point.base_offset]
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
        self._upkeep.checkpoint.save_durably(self._facts())
        for replacement in plan.replacements:
            swap_in(self._disk, self.path, replacement)
            segment = self._new_segment(replacement.head.base_offset)
            segment.adopt(replacement.head)
            segment.index = replacement.entries
            self._chain.replace(replacement.sources, segment)
            self._upkeep.forget(replacement.sources)
            self._upkeep.must_save(segment)

    # --- opening and closing

    def _adopt(self, recovery: Recovery) -> None:
        self._state = recovery.state
        self._chain = SegmentChain(recovery.segments, recovery.state.controls)
        self._flushing = Flushing(self._disk, self._end_point())
        upkeep = self._upkeep = Upkeep(self._disk, self.path, recovery.checkpoint)
        upkeep.garbage = recovery.leftovers
        upkeep.unsaved = recovery.unsaved
        upkeep.captured_at = 0 if recovery.scanned_bytes == 0 else -1
        if self._chain.active is not None:
            set_limits(self._chain.active, self.config, self.path)
            self._chain.active.open_for_appending()

    def _settle(self, recovery: Recovery) -> None:
        """What was read above the flushed line may be in memory only. From now on it counts as flushed: so it
        must be."""
        unflushed = recovery.unflushed()
        for segment in unflushed:
            segment.file.flush()
        if unflushed:
            self._disk.sync_dir(self.path)
            self._disk.sync_dir(self._parent)
        self._drop_prefix()
        self._chain.let_cool()
        if self._chain.segments and not self._disk.volatile and recovery.scanned_bytes:
            self._upkeep.save_checkpoint(self._facts())

    def reconfigure(self, config: TopicConfig) -> None:
        """The new settings hold from the next batch on."""
        self.config = config
        active = self._chain.active
        if active is not None:
            set_limits(active, config, self.path)

    def close(self) -> None:
        """A clean end: all is flushed, and the next opening has nothing to scan. No thread may work on this log."""
        try:
            if self.failed is None:
                self._close_cleanly()
        finally:
            for segment in [*self._chain.segments, *self._upkeep.garbage]:
                segment.close()

    def _close_cleanly(self) -> None:
        ticket = self.begin_flush()
        if ticket is not None:
            try:
                ticket.run()
            except StorageError as problem:
                self.finish_flush(ticket, problem)
                raise
            self.finish_flush(ticket)
        upkeep, chain = self._upkeep, self._chain
        upkeep.settle(chain.active)
        if chain.active is None:
            return
        if not upkeep.is_saved(chain.active, self._appended_bytes):
            upkeep.save_now(self._capture())
        upkeep.checkpoint.save_both(self._facts())

    def destroy(self) -> Callable[[], None]:
        """Takes the log away: its name is free at once. Returns the slow part, the removal, for a thread."""
        self._upkeep.cancel()
        if self._plan is not None:
            self._plan.cancel()
        self._generation += 1
        self.failed = StorageError(f"{self.path} was deleted")
        for segment in [*self._chain.segments, *self._upkeep.garbage]:
            segment.close()
        aside = self._rename_aside()
        return lambda: self._remove_for_good(aside)

    def _rename_aside(self) -> str:
        number = 0
        while self._disk.exists(aside := f"{self.path}.{number}{DELETED_SUFFIX}"):
            number += 1
        if self._disk.exists(self.path):
            self._disk.rename(self.path, aside)
        return aside

    def _remove_for_good(self, aside: str) -> None:
        """In a thread. The new name is made durable first: what a crash leaves must not look like a log."""
        self._disk.sync_dir(self._parent)
        self._disk.remove_tree(aside)


def _controls_in(segments: list[Segment]) -> int:
    return sum(segment.control_count for segment in segments)
