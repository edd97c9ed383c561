"""One partition's log: append, read, flush, truncate, delete the prefix. `layout` has its bytes and its recovery.

Not thread-safe, on purpose: every method runs on the event loop. What blocks is handed out as an object that a thread
runs (a flush ticket, chores, a compaction plan), touches only what it captured, and comes back to the loop.

Invariants:
 1. start_offset <= flushed_offset <= end_offset. All below flushed_offset survives a power cut.
 2. Offsets rise by one, except where compaction has been. Each term begins with a control entry.
 3. An append writes one batch with one call, or nothing: a write that fails half-way is cut back.
 4. After a failed flush nobody knows what is on the disk: the log takes no more appends until it is opened anew
    and has read what is there. No space is not such a failure: the next append tries again.
 5. An empty log has no folder: the first append makes it.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple, Self

from penstock.batch import BatchHeader, set_log_append_time, stamp, zero_width_batch
from penstock.config import TopicConfig
from penstock.errors import DiskFull, ErrorCode, KafkaError, StorageError
from penstock.log.checkpoint import Checkpoint, CheckpointFacts, FlushPoint
from penstock.log.chores import Chores
from penstock.log.compaction import MAX_KEYS, CompactionPlan, Replacement, cleanable, is_due
from penstock.log.disk import Disk
from penstock.log.flush import Capture, FlushTicket
from penstock.log.hints import Hints
from penstock.log.layout import (
    CALLERS_OWN,
    DELETED_SUFFIX,
    SNAPSHOT_SUFFIX,
    TERM_START,
    control_payload,
    offsets_of,
    swap_name,
)
from penstock.log.lookup import first_at_or_after, greatest_timestamp
from penstock.log.producers import UNSEEN, ProducerStates
from penstock.log.recovery import LogState, Recovery, finish_swap, remove_segment
from penstock.log.retention import expired
from penstock.log.segment import Segment
from penstock.log.snapshot import SNAPSHOT_INTERVAL_BYTES, Snapshot, load_snapshot, snapshot_path
from penstock.log.warm import WarmSegments
from penstock.types import NO_TIMESTAMP, Offset, Term, TimestampMs

CHECKPOINT_INTERVAL_BYTES = 1024 * 1024
"""How much may be flushed before the checkpoint says so: the window in which rot passes for a torn tail."""
MAX_OFFSET_SPAN = 2**31 - 1
"""Of one segment: the index has 4 bytes for an offset."""


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
        self.start_offset = Offset(0)
        self.end_offset = Offset(0)
        self.last_term = Term(-1)
        self.start_controls = 0
        """Control entries that went with the deleted prefix: Raft's index needs their number."""
        self.failed: StorageError | None = None
        """Why the log takes no more appends."""
        self.cleaned_offset = 0
        self.generation = 0
        """Rises whenever segments change other than by growing: plans made before are void."""
        self._disk = disk
        self._state = LogState()
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self._active: Segment | None = None
        self._hints = Hints()
        self._warm = WarmSegments()
        self._checkpoint = Checkpoint(disk, path)
        self._flushed = FlushPoint(0, 0, 0)
        self._unflushed: list[Segment] = []
        self._names_dirty: list[str] = []
        self._ticket: FlushTicket | None = None
        self._appended_bytes = 0
        self._checkpointed_at = 0
        self._captured_at = 0
        self._capture: Capture | None = None
        self._chores: Chores | None = None
        self._garbage: list[Segment] = []
        self._unsaved: list[Segment] = []
        self._durable_snapshot_offset = -1

    @classmethod
    def open(cls, disk: Disk, path: str, config: TopicConfig, *, recover: bool = True) -> Self:
        """Reads what is there. Without `recover` nothing is changed: what would have to be cut is CorruptLog."""
        log = cls(disk, path, config)
        if disk.list_dir(path):
            recovery = Recovery(disk, path, config.index_interval_bytes, repair=recover)
            recovery.run()
            log._adopt(recovery)
            if recover:
                log._settle(recovery)
        return log

    # --- facts

    @property
    def flushed_offset(self) -> Offset:
        return Offset(self._flushed.offset)

    @property
    def dirty(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._unflushed or self._names_dirty)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    @property
    def producers(self) -> ProducerStates:
        return self._state.producers

    def end_of_term(self, term: Term) -> tuple[Term, Offset]:
        """The last term not after `term` and where it ended, as OffsetForLeaderEpoch wants it; (-1, -1): unknown."""
        return self._state.terms.end_of(term, self.end_offset)

    def term_at(self, offset: Offset) -> Term:
        return self._state.terms.at(offset)

    # --- appending

    def append(self, batch: bytearray | memoryview, header: BatchHeader, term: Term, now_ms: int) -> Appended:
        """Stores a checked batch, which gets its offset and term stamped in place.

        A repetition of an idempotent producer's batch is answered with where it is. Raises KafkaError for a wrong
        sequence or epoch, DiskFull, StorageError; in all these cases nothing was stored.
        """
        if self.failed is not None:
            raise StorageError(f"{self.path} takes no writes: {self.failed}")
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
        if term != self.last_term:
            self._begin_term(term)
        timestamp = header.max_timestamp
        if timestamp < 0:
            timestamp = header.base_timestamp
        base_offset = self.end_offset
        next_offset = base_offset + header.last_offset_delta + 1
        segment = self._room_for(len(batch), next_offset, timestamp)
        stamp(batch, 0, base_offset, term)
        try:
            segment.append(batch, base_offset, next_offset, timestamp)
        except StorageError as problem:
            self._write_failed(problem)
            raise
        self.end_offset = next_offset  # type: ignore[assignment]
        self._appended_bytes += len(batch)
        self._hints.put(next_offset, segment, segment.size)
        if not segment.dirty:
            segment.dirty = True
            self._unflushed.append(segment)
        if idempotent:
            state.producers.record(header, base_offset, now_ms)
        return Appended(base_offset, Offset(next_offset - 1), append_time, False)

    def append_control(self, payload: bytes, term: Term) -> None:
        """Stores an entry that clients never see and that takes no offset."""
        if self.failed is not None:
            raise StorageError(f"{self.path} takes no writes: {self.failed}")
        if term != self.last_term:
            self._begin_term(term)
        self._append_control(CALLERS_OWN, payload, term)

    def _duplicate(self, base_offset: int, last_offset: int, timestamp: int) -> Appended:
        append_time = timestamp if self.config.message_timestamp_log_append else NO_TIMESTAMP
        return Appended(Offset(base_offset), Offset(last_offset), TimestampMs(append_time), True)

    def _begin_term(self, term: Term) -> None:
        if term < self.last_term:
            raise ValueError(f"term {term} cannot follow term {self.last_term}")
        self._append_control(TERM_START, b"", term)

    def _append_control(self, kind: int, payload: bytes, term: Term) -> None:
        offset = self.end_offset
        entry = zero_width_batch(
            offset=offset, term=term, payload=control_payload(kind, term, offset, payload)
        )
        segment = self._room_for(len(entry), offset, -1)
        position = segment.size
        try:
            segment.file.append(entry)
        except StorageError as problem:
            self._write_failed(problem)
            raise
        segment.note_control(position, len(entry), offset)
        self._state.controls.append(offset)
        if term > self.last_term:
            self._state.terms.begin(term, offset)
            self.last_term = term
        self._hints.put(offset, segment, segment.size)
        self._mark_dirty(segment)
        self._appended_bytes += len(entry)

    def _mark_dirty(self, segment: Segment) -> None:
        if not segment.dirty:
            segment.dirty = True
            self._unflushed.append(segment)

    def _write_failed(self, problem: StorageError) -> None:
        """No space is the weather; anything else is the disk."""
        if not isinstance(problem, DiskFull):
            self.failed = problem

    # --- rolling

    def _room_for(self, size: int, next_offset: int, timestamp: int) -> Segment:
        """The segment that takes the next batch. The rules look at batches only, so replicas roll alike."""
        segment = self._active
        if segment is None:
            return self._start_segment()
        config = self.config
        if segment.size + size > config.segment_bytes:
            self._check_size(size)
        elif not (
            # A first batch without a time cannot say when to roll.
            (timestamp - segment.first_timestamp > segment.roll_ms and segment.first_timestamp >= 0)
            or segment.index_size_bytes() >= config.segment_index_bytes
            or next_offset - segment.base_offset > MAX_OFFSET_SPAN
        ):
            return segment
        return self._start_segment() if segment.has_records else segment

    def _check_size(self, size: int) -> None:
        if size > self.config.segment_bytes:
            reason = f"{size} bytes: segment.bytes is {self.config.segment_bytes}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, reason)

    def _start_segment(self) -> Segment:
        """Seals the active segment, if any, and begins the next one at the log's end."""
        if not self.segments:
            self._disk.make_dir(self.path)
            self._name_dirty(self.path.rpartition("/")[0])
        segment = self._new_segment(self.end_offset)
        segment.create()
        self._name_dirty(self.path)
        if self._active is not None:
            self._unsaved.append(self._active)
            self._warm.use(self._active)
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self.path, base_offset, self.config.index_interval_bytes)
        segment.roll_ms = self._roll_ms(base_offset)
        return segment

    def _roll_ms(self, base_offset: int) -> int:
        """segment.ms less a jitter that every replica finds alike, from the partition's name and the offset."""
        config = self.config
        span = (
            min(config.segment_ms, config.max_compaction_lag_ms)
            if config.cleanup_compact
            else config.segment_ms
        )
        jitter = min(config.segment_jitter_ms, span)
        if jitter > 0:
            name = self.path.rpartition("/")[2]
            span -= zlib.crc32(f"{name}:{base_offset}".encode()) % jitter
        return span

    def _name_dirty(self, folder: str) -> None:
        if folder not in self._names_dirty:
            self._names_dirty.append(folder)

    # --- reading

    def read(self, offset: Offset, max_bytes: int, *, limit: Offset, at_least_one: bool = True) -> bytes:
        """Whole batches from the one that holds `offset`, below `limit`, up to `max_bytes`.

        Stops at a segment's end and before a control entry: the next read goes on behind it. `at_least_one` gives the
        first batch even if it is larger than `max_bytes`. b"" means that there is nothing below the limit.
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
        segment, position = self._hints.get(offset) or self._find(offset)
        if position >= segment.size:
            segment, position = self._find(offset)
        stop, next_offset = self._end_of_read(segment, offset, limit)
        end = stop
        if stop - position > max_bytes:
            end, cut_offset = self._shorten(segment, position, position + max_bytes, at_least_one)
            if end < stop:
                next_offset = cut_offset
        if end <= position:
            return b""
        if next_offset is not None:
            self._hints.put(next_offset, segment, end)
        return segment.file.read_at(position, end - position)

    def _find(self, offset: int) -> tuple[Segment, int]:
        """The segment and position of the first batch that ends at or after `offset`."""
        at = bisect_right(self._bases, offset) - 1
        while True:
            segment = self.segments[at]
            self._use(segment)
            position = segment.locate(offset)
            # Compaction may have removed all from here to the segment's end.
            if position < segment.size or at + 1 == len(self.segments):
                return segment, position
            at += 1

    def _use(self, segment: Segment) -> None:
        if segment is not self._active:
            self._warm.use(segment)

    def _end_of_read(self, segment: Segment, offset: int, limit: int) -> tuple[int, int | None]:
        """The position where a read of this segment must stop, and the offset that follows there, if known."""
        stop = limit if limit < segment.next_offset else segment.next_offset
        controls = self._state.controls
        if controls and controls[-1] > offset:
            control = controls[bisect_right(controls, offset)]
            if control <= stop:
                self._use(segment)
                position = segment.load_index().first_at(control - segment.base_offset)
                if position is not None:
                    return position, None
        if stop == segment.next_offset:
            return segment.size, stop
        hint = self._hints.get(stop)
        if hint is not None and hint[0] is segment:
            return hint[1], stop
        self._use(segment)
        return segment.locate(stop), stop

    def _shorten(
        self, segment: Segment, position: int, end: int, at_least_one: bool
    ) -> tuple[int, int | None]:
        """The last place before `end` where a batch begins, as far as the index knows; else by the headers."""
        self._use(segment)
        relative, cut = segment.load_index().floor_position(end)
        if cut > position:
            return cut, relative + segment.base_offset
        cut = position
        for at, header in segment.headers(position, end):
            following = at + header.size
            if following > end:
                return (
                    (following, header.next_offset)
                    if at == position and at_least_one
                    else (cut, header.base_offset)
                )
            cut = following
        return cut, None

    def find_timestamp(self, timestamp: int, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the first record below `limit` that is not earlier than `timestamp`."""
        found = first_at_or_after(self.segments, timestamp, self.start_offset, limit)
        self._let_cool()
        if found is None:
            return None
        return found.timestamp, found.offset, self.term_at(Offset(found.offset))

    def max_timestamp(self, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the latest record below `limit`; of equals, the first."""
        newest = greatest_timestamp(self.segments, self.start_offset, limit)
        return self.find_timestamp(newest, limit) if newest >= 0 else None

    def _let_cool(self) -> None:
        """After a search that may have opened many segments."""
        for segment in self.segments[:-1]:
            if not self._warm.holds(segment):
                segment.cool()

    # --- flushing

    def begin_flush(self) -> FlushTicket | None:
        """A ticket for all that is not flushed yet, or None. Its `run` goes to a thread, then `finish_flush`."""
        if self.failed is not None or not self.dirty:
            return None
        if self._ticket is not None:
            raise RuntimeError(f"{self.path}: a flush is under way")
        segments, self._unflushed = self._unflushed, []
        folders, self._names_dirty = self._names_dirty, []
        for segment in segments:
            segment.dirty = False
        ticket = FlushTicket(self._disk, segments, folders, self._end_point(), self._appended_bytes)
        if self._capture_due():
            ticket.capture = self._take_capture()
        self._ticket = ticket
        return ticket

    def finish_flush(self, ticket: FlushTicket, error: StorageError | None = None) -> None:
        """The ticket came back. An error is final: what it did not flush may be lost, and no second flush would tell."""
        ticket.release()
        self._ticket = None
        if error is not None:
            self.failed = error
            return
        self._flushed = max(self._flushed, ticket.point)
        if ticket.capture is not None:
            self._capture = ticket.capture
        if (
            ticket.appended_bytes - self._checkpointed_at >= CHECKPOINT_INTERVAL_BYTES
            and not self._disk.volatile
        ):
            self._save_checkpoint()

    def _end_point(self) -> FlushPoint:
        active = self._active
        if active is None:
            return FlushPoint(self.end_offset, self.end_offset, 0)
        return FlushPoint(self.end_offset, active.base_offset, active.size)

    # --- checkpoint, snapshot and other chores

    def _facts(self) -> CheckpointFacts:
        first = self._bases[0] if self._bases else self.start_offset
        return CheckpointFacts(
            self.start_offset, first, self.start_controls, self._flushed, self.cleaned_offset
        )

    def _save_checkpoint(self) -> None:
        """Not flushed: an older one stays true. On a full disk an older one has to do."""
        self._checkpointed_at = self._appended_bytes
        try:
            self._checkpoint.save(self._facts())
        except DiskFull:
            return

    def _capture_due(self) -> bool:
        grown = self._appended_bytes - self._captured_at
        return not self._disk.volatile and bool(
            grown >= SNAPSHOT_INTERVAL_BYTES
            or self._garbage
            or len(self._unsaved) > (self._active in self._unsaved)
        )

    def _take_capture(self) -> Capture | None:
        """State and indexes as of now, for a thread to write once all before it is flushed."""
        active = self._active
        if active is None:
            return None
        self._captured_at = self._appended_bytes
        unsaved = [segment for segment in self._unsaved if segment is not active]
        return Capture(self._snapshot(active), [*unsaved, active])

    def _snapshot(self, active: Segment) -> Snapshot:
        return Snapshot(
            offset=self.end_offset,
            base_offset=active.base_offset,
            position=active.size,
            last_term=self.last_term,
            terms=self._state.terms.entries(),
            controls=list(self._state.controls),
            control_count=active.control_count,
            producers=self._state.producers.rows(),
        )

    def take_garbage(self) -> Callable[[], None] | None:
        """Work for a thread, if there is any: indexes and a snapshot to save, expired segments to remove.

        To be asked for every few seconds. None while the last chores have not ended.
        """
        if not self._chores_settled():
            return None
        if (
            self.failed is None
            and self._checkpoint.facts != self._facts()
            and not self._disk.volatile
            and self.segments
        ):
            self._save_checkpoint()
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.keep(set(self.segments))
        if capture is None and self._flushed == self._end_point() and self._capture_due():
            capture = self._take_capture()
        garbage = self._removable(capture)
        if capture is None and not garbage:
            return None
        self._chores = Chores(
            self._disk, self.path, capture=capture, garbage=garbage, checkpoint=self._checkpoint
        )
        return self._chores

    def _removable(self, capture: Capture | None) -> list[Segment]:
        """Garbage that a snapshot on the disk, or about to be there, has made dispensable."""
        if self._disk.volatile:
            return self._garbage
        known = capture.snapshot.offset if capture is not None else self._durable_snapshot_offset
        return [segment for segment in self._garbage if segment.next_offset <= known]

    def _chores_settled(self) -> bool:
        """Enters what the last chores did; False if they still run."""
        chores = self._chores
        if chores is None:
            return True
        if not chores.done:
            return False
        self._chores = None
        if chores.succeeded:
            gone = set(chores.garbage)
            self._garbage = [segment for segment in self._garbage if segment not in gone]
            if chores.capture is not None:
                self._enter_capture(chores.capture)
        return True

    def _enter_capture(self, capture: Capture) -> None:
        self._durable_snapshot_offset = capture.snapshot.offset
        for segment, (head, _) in zip(capture.segments, capture.indexes, strict=True):
            if segment is not self._active and segment.head() == head:
                segment.index_saved = True
                self._unsaved = [other for other in self._unsaved if other is not segment]
                if not self._warm.holds(segment):
                    segment.cool()

    # --- truncating and deleting

    def truncate(self, offset: Offset) -> None:
        """Removes everything from `offset` on, control entries included, durably. Never cuts a batch: the one that
        holds `offset` goes whole. Blocks for a flush or two: a leader was wrong, and that is rare."""
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot truncate {self.path} to {offset}, it ends at {self.end_offset}",
            )
        if not self.segments:
            return
        if self._chores is not None:
            self._chores.cancel()
        self.generation += 1
        self._capture = None
        at, position, end_offset = self._place_to_cut(offset)
        segment = self.segments[at]
        cut = FlushPoint(end_offset, segment.base_offset, position)
        self._lower_line(cut)
        for later in reversed(self.segments[at + 1 :]):
            later.close()
            remove_segment(self._disk, self.path, later.base_offset)
            self._disk.sync_dir(self.path)
        del self.segments[at + 1 :]
        del self._bases[at + 1 :]
        self._forget_from(end_offset, segment, position)
        self._rebuild_producers()

    def _place_to_cut(self, offset: int) -> tuple[int, int, int]:
        """Number of the segment that will be last, the position where it will end, and the offset there."""
        at = max(bisect_left(self._bases, offset) - 1, 0)
        segment = self.segments[at]
        index = segment.load_index()
        position = segment.locate(offset)
        end_offset = segment.base_offset
        for _, header in segment.headers(index.floor_position(position - 1)[1] if position else 0, position):
            end_offset = max(end_offset, header.next_offset)
        # Control entries at the new end go too: they stand before what goes.
        controls = index.first_at(end_offset - segment.base_offset)
        return at, min(position, controls) if controls is not None else position, end_offset

    def _lower_line(self, cut: FlushPoint) -> None:
        """Before bytes go, nothing on the disk may promise them."""
        names = self._disk.list_dir(self.path)
        for offset in offsets_of(names, SNAPSHOT_SUFFIX):
            snapshot = load_snapshot(self._disk, self.path, offset)
            if snapshot is None or (snapshot.base_offset, snapshot.position) > cut[1:]:
                self._disk.remove(snapshot_path(self.path, offset))
                self._name_dirty(self.path)
        self._flushed = min(self._flushed, cut)
        if self._ticket is not None:
            self._ticket.point = min(self._ticket.point, cut)
        if self._checkpoint.facts.flushed > cut:
            self._checkpoint.save_durably(self._facts())
        elif self.path in self._names_dirty:
            self._disk.sync_dir(self.path)

    def _forget_from(self, end_offset: int, segment: Segment, position: int) -> None:
        state = self._state
        kept = bisect_left(state.controls, end_offset)
        before = sum(other.control_count for other in self.segments[:-1])
        del state.controls[kept:]
        segment.truncate(position, end_offset, kept - before)
        self._unflushed = [other for other in self._unflushed if other in self.segments]
        self._unsaved = [other for other in self._unsaved if other in self.segments and other is not segment]
        self._active = segment
        self._warm.drop(segment)
        self._hints.clear()
        state.terms.truncate(end_offset)
        self.last_term = state.terms.latest
        self.end_offset = Offset(end_offset)
        self._durable_snapshot_offset = min(self._durable_snapshot_offset, end_offset)
        self._captured_at = self._appended_bytes - SNAPSHOT_INTERVAL_BYTES

    def _rebuild_producers(self) -> None:
        """From the newest snapshot that is left, then batch by batch."""
        producers = self._state.producers
        if not len(producers):
            return
        producers.restore([])
        start, position = 0, 0
        for offset in reversed(offsets_of(self._disk.list_dir(self.path), SNAPSHOT_SUFFIX)):
            snapshot = load_snapshot(self._disk, self.path, offset)
            if snapshot is not None and snapshot.base_offset in self._bases[-1:]:
                producers.restore(snapshot.producers)
                start, position = len(self.segments) - 1, snapshot.position
                break
        for at in range(start, len(self.segments)):
            segment = self.segments[at]
            for _, header in segment.headers(position if at == start else 0, segment.size):
                if header.producer_id >= 0:
                    producers.record(header, header.base_offset, UNSEEN)

    def delete_prefix(self, offset: Offset) -> None:
        """Makes `offset` the first that can be read. Segments wholly below it are removed by the next chores."""
        if offset <= self.start_offset:
            return
        if offset > self.flushed_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.path} has {self.flushed_offset} as its last flushed offset, not {offset}",
            )
        self.start_offset = offset
        self._drop_prefix()
        self._checkpoint.save(self._facts())

    def _drop_prefix(self) -> None:
        """Takes segments wholly below the start out of the log."""
        active = self._active
        if active is not None and active.has_records and active.next_offset <= self.start_offset:
            self._start_segment()
        while len(self.segments) > 1 and self._bases[1] <= self.start_offset:
            segment = self.segments.pop(0)
            del self._bases[0]
            self._discard(segment)
        self._state.terms.delete_prefix(self.start_offset)

    def _discard(self, segment: Segment) -> None:
        """The first segment goes."""
        self.generation += 1
        del self._state.controls[: segment.control_count]
        self.start_controls += segment.control_count
        self._hints.clear()
        self._warm.drop(segment)
        segment.close()
        self._garbage.append(segment)
        self._unsaved = [other for other in self._unsaved if other is not segment]
        self._unflushed = [other for other in self._unflushed if other is not segment]

    # --- retention

    def expired(self, now_ms: int) -> list[Segment]:
        """Segments that retention no longer keeps, oldest first."""
        return expired(self.segments, self.config, self.flushed_offset, now_ms)

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
        sealed = [s for s in self.segments[:-1] if s.base_offset < self._flushed.base_offset]
        segments = cleanable(sealed, config, self.cleaned_offset, now_ms)
        if not segments or not is_due(segments, config, self.cleaned_offset, now_ms):
            return None
        if not self._disk.volatile and self._durable_snapshot_offset < segments[-1].next_offset:
            # Positions move, so older snapshots will be of no use; `take_garbage` writes a newer one first.
            self._captured_at = self._appended_bytes - SNAPSHOT_INTERVAL_BYTES
            return None
        return CompactionPlan(
            self._disk,
            self.path,
            config,
            segments=segments,
            cleaned_offset=self.cleaned_offset,
            producer_ends=self._state.producers.last_offsets(),
            generation=self.generation,
            now_ms=now_ms,
            max_keys=max_keys,
        )

    def finish_compaction(self, plan: CompactionPlan) -> None:
        """Puts the new segments in place, unless the log has changed under the plan. Blocks for a few flushes."""
        if plan.generation != self.generation or not plan.complete or self.failed is not None:
            plan.discard()
            return
        if self._chores is not None:
            self._chores.cancel()
        self.cleaned_offset = plan.cleaned_offset
        self._checkpoint.save_durably(self._facts())
        for replacement in plan.replacements:
            self._replace(replacement)
        for segment, horizon_ms in plan.horizons.items():
            if segment.delete_horizon_ms != horizon_ms:
                segment.load_index()
                segment.delete_horizon_ms = horizon_ms
                segment.index_saved = False
                self._unsaved.append(segment)
        self._bases = [segment.base_offset for segment in self.segments]
        self._hints.clear()
        self.generation += 1

    def _replace(self, replacement: Replacement) -> None:
        """The swap's new name is the point of no return; recovery finishes what comes after it."""
        head = replacement.head
        swap = swap_name(head.base_offset, head.next_offset)
        self._disk.rename(replacement.path, f"{self.path}/{swap}")
        self._disk.sync_dir(self.path)
        finish_swap(self._disk, self.path, swap)
        segment = self._new_segment(head.base_offset)
        segment.adopt(head)
        segment.index, segment.index_saved = replacement.entries, False
        at = self.segments.index(replacement.sources[0])
        self.segments[at : at + len(replacement.sources)] = [segment]
        for old in replacement.sources:
            self._warm.drop(old)
            old.close()
        gone = set(replacement.sources)
        self._unsaved = [other for other in self._unsaved if other not in gone] + [segment]

    # --- opening and closing

    def _adopt(self, recovery: Recovery) -> None:
        self._state = recovery.state
        self._checkpoint = recovery.checkpoint
        self.segments = recovery.segments
        self._bases = [segment.base_offset for segment in self.segments]
        self.start_offset = Offset(recovery.start_offset)
        self.end_offset = Offset(recovery.state.end_offset)
        self.last_term = Term(recovery.state.last_term)
        facts = recovery.checkpoint.facts
        self.cleaned_offset = facts.cleaned_offset
        self.start_controls = facts.start_controls - sum(
            segment.control_count for segment in self.segments if segment.base_offset < facts.first_base
        )
        self._garbage = recovery.leftovers
        self._unsaved = recovery.unsaved
        for segment in self.segments:
            segment.roll_ms = self._roll_ms(segment.base_offset)
        if self.segments:
            self._active = self.segments[-1]
            self._active.load_index()
        self._captured_at = recovery.snapshot_offset - self.end_offset
        self._flushed = self._end_point()

    def _settle(self, recovery: Recovery) -> None:
        """What was read above the flushed line may be in memory only: from now on it counts as flushed, so it must be."""
        unflushed = recovery.unflushed()
        for segment in unflushed:
            segment.file.flush()
        if unflushed:
            self._disk.sync_dir(self.path)
            self._disk.sync_dir(self.path.rpartition("/")[0])
        self._drop_prefix()
        self._let_cool()
        if self.segments and not self._disk.volatile:
            self._save_checkpoint()

    def reconfigure(self, config: TopicConfig) -> None:
        """The new settings hold from the next batch on."""
        self.config = config
        if self._active is not None:
            self._active.roll_ms = self._roll_ms(self._active.base_offset)
            self._active.interval = config.index_interval_bytes

    def close(self) -> None:
        """A clean end: all is flushed, and the next opening has nothing to scan. No thread may work on this log."""
        try:
            if self.failed is None:
                self._close_cleanly()
        finally:
            for segment in self.segments:
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
        self._chores_settled()
        if self._active is None or self._disk.volatile:
            return
        if self._captured_at != self._appended_bytes or self._capture is not None or self._unsaved:
            # Not flushed: a snapshot that did not survive costs the next opening a scan, no more.
            capture = self._take_capture()
            Chores(
                self._disk, self.path, capture=capture, garbage=(), checkpoint=self._checkpoint, durable=False
            )()
        self._save_checkpoint()

    def destroy(self) -> Callable[[], None]:
        """Takes the log away: its name is free at once. Returns the slow part, the removal, for a thread."""
        if self._chores is not None:
            self._chores.cancel()
        self.generation += 1
        for segment in [*self.segments, *self._garbage]:
            segment.close()
        self.failed = StorageError(f"{self.path} was deleted")
        aside = self._rename_aside()
        return lambda: self._disk.remove_tree(aside)

    def _rename_aside(self) -> str:
        number = 0
        while self._disk.exists(aside := f"{self.path}.{number}{DELETED_SUFFIX}"):
            number += 1
        if self._disk.exists(self.path):
            self._disk.rename(self.path, aside)
            self._disk.sync_dir(self.path.rpartition("/")[0])
        return aside
