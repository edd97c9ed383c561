"""Writing at a log's end: batches and control entries of a leader, and entries that a leader sent to a follower.

Each entry goes into the active segment if that has space, else it begins the next one. Only the entries themselves
decide that, so replicas have the same segments.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.batch import BatchHeader, Buffer, read_marker, set_log_append_time, stamp, zero_width_batch
from penstock.batch.header import CONTROL_BIT, LENGTH_OVERHEAD
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.log.checkpoint import MAX_CONFIG_BYTES
from penstock.log.entries import Entry, check_entries
from penstock.log.layout import CALLERS_OWN, TERM_START, control_payload
from penstock.log.log_files import LogFiles
from penstock.log.segment import Segment, newest_timestamp
from penstock.types import NO_TIMESTAMP, Offset, Term, TimestampMs


class Appended(NamedTuple):
    """Where a batch was stored."""

    base_offset: Offset
    last_offset: Offset
    timestamp_ms: TimestampMs
    """The append time, on topics that stamp it; else -1."""
    duplicate: bool
    """It had been stored before, at these offsets, and was not stored again."""


class LogWriter:
    """Appends to the files of one log."""

    __slots__ = ("_files",)

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    # --- as a leader

    def append(self, batch: bytearray | memoryview, header: BatchHeader, term: Term, now_ms: int) -> Appended:
        """Stores a batch whose `header` was checked, and stamps offset and term into it in place.

        If an idempotent producer repeats a batch, the answer is where it was stored first. A control batch must be the
        marker that ends a transaction. Raises KafkaError for a wrong sequence or epoch (`producers`), DiskFull,
        StorageError; in all these cases nothing was stored.
        """
        files = self._files
        if files.failed is not None:
            files.check_writable()
        size = header.batch_length + LENGTH_OVERHEAD
        if len(batch) != size:
            raise ValueError(f"{len(batch)} bytes are not the batch of {size} that was checked")
        state = files.state
        idempotent = header.producer_id >= 0
        if idempotent:
            if header.attributes & CONTROL_BIT:
                self._check_marker(batch, header)
            elif (known := state.producers.check(header)) is not None:
                return self._duplicate(known.base_offset, known.last_offset, known.timestamp)
        append_time = NO_TIMESTAMP
        if files.config.message_timestamp_log_append:
            append_time = TimestampMs(now_ms)
            batch, header = set_log_append_time(batch, header, now_ms)
        timestamp = header.max_timestamp
        if timestamp < 0:
            timestamp = header.base_timestamp
        base_offset = state.end_offset
        next_offset = Offset(base_offset + header.last_offset_delta + 1)
        if term != state.last_term:
            self._check_size(size)
            self.begin_term(term)
        segment = files.segments.active
        if segment is None or not segment.has_room(size, next_offset, timestamp):
            self._check_size(size)
            segment = self._roll()
        stamp(batch, 0, base_offset, term)
        try:
            segment.append(batch, base_offset, next_offset, timestamp)
        except StorageError as problem:
            files.write_failed(problem)
            raise
        state.end_offset = next_offset
        files.appended_bytes += size
        files.segments.positions.put(next_offset, segment, segment.size)
        if not segment.dirty:
            files.flushed.mark(segment)
        if idempotent:
            if header.attributes & CONTROL_BIT:
                state.producers.enter(header._replace(base_offset=base_offset), batch, now_ms)
            else:
                state.producers.record(header, base_offset, now_ms)
        return Appended(base_offset, Offset(next_offset - 1), append_time, False)

    def _check_marker(self, batch: Buffer, header: BatchHeader) -> None:
        marker = read_marker(batch, header)
        if marker is None:
            raise ValueError("a control batch of a producer that does not end a transaction")
        self._files.state.producers.check_marker(header, marker)

    def _duplicate(self, base_offset: int, last_offset: int, timestamp: int) -> Appended:
        append_time = timestamp if self._files.config.message_timestamp_log_append else NO_TIMESTAMP
        return Appended(Offset(base_offset), Offset(last_offset), TimestampMs(append_time), True)

    def _check_size(self, size: int) -> None:
        limit = self._files.config.segment_bytes
        if size > limit:
            reason = f"a batch of {size} bytes does not fit segment.bytes={limit}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, reason)

    def begin_term(self, term: Term) -> None:
        """Writes the term's first entry. `append` does so by itself; a leader of several replicas cannot wait for the
        first batch."""
        files = self._files
        files.check_writable()
        if term <= files.state.last_term:
            raise ValueError(f"term {term} cannot follow term {files.state.last_term}")
        self._write_control(TERM_START, term, None)

    def append_control(self, payload: bytes, term: Term) -> None:
        """Stores an entry that clients never see and that takes no offset."""
        self._files.check_writable()
        if len(payload) > MAX_CONFIG_BYTES:
            raise ValueError(f"a payload of {len(payload)} bytes: expected at most {MAX_CONFIG_BYTES}")
        if term != self._files.state.last_term:
            self.begin_term(term)
        self._write_control(CALLERS_OWN, term, payload)

    def _write_control(self, kind: int, term: Term, payload: bytes | None) -> None:
        files = self._files
        offset = files.state.end_offset
        content = control_payload(kind, term, offset, payload or b"")
        entry = zero_width_batch(offset=offset, term=term, payload=content)
        segment = files.segments.active
        if segment is None or not segment.has_room(len(entry), offset, NO_TIMESTAMP):
            segment = self._roll()
        position = segment.size
        try:
            segment.file_for_writing().append(entry)
        except StorageError as problem:
            files.write_failed(problem)
            raise
        segment.note_control(position, len(entry), offset)
        files.state.enter_control(offset, term, payload)
        self._entered(segment, len(entry))

    def _roll(self) -> Segment:
        """The active segment is full: begins the next one. Two segments cannot begin at one offset, so an active
        one that holds only control entries takes more than its limit."""
        active = self._files.segments.active
        return active if active is not None and not active.has_records else self._files.start_segment()

    def _entered(self, segment: Segment, size: int) -> None:
        """The log's last `size` bytes were written to this segment."""
        files = self._files
        files.segments.positions.put(files.state.end_offset, segment, segment.size)
        files.flushed.mark(segment)
        files.appended_bytes += size

    # --- as a follower

    def append_entries(
        self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int, *, gaps_below: int = 0
    ) -> None:
        """Stores entries as another replica's log holds them, from this log's end on. `headers` are their headers as
        they were read from `data`; `gaps_below` is the sender's `cleaned_offset`.

        Raises BatchError, and stores nothing, if one of them is not whole or cannot follow the log's last entry. Raises
        DiskFull or StorageError where the disk refuses: then the first entries may be stored, each of them whole, up to
        `end_index`.
        """
        files = self._files
        files.check_writable()
        state = files.state
        cleaned_offset = max(state.cleaned_offset, state.gaps_below)
        received = check_entries(
            data,
            headers,
            end_offset=state.end_offset,
            last_term=state.last_term,
            gaps_below=max(gaps_below, cleaned_offset),
        )
        if received.has_gaps and gaps_below > cleaned_offset:
            # Before the first gap is written, or recovery would take it for the log's end.
            self._expect_gaps(gaps_below)
        view, entries = memoryview(data), received.entries
        at = 0
        while at < len(entries):
            at = self._write_run(view, entries, at, now_ms)

    def _expect_gaps(self, below: int) -> None:
        files = self._files
        files.state.gaps_below = below
        if files.segments.active is None:
            files.start_segment()
        if not files.disk.volatile:
            files.save_checkpoint_durably()

    def _write_run(self, view: memoryview, entries: list[Entry], at: int, now_ms: int) -> int:
        """Writes, with one call, the entries from number `at` on that fit into one segment; returns the number of the
        next."""
        files = self._files
        segment = self._segment_for(entries[at])
        file = segment.file_for_writing()  # before anything is noted
        size, next_offset, controls = segment.size, segment.next_offset, segment.control_count
        end = at
        while end < len(entries) and (end == at or _fits(segment, entries[end])):
            _note(segment, entries[end])
            end += 1
        run = entries[at:end]
        try:
            file.append(view[run[0].start : run[-1].end])
        except StorageError as problem:
            files.write_failed(problem)
            segment.load_index().truncate(size)
            segment.resume(size, next_offset, controls)
            raise
        for entry in run:
            self._enter(entry, view, now_ms)
            if entry.is_control:
                # A cached position may still say that this offset's record begins where the control entry now is.
                position = size + entry.end - run[0].start
                files.segments.positions.put(entry.header.base_offset, segment, position)
        self._entered(segment, run[-1].end - run[0].start)
        return end

    def _segment_for(self, entry: Entry) -> Segment:
        """An entry that is larger than the segment limit gets its own segment: the leader has accepted it."""
        active = self._files.segments.active
        if active is not None and _fits(active, entry):
            return active
        self._files.state.end_offset = Offset(entry.header.base_offset)
        segment = self._roll()
        if active is not None and active is not segment:
            active.next_offset = segment.base_offset
        return segment

    def _enter(self, entry: Entry, view: memoryview, now_ms: int) -> None:
        state, header = self._files.state, entry.header
        if entry.is_control:
            state.enter_control(header.base_offset, header.leader_epoch, entry.payload)
        elif header.producer_id >= 0:
            state.producers.enter(header, view[entry.start : entry.end], now_ms)
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
