"""The states of all offsets of a partition, and everything that follows from them alone.

    0 ... start_offset ........................... next_offset ......
    done  undone and done, in chunks               not read yet

Only chunks with something undone are kept: below next_offset, an offset whose chunk is missing is done. So a queue that
keeps up has one chunk or two, however long its log.

After a restart chunks are known that the log was not read up to. Such a chunk is not *reached*; in it, UNREAD stands
beside DONE. next_offset steps over what is done, so that a partition with one stuck message at its start does not make
its new leader read again what has long been settled.

The counters are a list by state. They must equal what the bytes say (invariant 6 in `partition.py`), so only `shift`,
`finish` and `adopt` change states.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from penstock.queue.agenda import DUE, Agenda, event
from penstock.queue.chunk import Chunk
from penstock.queue.deadlines import Deadlines
from penstock.queue.lanes import Lanes
from penstock.queue.leases import Lease, Leases
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
from penstock.queue.storage import StoredChunk

SCHEDULE_LOOKS = 100_000
"""A tenth of a second of the caller's time; a thousand messages among a million that are all deferred take 4 ms."""


class Board:
    """Chunks by number, and where the undone begins and ends."""

    def __init__(self, start_offset: int, leases: Leases) -> None:
        self.start_offset = start_offset
        self.next_offset = start_offset
        self.chunks: dict[int, Chunk] = {}
        self.counts = [0] * len(State)
        """Of UNREAD and DONE it means nothing."""
        self.reached = 0
        """How many chunks are reached."""
        self.changed: dict[int, None] = {}
        """Numbers of chunks that are not as they were stored: the journal empties it."""
        self.due = Deadlines()
        """When each chunk's agenda has its next event."""
        self._leases = leases
        self._lanes = Lanes()
        self._listed: list[int] = []
        """A heap of chunk numbers: every chunk with something available is here, some others too."""
        self._done_ahead: set[int] = set()
        """Chunks without anything undone that end above next_offset."""

    # Looking

    def spans(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The range cut at the borders of chunks: (chunk number, index, index behind)."""
        while first < stop:
            number, index = divmod(first, CHUNK_SIZE)
            end = min(CHUNK_SIZE, index + stop - first)
            yield number, index, end
            first += end - index

    def pieces(self, first: int, stop: int) -> list[tuple[Chunk, int, int]]:
        """The parts of a range, however long, that are in chunks."""
        low, high = first // CHUNK_SIZE, (stop - 1) // CHUNK_SIZE
        if high - low < len(self.chunks):
            numbers: Iterable[int] = [number for number in range(low, high + 1) if number in self.chunks]
        else:
            numbers = sorted(number for number in self.chunks if low <= number <= high)
        chunks = [self.chunks[number] for number in numbers]
        return [(each, max(0, first - each.base), min(CHUNK_SIZE, stop - each.base)) for each in chunks]

    def next_available(self) -> tuple[Chunk, int] | None:
        """The lowest offset that is to be had."""
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
        """(due_ms, offset) of what is deferred, soonest first. An agenda keeps the times of what was done early, and
        those at which messages expire: fewer are found than there are if SCHEDULE_LOOKS of these come before."""
        agendas = [_coming(self.chunks[number]) for number in sorted(self.chunks)]
        found: list[tuple[int, int]] = []
        for at_ms, offset, is_deferred in islice(heapq.merge(*agendas, key=itemgetter(0)), SCHEDULE_LOOKS):
            if is_deferred:
                found.append((at_ms, offset))
                if len(found) == most:
                    break
        return found

    # Changing states

    def shift(self, chunk: Chunk, start: int, stop: int, state: int) -> None:
        """Offsets that are all in one state go to another one, which is not DONE."""
        before = chunk.state[start]
        if before == LEASED:
            self._leases.take(chunk, start, stop)
        chunk.state[start:stop] = BYTE[state] * (stop - start)
        self.counts[before] -= stop - start
        self.counts[state] += stop - start
        if before == LEASED:
            self._drop_owners(chunk)
        if state == AVAILABLE and not chunk.listed:
            chunk.listed = True
            heapq.heappush(self._listed, chunk.number)

    def finish(self, chunk: Chunk, start: int, stop: int) -> None:
        """Whatever is not done there is so now, for good."""
        for first, end, state in runs(chunk.state, start, stop):
            self.counts[state] -= end - first
            if state == LEASED:
                self._leases.take(chunk, first, end)
        chunk.state[start:stop] = BYTE[DONE] * (stop - start)
        self.changed[chunk.number] = None
        if chunk.state == ALL_DONE:
            self._close(chunk)
        else:
            self._drop_owners(chunk)
        if chunk.keys:
            self._leave_lanes(chunk, start, stop)
        first, behind = chunk.base + start, chunk.base + stop
        if first <= self.start_offset < behind or first <= self.next_offset < behind:
            self.advance()  # neither end stands on what is done, so nothing else could move one

    def hand_out(self, lease: Lease, chunk: Chunk, start: int, stop: int, deliveries: int) -> None:
        """Available offsets are leased."""
        self._leases.give(lease, chunk, start, stop)
        chunk.deliveries[start:stop] = BYTE[deliveries] * (stop - start)
        self.counts[AVAILABLE] -= stop - start
        self.counts[LEASED] += stop - start

    def put_back(self, chunk: Chunk, start: int, stop: int, due_ms: int | None) -> None:
        """Leased offsets come back, at once or when they are due; not those that have expired meanwhile."""
        self.changed[chunk.number] = None
        if due_ms is None:
            self.shift(chunk, start, stop, AVAILABLE)
        else:
            self.shift(chunk, start, stop, DEFERRED)
            self.schedule(chunk, [event(due_ms, DUE, index) for index in range(start, stop)])
        if chunk.expired:
            for index in sorted(each for each in chunk.expired if start <= each < stop):
                chunk.expired.discard(index)
                self.finish(chunk, index, index + 1)

    # Reading on

    def open(self, number: int) -> Chunk | None:
        """The chunk, to be filled with what was read from next_offset on; None if all of it is done."""
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

    def adopt(self, number: int, stored: StoredChunk) -> Chunk | None:
        """A chunk as it was stored; None if there is nothing undone in it above the start offset."""
        below = max(0, min(CHUNK_SIZE, self.start_offset - number * CHUNK_SIZE))
        stored.state[:below] = BYTE[DONE] * below
        if stored.state == ALL_DONE:
            self._done_ahead.add(number)
            return None
        chunk = self.chunks[number] = Chunk(number)
        chunk.state, chunk.deliveries, chunk.reached = stored.state, stored.deliveries, False
        chunk.rested = stored.resting
        for start, stop, state in runs(chunk.state, 0, CHUNK_SIZE):
            self.counts[state] += stop - start
        return chunk

    def join_lane(self, chunk: Chunk, index: int, key: int) -> None:
        if chunk.keys is None:
            chunk.keys = {}
        chunk.keys[index] = key
        if self._lanes.join(chunk.base + index, key) and chunk.state[index] == UNREAD:
            self.shift(chunk, index, index + 1, WAITING)

    def trim(self, log_start_offset: int) -> None:
        """Everything below is done."""
        for chunk, start, stop in self.pieces(self.start_offset, log_start_offset):
            self.finish(chunk, start, stop)
        self.start_offset = max(self.start_offset, log_start_offset)
        self.next_offset = max(self.next_offset, log_start_offset)
        self._done_ahead = {each for each in self._done_ahead if (each + 1) * CHUNK_SIZE > self.next_offset}
        self.advance()

    def advance(self) -> None:
        """Moves both ends over what is done."""
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

    # What happens by itself

    def schedule(self, chunk: Chunk, events: list[int]) -> None:
        if chunk.agenda is None:
            chunk.agenda = Agenda()
        chunk.agenda.add(events)
        self._set_due(chunk)

    def happen(self, now_ms: int) -> None:
        while (number := self.due.pop_due(now_ms)) is not None:
            chunk = self.chunks[number]
            assert chunk.agenda is not None
            expired, due = chunk.agenda.take_due(now_ms)
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
        """What is deferred there is due."""
        for first, end, state in runs(chunk.state, start, stop):
            if state != DEFERRED:
                continue
            if not chunk.keys:
                self.shift(chunk, first, end, AVAILABLE)
                continue
            for index in range(first, end):
                waits = self._lanes.waits(chunk.base + index)
                self.shift(chunk, index, index + 1, WAITING if waits else AVAILABLE)

    def _set_due(self, chunk: Chunk) -> None:
        next_ms = chunk.agenda.next_ms if chunk.agenda is not None else None
        if next_ms is None:
            chunk.agenda = None
        else:
            self.due.set(chunk.number, next_ms)

    # What is left behind

    def _close(self, chunk: Chunk) -> None:
        del self.chunks[chunk.number]
        self.due.drop(chunk.number)
        self.reached -= chunk.reached
        if chunk.base + CHUNK_SIZE > self.next_offset:
            self._done_ahead.add(chunk.number)

    def _drop_owners(self, chunk: Chunk) -> None:
        if chunk.owners is not None and not chunk.has_leases():
            chunk.owners = None

    def _leave_lanes(self, chunk: Chunk, start: int, stop: int) -> None:
        keys = chunk.keys or {}
        few = stop - start < len(keys)
        indexes = range(start, stop) if few else [each for each in keys if start <= each < stop]
        for index in indexes:
            key = keys.pop(index, None)
            first = None if key is None else self._lanes.leave(chunk.base + index, key)
            if first is not None:
                self._promote(first)

    def _promote(self, offset: int) -> None:
        """It is the first of its key now; if it is not due, it becomes available when it is."""
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = self.chunks.get(number)
        if chunk is not None and chunk.state[index] == WAITING:
            self.shift(chunk, index, index + 1, AVAILABLE)


def _coming(chunk: Chunk) -> Iterator[tuple[int, int, bool]]:
    """(time in ms, offset, whether it is deferred until then)."""
    for at_ms, kind, index in chunk.agenda.coming() if chunk.agenda is not None else ():
        yield at_ms, chunk.base + index, kind == DUE and chunk.state[index] == DEFERRED
