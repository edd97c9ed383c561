"""Writing at a log's end: a leader's batches and control entries, and the entries that a leader sent."""

from typing import NamedTuple

from penstock.batch import BatchHeader, Buffer, set_log_append_time, stamp, zero_width_batch
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.log.checkpoint import MAX_CONFIG_BYTES
from penstock.log.entries import Entry, check_entries
from penstock.log.layout import CALLERS_OWN, TERM_START, control_payload
from penstock.log.parts import LogParts
from penstock.log.segment import LENGTH_OVERHEAD, Segment, newest_timestamp
from penstock.types import NO_TIMESTAMP, Offset, Term, TimestampMs


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: Offset
    last_offset: Offset
    timestamp_ms: TimestampMs
    """The append time, on topics that stamp it; else -1."""
    duplicate: bool
    """It had been stored before, at these offsets, and was not stored again."""


class Appending(LogParts):
    """Each entry goes into the active segment if that has room, else it begins the next: by what the entries say and
    nothing else, so that replicas have the same segments."""

    # --- as a leader

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
        if term != state.last_term:
            self._check_size(len(batch))
            self.begin_term(term)
        segment = self._chain.active
        if segment is None or not segment.has_room(len(batch), next_offset, timestamp):
            self._check_size(len(batch))
            segment = self._roll()
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

    def _duplicate(self, base_offset: int, last_offset: int, timestamp: int) -> Appended:
        append_time = timestamp if self.config.message_timestamp_log_append else NO_TIMESTAMP
        return Appended(Offset(base_offset), Offset(last_offset), TimestampMs(append_time), True)

    def _check_size(self, size: int) -> None:
        if size > self.config.segment_bytes:
            reason = f"a batch of {size} bytes does not fit segment.bytes={self.config.segment_bytes}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, reason)

    def begin_term(self, term: Term) -> None:
        """Writes the term's first entry. `append` does it by itself; leaders of several replicas cannot wait for the
        first batch."""
        self._check_writable()
        if term <= self.last_term:
            raise ValueError(f"term {term} cannot follow term {self.last_term}")
        self._write_control(TERM_START, term, None)

    def append_control(self, payload: bytes, term: Term) -> None:
        """Stores an entry that clients never see and that takes no offset."""
        self._check_writable()
        if len(payload) > MAX_CONFIG_BYTES:
            raise ValueError(f"a payload of {len(payload)} bytes: expected at most {MAX_CONFIG_BYTES}")
        if term != self.last_term:
            self.begin_term(term)
        self._write_control(CALLERS_OWN, term, payload)

    def _write_control(self, kind: int, term: Term, payload: bytes | None) -> None:
        offset = self.end_offset
        content = control_payload(kind, term, offset, payload or b"")
        entry = zero_width_batch(offset=offset, term=term, payload=content)
        segment = self._chain.active
        if segment is None or not segment.has_room(len(entry), offset, NO_TIMESTAMP):
            segment = self._roll()
        position = segment.size
        try:
            segment.file.append(entry)
        except StorageError as problem:
            self._write_failed(problem)
            raise
        segment.note_control(position, len(entry), offset)
        self._state.enter_control(offset, term, payload)
        self._entered(segment, len(entry))

    def _roll(self) -> Segment:
        """The active segment has no room: begins the next one. Two segments cannot begin at one offset, so an active
        one with nothing but control entries takes what comes."""
        active = self._chain.active
        return active if active is not None and not active.has_records else self._start_segment()

    def _entered(self, segment: Segment, size: int) -> None:
        """The log's last `size` bytes went into this segment."""
        self._chain.hints.put(self.end_offset, segment, segment.size)
        self._flushing.mark(segment)
        self._appended_bytes += size

    # --- as a follower

    def append_entries(self, data: Buffer, now_ms: int, *, gaps_below: int = 0) -> None:
        """Stores entries as another replica's log holds them, from this log's end on. `gaps_below` is the sender's
        `cleaned_offset`.

        Raises BatchError, and stores nothing, if any of them is not whole or cannot follow on what is here. Raises
        DiskFull or StorageError where the disk refuses: then the first of them may be there, all whole, and
        `end_index` tells.
        """
        self._check_writable()
        state = self._state
        received = check_entries(
            data,
            end_offset=state.end_offset,
            last_term=state.last_term,
            gaps_below=max(gaps_below, self.cleaned_offset),
        )
        if received.has_gaps and gaps_below > self.cleaned_offset:
            # Before the first gap is written, or a recovery would take it for the log's end.
            self._expect_gaps(gaps_below)
        view, entries = memoryview(data), received.entries
        at = 0
        while at < len(entries):
            at = self._write_run(view, entries, at, now_ms)

    def _expect_gaps(self, below: int) -> None:
        self._state.gaps_below = below
        if self._chain.active is None:
            self._start_segment()
        if not self._disk.volatile:
            self._upkeep.checkpoint.save_durably(self._facts())

    def _write_run(self, view: memoryview, entries: list[Entry], at: int, now_ms: int) -> int:
        """Writes, with one call, the entries from number `at` on that go into one segment; returns the number of the
        next."""
        segment = self._segment_for(entries[at])
        size, next_offset, controls = segment.size, segment.next_offset, segment.control_count
        end = at
        while end < len(entries) and (end == at or _fits(segment, entries[end])):
            _note(segment, entries[end])
            end += 1
        run = entries[at:end]
        try:
            segment.file.append(view[run[0].start : run[-1].end])
        except StorageError as problem:
            self._write_failed(problem)
            segment.load_index().truncate(size)
            segment.resume(size, next_offset, controls)
            raise
        for entry in run:
            self._enter(entry, now_ms)
            if entry.is_control:
                # A hint from before may say that this offset's record stands where the control entry now does.
                position = size + entry.end - run[0].start
                self._chain.hints.put(entry.header.base_offset, segment, position)
        self._entered(segment, run[-1].end - run[0].start)
        return end

    def _segment_for(self, entry: Entry) -> Segment:
        """An entry that is larger than a segment may be gets one of its own: the leader has taken it."""
        active = self._chain.active
        if active is not None and _fits(active, entry):
            return active
        self._state.end_offset = Offset(entry.header.base_offset)
        segment = self._roll()
        if active is not None and active is not segment:
            active.next_offset = segment.base_offset
        return segment

    def _enter(self, entry: Entry, now_ms: int) -> None:
        state, header = self._state, entry.header
        if entry.is_control:
            state.enter_control(header.base_offset, header.leader_epoch, entry.payload)
        elif header.producer_id >= 0:
            state.producers.record(header, header.base_offset, now_ms)
        state.end_offset = Offset(header.next_offset)


def _fits(segment: Segment, entry: Entry) -> bool:
    header = entry.header
    timestamp = NO_TIMESTAMP if entry.is_control else newest_timestamp(header)
    return segment.has_room(header.size, header.next_offset, timestamp)


def _note(segment: Segment, entry: Entry) -> None:
    header = entry.header
    if entry.is_control:
        segment.note_control(segment.size, header.size, header.base_offset)
    else:
        newest = newest_timestamp(header)
        segment.note(segment.size, header.size, header.base_offset, header.next_offset, newest)
