"""The states of all offsets of a partition, and the counters that depend on them.

    0 ... start_offset ........................... next_offset ......
    done  undone and done, in chunks               not read yet

Only chunks with undone offsets are kept: below next_offset, an offset without a chunk is done. So a queue that keeps up
has one chunk or two, however long its log is.

After a restart there are chunks that the log has not been read up to. Such a chunk is not *reached*; its offsets are
UNREAD or DONE. next_offset skips done offsets. So if one message at the start of a partition is stuck, the new leader
does not read all the settled records behind it again.

The counters are a list by state. They must equal what the bytes say (invariant 6 in `partition.py`), so only
`set_state`, `finish`, `lease` and `restore` change states.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from penstock.queue.chunk import NO_LANE, Chunk
from penstock.queue.deadlines import Deadlines
from penstock.queue.key_order import KeyOrder
from penstock.queue.lanes import Lanes
from penstock.queue.leases import Lease, Leases
from penstock.queue.state_records import DelayedRun, StoredChunk
from penstock.queue.states import (
    ALL_DONE,
    AVAILABLE,
    BYTE,
    CHUNK_SIZE,
    DEFERRED,
    DONE,
    LEASED,
    UNREAD,
    WAITING,
    State,
    run_end,
    runs,
)
from penstock.queue.stored_backlog import Unread, count_unread
from penstock.queue.timers import DUE, ChunkTimers, event

SCHEDULE_LOOKS = 100_000
"""A tenth of a second of the caller's time; finding a thousand messages among a million that are all deferred takes 4
ms."""


class OffsetTable:
    """Chunks by number, and where the undone offsets begin and end."""

    def __init__(self, start_offset: int, leases: Leases, lanes: Lanes | None = None) -> None:
        self.start_offset = start_offset
        self.next_offset = start_offset
        self.chunks: dict[int, Chunk] = {}
        self.counts = [0] * len(State)
        """The entries of UNREAD and DONE are not maintained."""
        self.reached = 0
        """How many chunks are reached."""
        self.changed: dict[int, None] = {}
        """Numbers of chunks that differ from their stored form: `StateWriter` empties it."""
        self.due = Deadlines()
        """When each chunk has its next timer event."""
        self._leases = leases
        self._lanes = lanes
        self._key_order = KeyOrder()
        self._listed: list[int] = []
        """A heap of chunk numbers: it has every chunk with available offsets, and some others."""
        self._done_ahead: set[int] = set()
        """Chunks without undone offsets that end above next_offset."""

    # Reading

    def spans(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The range, split at the borders of chunks: (chunk number, index, end index)."""
        while first < stop:
            number, index = divmod(first, CHUNK_SIZE)
            end = min(CHUNK_SIZE, index + stop - first)
            yield number, index, end
            first += end - index

    def pieces(self, first: int, stop: int) -> list[tuple[Chunk, int, int]]:
        """The parts of a range, however long, for which there are chunks."""
        low, high = first // CHUNK_SIZE, (stop - 1) // CHUNK_SIZE
        if high - low < len(self.chunks):
            numbers: Iterable[int] = [number for number in range(low, high + 1) if number in self.chunks]
        else:
            numbers = sorted(number for number in self.chunks if low <= number <= high)
        chunks = [self.chunks[number] for number in numbers]
        return [(each, max(0, first - each.base), min(CHUNK_SIZE, stop - each.base)) for each in chunks]

    def lanes_of(self, first: int, last: int) -> set[int]:
        """The lanes of these offsets, as far as they are known: those of a chunk that is done are forgotten."""
        found = [
            chunk.lanes[start:stop]
            for chunk, start, stop in self.pieces(first, last + 1)
            if chunk.lanes is not None
        ]
        return set().union(*found) - {NO_LANE}

    def next_available(self) -> tuple[Chunk, int] | None:
        """The lowest available offset."""
        while self._listed:
            chunk = self.chunks.get(self._listed[0])
            index = -1 if chunk is None else chunk.first_available()
            if chunk is not None and index >= 0:
                return chunk, index
            heapq.heappop(self._listed)
            if chunk is not None:
                chunk.listed = False
        return None

    def scheduled(self, most: int) -> list[tuple[int, int]]:
        """(due_ms, offset) of deferred messages, soonest first. The timers also contain expiry times and entries of
        messages that were done early: if SCHEDULE_LOOKS of these come first, fewer messages are found than there
        are."""
        agendas = [_pending(self.chunks[number]) for number in sorted(self.chunks)]
        found: list[tuple[int, int]] = []
        for at_ms, offset, is_deferred in islice(heapq.merge(*agendas, key=itemgetter(0)), SCHEDULE_LOOKS):
            if is_deferred:
                found.append((at_ms, offset))
                if len(found) == most:
                    break
        return found

    # Changing states

    def set_state(self, chunk: Chunk, start: int, stop: int, state: int) -> None:
        """Moves offsets that are all in one state to another one, which is not DONE."""
        before = chunk.state[start]
        if before == LEASED:
            self._leases.take(chunk, start, stop)
        chunk.state[start:stop] = BYTE[state] * (stop - start)
        self.counts[before] -= stop - start
        self.counts[state] += stop - start
        if before == LEASED:
            self._drop_owners(chunk)
        if state == AVAILABLE:
            self._list(chunk, start, stop)

    def _list(self, chunk: Chunk, start: int, stop: int) -> None:
        """These offsets have become available."""
        if not chunk.listed:
            chunk.listed = True
            heapq.heappush(self._listed, chunk.number)
        if self._lanes is not None and chunk.lanes is not None:
            self._lanes.add(chunk.base + start, chunk.lanes[start:stop])
            if self._lanes.is_stale(self.counts[AVAILABLE]):
                self._rebuild_lanes(self._lanes)

    def _rebuild_lanes(self, lanes: Lanes) -> None:
        lanes.clear()
        for chunk in self.chunks.values():
            for start, stop, state in runs(chunk.state, 0, CHUNK_SIZE):
                if state == AVAILABLE and chunk.lanes is not None:
                    lanes.add(chunk.base + start, chunk.lanes[start:stop])

    def finish(self, chunk: Chunk, start: int, stop: int) -> None:
        """All offsets of the range are done from now on."""
        for first, end, state in runs(chunk.state, start, stop):
            self.counts[state] -= end - first
            if state == LEASED:
                self._leases.take(chunk, first, end)
        chunk.finish(start, stop)
        self.changed[chunk.number] = None
        if chunk.state == ALL_DONE:
            self._close(chunk)
        else:
            self._drop_owners(chunk)
        if chunk.keys:
            self._remove_keys(chunk, start, stop)
        first, behind = chunk.base + start, chunk.base + stop
        if first <= self.start_offset < behind or first <= self.next_offset < behind:
            self.advance()  # neither end rests on a done offset, so no other change could move one

    def mark_done(self, chunk: Chunk, start: int, stop: int) -> None:
        """Leased offsets are done. `close_marked` must follow, which does for many what `finish` does for each."""
        self._leases.take(chunk, start, stop)
        chunk.finish(start, stop)
        self.counts[LEASED] -= stop - start
        if chunk.keys:
            self._remove_keys(chunk, start, stop)

    def close_marked(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self.changed[chunk.number] = None
            if self.chunks.get(chunk.number) is not chunk:
                continue
            if chunk.state == ALL_DONE:
                self._close(chunk)
            else:
                self._drop_owners(chunk)
        self.advance()

    def lease(self, lease: Lease, chunk: Chunk, start: int, stop: int, deliveries: int) -> None:
        """Available offsets are leased."""
        self._leases.give(lease, chunk, start, stop)
        chunk.deliveries[start:stop] = BYTE[deliveries] * (stop - start)
        self.counts[AVAILABLE] -= stop - start
        self.counts[LEASED] += stop - start

    def release(self, chunk: Chunk, start: int, stop: int, due_ms: int | None) -> None:
        """Leased offsets become available again, at once or when they are due, unless they have expired meanwhile."""
        self.changed[chunk.number] = None
        read_end = max(start, min(stop, self.next_offset - chunk.base))
        if read_end < stop:
            self._release_unread(chunk, read_end, stop, due_ms)
            if read_end == start:
                return
            stop = read_end
        if due_ms is None:
            self.set_state(chunk, start, stop, AVAILABLE)
        else:
            self.set_state(chunk, start, stop, DEFERRED)
            self.schedule(chunk, [event(due_ms, DUE, index) for index in range(start, stop)])
        if chunk.expired:
            for index in sorted(each for each in chunk.expired if start <= each < stop):
                chunk.expired.discard(index)
                self.finish(chunk, index, index + 1)

    def _release_unread(self, chunk: Chunk, start: int, stop: int, due_ms: int | None) -> None:
        """The same for offsets of `hold_unread` that were not read since: reading makes them available."""
        self.set_state(chunk, start, stop, UNREAD)
        if due_ms is not None:
            chunk.stored_delays = (*chunk.stored_delays, DelayedRun(start, stop - start, due_ms))

    def hold_unread(self, lease: Lease, first: int, stop: int, deliveries: int) -> None:
        """After a restart, before the log is read: these offsets are leased, unless they are done."""
        for number, start, end in self.spans(max(first, self.start_offset), stop):
            chunk = self.chunks.get(number)
            if chunk is None and number not in self._done_ahead:
                below = self.start_offset - number * CHUNK_SIZE
                chunk = self.chunks[number] = Chunk(number, done_below=max(0, below))
                chunk.reached = False
            for index, behind, state in runs(chunk.state, start, end) if chunk is not None else ():
                if state == UNREAD and chunk is not None:
                    self._leases.give(lease, chunk, index, behind)
                    chunk.deliveries[index:behind] = BYTE[deliveries] * (behind - index)
                    self.counts[LEASED] += behind - index

    # Reading the log

    def open(self, number: int) -> Chunk | None:
        """The chunk, to be filled with records from next_offset on; None if all of it is done."""
        if number in self._done_ahead:
            return None
        chunk = self.chunks.get(number)
        if chunk is None:
            below = self.next_offset - number * CHUNK_SIZE
            chunk = self.chunks[number] = Chunk(number, done_below=max(0, below))
            self.reached += 1
        elif not chunk.reached:
            chunk.reached = True
            self.reached += 1
        return chunk

    def restore(self, number: int, stored: StoredChunk) -> Chunk | None:
        """A stored chunk; None if all its offsets above the start offset are done."""
        below = max(0, min(CHUNK_SIZE, self.start_offset - number * CHUNK_SIZE))
        stored.state[:below] = BYTE[DONE] * below
        stored.deliveries[:below] = bytes(below)
        if stored.state == ALL_DONE:
            self._done_ahead.add(number)
            return None
        chunk = self.chunks[number] = Chunk(number)
        chunk.state, chunk.deliveries, chunk.reached = stored.state, stored.deliveries, False
        chunk.stored_delays = stored.delayed
        for start, stop, state in runs(chunk.state, 0, CHUNK_SIZE):
            self.counts[state] += stop - start
        return chunk

    def append_key(self, chunk: Chunk, index: int, key: int) -> None:
        if chunk.keys is None:
            chunk.keys = {}
        chunk.keys[index] = key
        if self._key_order.append(chunk.base + index, key) and chunk.state[index] == UNREAD:
            self.set_state(chunk, index, index + 1, WAITING)

    def count_undone(self, below: int) -> int:
        """The undone offsets from the start offset on and below this one; all that were not read yet are undone, unless
        their stored state says that they are done."""
        known = sum(
            stop - start - chunk.state.count(DONE, start, stop)
            for chunk, start, stop in self.pieces(self.start_offset, below)
        )
        return known + self._never_delivered(below)

    def count_unread(self, now_ms: int, end_offset: int) -> Unread:
        """The offsets from next_offset to before `end_offset` that no stored state calls done or dying."""
        if self.next_offset >= end_offset:
            return Unread()
        available, deferred = self._never_delivered(end_offset), 0
        for chunk, start, stop in self.pieces(self.next_offset, end_offset):
            unread = count_unread(chunk.state, chunk.stored_delays, start, stop, now_ms)
            available += unread.available
            deferred += unread.deferred
        return Unread(available, deferred)

    def _never_delivered(self, below: int) -> int:
        """The offsets that were not read and of which nothing is stored: those from next_offset on outside of all
        chunks."""
        first = self.next_offset
        if first >= below:
            return 0
        in_chunks = sum(stop - start for _, start, stop in self.pieces(first, below))
        done = sum(
            max(0, min(below, (number + 1) * CHUNK_SIZE) - max(first, number * CHUNK_SIZE))
            for number in self._done_ahead
        )
        return below - first - in_chunks - done

    def trim(self, log_start_offset: int) -> None:
        """Everything below is done."""
        for chunk, start, stop in self.pieces(self.start_offset, log_start_offset):
            self.finish(chunk, start, stop)
        self.start_offset = max(self.start_offset, log_start_offset)
        self.next_offset = max(self.next_offset, log_start_offset)
        self._done_ahead = {each for each in self._done_ahead if (each + 1) * CHUNK_SIZE > self.next_offset}
        self.advance()

    def advance(self) -> None:
        """Moves both ends past done offsets."""
        self._advance_next()
        while self.start_offset < self.next_offset:
            number, index = divmod(self.start_offset, CHUNK_SIZE)
            chunk = self.chunks.get(number)
            if chunk is None:
                following = number + 1 if number + 1 in self.chunks else min(self.chunks, default=None)
                end = self.next_offset if following is None else following * CHUNK_SIZE
            elif chunk.state[index] == DONE:
                end = chunk.base + run_end(chunk.state, index, CHUNK_SIZE)
            else:
                return
            self.start_offset = min(end, self.next_offset)

    def _advance_next(self) -> None:
        while True:
            number, index = divmod(self.next_offset, CHUNK_SIZE)
            chunk = self.chunks.get(number)
            if number in self._done_ahead:
                self._done_ahead.discard(number)
                self.next_offset = (number + 1) * CHUNK_SIZE
            elif chunk is not None and chunk.state[index] == DONE:
                self.next_offset = chunk.base + run_end(chunk.state, index, CHUNK_SIZE)
            else:
                return

    # Timers

    def schedule(self, chunk: Chunk, events: list[int]) -> None:
        if chunk.timers is None:
            chunk.timers = ChunkTimers()
        chunk.timers.add(events)
        self._set_due(chunk)

    def run_timers(self, now_ms: int) -> None:
        while (number := self.due.pop_due(now_ms)) is not None:
            chunk = self.chunks[number]
            assert chunk.timers is not None
            expired, due = chunk.timers.take_due(now_ms)
            for start, stop in expired:
                self.expire(chunk, start, stop)
            for start, stop in due:
                self._make_available(chunk, start, stop)
            if number in self.chunks:
                self._set_due(chunk)

    def expire(self, chunk: Chunk, start: int, stop: int) -> None:
        for first, end, state in runs(chunk.state, start, stop):
            if state in (UNREAD, AVAILABLE, WAITING, DEFERRED):
                self.finish(chunk, first, end)
            elif state == LEASED:
                chunk.expired = chunk.expired or set()
                chunk.expired.update(range(first, end))

    def _make_available(self, chunk: Chunk, start: int, stop: int) -> None:
        """Deferred offsets of the range are due."""
        for first, end, state in runs(chunk.state, start, stop):
            if state != DEFERRED:
                continue
            if not chunk.keys:
                self.set_state(chunk, first, end, AVAILABLE)
                continue
            for index in range(first, end):
                waits = self._key_order.is_blocked(chunk.base + index)
                self.set_state(chunk, index, index + 1, WAITING if waits else AVAILABLE)

    def _set_due(self, chunk: Chunk) -> None:
        next_ms = chunk.timers.next_ms if chunk.timers is not None else None
        if next_ms is None:
            chunk.timers = None
        else:
            self.due.set(chunk.number, next_ms)

    # Cleaning up

    def _close(self, chunk: Chunk) -> None:
        del self.chunks[chunk.number]
        self.due.drop(chunk.number)
        self.reached -= chunk.reached
        if chunk.base + CHUNK_SIZE > self.next_offset:
            self._done_ahead.add(chunk.number)

    def _drop_owners(self, chunk: Chunk) -> None:
        if chunk.owners is not None and not chunk.has_leases():
            chunk.owners = None

    def _remove_keys(self, chunk: Chunk, start: int, stop: int) -> None:
        keys = chunk.keys or {}
        few = stop - start < len(keys)
        indexes = range(start, stop) if few else [each for each in keys if start <= each < stop]
        for index in indexes:
            key = keys.pop(index, None)
            first = None if key is None else self._key_order.remove(chunk.base + index, key)
            if first is not None:
                self._promote(first)

    def _promote(self, offset: int) -> None:
        """This offset is the first of its key now. If it is not due, it becomes available later."""
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = self.chunks.get(number)
        if chunk is not None and chunk.state[index] == WAITING:
            self.set_state(chunk, index, index + 1, AVAILABLE)


def _pending(chunk: Chunk) -> Iterator[tuple[int, int, bool]]:
    """(time in ms, offset, whether it is deferred until then)."""
    for at_ms, kind, index in chunk.timers.pending() if chunk.timers is not None else ():
        yield at_ms, chunk.base + index, kind == DUE and chunk.state[index] == DEFERRED
