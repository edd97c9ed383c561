"""What one queue knows of one partition: who has which message until when, and what is done.

The leader of a partition has one `QueuePartition` per queue, for one term. It is told what was read from the log, what
members ask and say, and what time it is. It says who gets what, what must be stored before an acknowledgement is
answered, and what goes to the dead letters. Work is per range of offsets, not per message, wherever ranges are asked
for and acknowledged; only what has a time or a key of its own costs something by itself.

Time is the caller's `now_ms`, milliseconds since 1970, because deliver-at and expiry are times of the wall clock. A
clock that jumps makes leases longer or shorter, nothing else. Every input first lets happen what is due by then
(`tick`), so nothing depends on how often the caller ticks.

Invariants. Code and tests cite the numbers.

   1  An offset whose acceptance was saved is never handed out again, nor is one that is done for any other reason and
      saved; also after a restart from any prefix of the writes that holds it.
   2  An offset is leased to at most one member.
   3  The start offset only grows, and everything below it is done.
   4  Nothing is handed out before it is due, or when it has expired.
   5  An offset below the next offset that is not done is available, leased, deferred, waiting for its key, or on its
      way to the dead letters; and none of these lasts unless something outside holds it there: a member that renews, a
      time that has not come, a copy that was not made, or one of these for the key's first message.
   6  The counters equal what the bytes say.
   7  Key order: a message with a key is handed out only when all before it of that key are done. One message of a key
      is under way at a time, whoever comes and goes; while it is leased, resting, not due or dying, its key waits.
   8  What is handed out is always the lowest that is available. So what comes back is served before what was never
      delivered.
   9  Strict order, if that is set: a message is handed out only when all before it are done, or in the same hands for
      the first time; so one that came back, is not due or is dying holds up all behind it. What is in a consumer's
      hands already is not called back: only one that takes one at a time works strictly in order, whatever fails.

What is not promised: exactly once. A member that finished its work and lost its lease before it said so has done what
another one will do again; and after a restart so has everybody whose acknowledgement was not saved. A dead letter may
be copied twice if the leader dies between the copy and `buried`.

Delivery counts are stored with whatever else changes in their chunk, not when a message is handed out: after a crash a
count may be lower than it was, and the limit is reached later. What by its stored count was handed out as often as the
limit allows, and is not done, goes to the dead letters at a restart: it may be what brought the leader down.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self

from penstock.errors import ErrorCode, UnknownFormat
from penstock.queue.board import Board
from penstock.queue.chunk import Chunk
from penstock.queue.journal import Journal
from penstock.queue.leases import Lease, Leases, still_held
from penstock.queue.reading import read_on
from penstock.queue.settings import MAX_DELAY_MS, MAX_DELIVERIES, QueueSettings
from penstock.queue.states import (
    AVAILABLE,
    BYTE,
    CHUNK_SIZE,
    DEFERRED,
    DONE,
    DYING,
    LEASED,
    REJECTED,
    UNREAD,
    WAITING,
    State,
    run_end,
    runs,
)
from penstock.queue.storage import HEAD_SUFFIX, chunk_of, decode_chunk, decode_head
from penstock.queue.strict import find_turn
from penstock.queue.values import (
    NO_NOTES,
    AckKind,
    AckResult,
    Acquired,
    Changes,
    DeadLetter,
    DeathReason,
    Description,
    Notes,
    Run,
)
from penstock.types import Term

Held = tuple[Chunk, int, int, Lease]
"""A part of a chunk (index, index behind) that is all one lease's."""

# As plain integers, for the same reason as the states.
_RELEASE, _REJECT, _RENEW = int(AckKind.RELEASE), int(AckKind.REJECT), int(AckKind.RENEW)
_TAKEN = AckResult(ErrorCode.NONE, True)
_DEATHS = {DeathReason.DELIVERY_LIMIT: DYING, DeathReason.REJECTED: REJECTED}
MAX_PEEKED_RUNS = 1000
"""Of one look at the states: a table that a person can still scroll."""


class QueuePartition:
    """The messages of one partition as one queue has them."""

    def __init__(self, settings: QueueSettings, *, term: Term, start_offset: int) -> None:
        settings.validate()
        self._settings = settings
        self._leases = Leases()
        self._board = Board(start_offset, self._leases)
        self._journal = Journal(term)
        self._letters: list[DeadLetter] = []

    @classmethod
    def restore(cls, settings: QueueSettings, *, term: Term, records: Mapping[bytes, bytes]) -> Self:
        """From the last value of each key suffix, deleted ones left out. The log is to be read from next_offset on; if
        it begins later by now, `trimmed` says so."""
        stored = dict(records)
        head_value = stored.pop(HEAD_SUFFIX, None)
        if head_value is None:
            raise UnknownFormat("a queue's state has chunks and no head; start the version that wrote it")
        start_offset = decode_head(head_value).start_offset
        partition = cls(settings, term=term, start_offset=start_offset)
        chunks = {chunk_of(suffix) or 0: value for suffix, value in stored.items()}
        partition._journal.found(start_offset, list(chunks))
        for number in sorted(chunks):
            if (number + 1) * CHUNK_SIZE > start_offset:
                partition._restore_chunk(number, chunks[number])
        partition._board.advance()
        return partition

    # What it is like

    @property
    def settings(self) -> QueueSettings:
        return self._settings

    @property
    def start_offset(self) -> int:
        return self._board.start_offset

    @property
    def saved_start_offset(self) -> int | None:
        """As it is stored: nobody will ever want what is below. None before the first write."""
        return self._journal.saved_start_offset

    @property
    def next_offset(self) -> int:
        """Where the log is to be read next. May be beyond what was read last, where all is known to be done."""
        return self._board.next_offset

    @property
    def available_count(self) -> int:
        """What could be handed out now."""
        if self._settings.strict:
            return find_turn(self._board, self._leases).available
        return self._board.counts[AVAILABLE]

    @property
    def leased_count(self) -> int:
        return self._board.counts[LEASED]

    @property
    def deferred_count(self) -> int:
        return self._board.counts[DEFERRED]

    @property
    def waiting_count(self) -> int:
        """What is due, and behind another one of its key, or of the queue if its order is strict."""
        counts = self._board.counts
        return counts[WAITING] + counts[AVAILABLE] - self.available_count

    @property
    def dying_count(self) -> int:
        return self._board.counts[DYING] + self._board.counts[REJECTED]

    @property
    def next_due_ms(self) -> int | None:
        """When `tick` has something to do: a lease ends, or a message becomes due or expires."""
        times = [each for each in (self._leases.next_ms, self._board.due.next_ms) if each is not None]
        return min(times, default=None)

    def held_by(self, member: str) -> int:
        """How many offsets are in a member's hands."""
        return sum(lease.held for lease in self._leases.of(member))

    def wants_more(self, max_records: int) -> bool:
        """Whether reading on would help somebody who asks for this many. The limits may be overrun by one read."""
        board, settings = self._board, self._settings
        return (
            board.counts[AVAILABLE] < max_records
            and board.counts[LEASED] < settings.max_leased
            and board.counts[WAITING] < settings.max_waiting
            and board.reached < settings.max_chunks
        )

    # Inputs

    def configure(self, settings: QueueSettings) -> None:
        """Other settings from now on. Leases that run keep their end; a delivery limit counts when a message comes
        back. Key order cannot be turned on or off: what is under way was not handed out by it."""
        settings.validate()
        if settings.key_ordered != self._settings.key_ordered:
            raise ValueError("key order changes only with a new QueuePartition")
        self._settings = settings

    def extend(self, now_ms: int, end_offset: int, notes: Notes = NO_NOTES) -> None:
        """The log was read from next_offset to before end_offset."""
        self.tick(now_ms)
        if end_offset < self.next_offset:
            raise ValueError(f"read to {end_offset}, which is before {self.next_offset}")
        if self._settings.key_ordered and len(notes.keys) != end_offset - self.next_offset:
            raise ValueError("a key-ordered queue needs one key, or None, for each offset")
        if end_offset > self.next_offset:
            read_on(self._board, now_ms, end_offset, notes)

    def trimmed(self, now_ms: int, log_start_offset: int) -> None:
        """Retention has deleted what is below, in whosever hands it is: who acknowledges it will be told."""
        self.tick(now_ms)
        if log_start_offset > self.start_offset:
            self._board.trim(log_start_offset)

    def acquire(
        self, now_ms: int, member: str, max_records: int, *, below: int | None = None
    ) -> list[Acquired]:
        """The lowest that are to be had (invariant 8), as one lease with one deadline; none at or above `below`. In
        strict order, none behind what stands in the way (9)."""
        self.tick(now_ms)
        board, lease = self._board, None
        if self._settings.strict:
            end = find_turn(board, self._leases, member).end
            below = end if below is None else min(below, end)
        room = min(max_records, self._settings.max_leased - board.counts[LEASED])
        acquired: list[Acquired] = []
        while room > 0 and (place := board.next_available()) is not None:
            chunk, start = place
            most = CHUNK_SIZE if below is None else min(CHUNK_SIZE, below - chunk.base)
            if start >= most:
                break
            stop = run_end(chunk.state, start, min(most, start + room))
            stop = run_end(chunk.deliveries, start, stop)
            deliveries = min(chunk.deliveries[start] + 1, MAX_DELIVERIES)
            if lease is None:
                lease = self._leases.open(member, now_ms + self._settings.lease_ms)
            board.hand_out(lease, chunk, start, stop, deliveries)
            _add_range(acquired, Acquired(chunk.base + start, chunk.base + stop - 1, deliveries))
            room -= stop - start
        return acquired

    def acknowledge(
        self,
        now_ms: int,
        member: str,
        first: int,
        last: int,
        kinds: bytes,
        *,
        delay_ms: int | None = None,
        token: object = None,
    ) -> AckResult:
        """What a member says of offsets that it holds: all of it is taken, or nothing. `kinds` has one AckKind for all
        of them, or one for each; `delay_ms` is for what is released. The token comes back from `saved`, if it waits: a
        mere renewal does not."""
        self.tick(now_ms)
        count = last - first + 1
        if count < 1 or len(kinds) not in (1, count) or max(kinds) > _RENEW:
            return AckResult(ErrorCode.INVALID_REQUEST, False)
        held = self._held_by(member, first, last)
        if held is None:
            return AckResult(ErrorCode.INVALID_RECORD_STATE, False)
        renewed: list[Held] = []
        for kind, piece in _by_kind(held, kinds):
            if kind == _RENEW:
                renewed.append(piece)
            else:
                self._settle(now_ms, kind, piece, delay_ms)
        if renewed:
            self._renew(now_ms, member, renewed)
            if kinds.count(_RENEW) == len(kinds):
                return AckResult(ErrorCode.NONE, False)
        if token is not None:
            self._journal.wait(token)
        return _TAKEN

    def hand_back(self, now_ms: int, member: str, first: int, last: int) -> bool:
        """What was acquired could not be sent, or nobody has begun it: it is as if it had not been handed out. All of
        it, or nothing: whether it was this member's."""
        self.tick(now_ms)
        held = self._held_by(member, first, last)
        for chunk, start, stop, _ in held or ():
            for index, end, deliveries in list(runs(chunk.deliveries, start, stop)):
                chunk.deliveries[index:end] = BYTE[deliveries - 1] * (end - index)
                self._board.put_back(chunk, index, end, None)
        return held is not None

    def release_member(self, now_ms: int, member: str) -> None:
        """It is gone: what it held can be had again at once. Its deliveries count, or a message that brings down each
        of its consumers would do so for ever."""
        self.tick(now_ms)
        for lease in self._leases.of(member):
            self._end(lease)

    def tick(self, now_ms: int) -> None:
        """Leases that have run out come back, what is due becomes available, what has expired is done."""
        while (lease := self._leases.pop_due(now_ms)) is not None:
            self._end(lease)
        self._board.happen(now_ms)

    # Dead letters

    def take_dead_letters(self) -> list[DeadLetter]:
        """What is to be copied. It stays undone until it is buried."""
        letters, self._letters = self._letters, []
        start = self.start_offset
        return [each._replace(first=max(each.first, start)) for each in letters if each.last >= start]

    def buried(self, first: int, last: int) -> None:
        """The copies are committed."""
        for chunk, start, stop in self._board.pieces(first, last + 1):
            for index, end, state in runs(chunk.state, start, stop):
                if state in (DYING, REJECTED):
                    self._board.finish(chunk, index, end)

    # What is stored

    def take_changes(self) -> Changes | None:
        """What to write next; None if there is nothing, or a write is under way. If a write fails, this object is of no
        more use: nobody knows what is stored, and who does not read it again may promise too much."""
        return self._journal.take(self._board)

    def saved(self, number: int) -> list[object]:
        """A write is committed. Returns the tokens of the acknowledgements that are durable with it."""
        return self._journal.saved(number)

    # For people and tools

    def describe(self) -> Description:
        return Description(
            start_offset=self.start_offset,
            saved_start_offset=self.saved_start_offset,
            next_offset=self.next_offset,
            available=self.available_count,
            leased=self.leased_count,
            deferred=self.deferred_count,
            waiting=self.waiting_count,
            dying=self.dying_count,
            leases=len(self._leases),
            members=self._leases.members,
            chunks=len(self._board.chunks),
            next_due_ms=self.next_due_ms,
        )

    def peek(self, first: int, last: int, max_runs: int = MAX_PEEKED_RUNS) -> list[Run]:
        """What is known of a range that was read, in runs; what is left out is done. If there are more runs than asked
        for, the next look begins behind the last one."""
        seen: list[Run] = []
        first, last = max(first, self.start_offset), min(last, self.next_offset - 1)
        for chunk, start, stop in self._board.pieces(first, last + 1) if first <= last else ():
            for run in self._runs(chunk, start, stop):
                if len(seen) == max_runs:
                    return seen
                seen.append(run)
        return seen

    def scheduled(self, most: int = MAX_PEEKED_RUNS) -> list[tuple[int, int]]:
        """(due_ms, offset) of what is deferred in what was read, soonest first."""
        return self._board.scheduled(most)

    # Inside

    def _restore_chunk(self, number: int, value: bytes) -> None:
        chunk = self._board.adopt(number, decode_chunk(value))
        if chunk is None:
            return
        limit = self._settings.delivery_limit
        for start, stop, state in list(runs(chunk.state, 0, CHUNK_SIZE)):
            for first, end, deliveries in runs(chunk.deliveries, start, stop):
                if state == REJECTED:
                    self._die(chunk, first, end, DeathReason.REJECTED)
                elif state == UNREAD and 0 < limit <= deliveries:
                    self._die(chunk, first, end, DeathReason.DELIVERY_LIMIT)

    def _held_by(self, member: str, first: int, last: int) -> list[Held] | None:
        """The range in parts of one lease each; None unless all of it is this member's."""
        held: list[Held] = []
        for number, start, stop in self._board.spans(first, last + 1):
            chunk = self._board.chunks.get(number)
            if chunk is None or chunk.owners is None:
                return None
            while start < stop:
                if chunk.state[start] != LEASED:
                    return None
                lease = self._leases.at(chunk.owners[start])
                if lease.member != member:
                    return None
                end = chunk.lease_end(start, stop)
                held.append((chunk, start, end, lease))
                start = end
        return held

    def _settle(self, now_ms: int, kind: int, piece: Held, delay_ms: int | None) -> None:
        chunk, start, stop, _ = piece
        if kind == _RELEASE:
            self._give_back(chunk, start, stop, now_ms, delay_ms)
        elif kind == _REJECT:
            for first, end, _ in runs(chunk.deliveries, start, stop):
                self._die(chunk, first, end, DeathReason.REJECTED)
        else:
            self._board.finish(chunk, start, stop)

    def _renew(self, now_ms: int, member: str, pieces: list[Held]) -> None:
        """A lease all of which is renewed lives longer; what is a part of one gets a lease of its own."""
        until_ms = now_ms + self._settings.lease_ms
        totals: Counter[int] = Counter()
        for _, start, stop, lease in pieces:
            totals[lease.slot] += stop - start
        whole = {lease.slot for *_, lease in pieces if totals[lease.slot] == lease.held}
        fresh: Lease | None = None
        for chunk, start, stop, lease in pieces:
            if lease.slot in whole:
                self._leases.renew(lease, until_ms)
                continue
            fresh = fresh or self._leases.open(member, until_ms)
            self._leases.take(chunk, start, stop)
            self._leases.give(fresh, chunk, start, stop)

    def _end(self, lease: Lease) -> None:
        held = [
            (chunk, start, stop)
            for first, behind in lease.ranges
            for chunk, index, end in self._board.pieces(first, behind)
            for start, stop in still_held(lease, chunk, index, end)
        ]
        for chunk, start, stop in held:
            self._give_back(chunk, start, stop)

    def _give_back(
        self, chunk: Chunk, start: int, stop: int, now_ms: int = 0, delay_ms: int | None = 0
    ) -> None:
        """Leased offsets come back after a delay; None leaves it to the queue's backoff."""
        limit, backoff = self._settings.delivery_limit, self._settings.retry_backoff
        for first, end, deliveries in runs(chunk.deliveries, start, stop):
            if 0 < limit <= deliveries:
                self._die(chunk, first, end, DeathReason.DELIVERY_LIMIT)
                continue
            delay = delay_ms
            if delay is None:
                delay = backoff.delay_ms(deliveries) if backoff is not None else 0
            due_ms = now_ms + min(delay, MAX_DELAY_MS) if delay > 0 else None
            self._board.put_back(chunk, first, end, due_ms)

    def _die(self, chunk: Chunk, start: int, stop: int, reason: DeathReason) -> None:
        """Offsets of one delivery count go to the dead letters."""
        if not self._settings.dead_letters:
            self._board.finish(chunk, start, stop)
            return
        self._board.shift(chunk, start, stop, _DEATHS[reason])
        self._board.changed[chunk.number] = None
        first, last = chunk.base + start, chunk.base + stop - 1
        self._letters.append(DeadLetter(first, last, chunk.deliveries[start], reason))

    def _runs(self, chunk: Chunk, start: int, stop: int) -> Iterator[Run]:
        for index, end, state in runs(chunk.state, start, stop):
            while state != DONE and index < end:
                behind = run_end(chunk.deliveries, index, end)
                lease = None
                if state == LEASED and chunk.owners is not None:
                    behind = min(behind, chunk.lease_end(index, end))
                    lease = self._leases.at(chunk.owners[index])
                yield Run(
                    chunk.base + index,
                    chunk.base + behind - 1,
                    State(state),
                    chunk.deliveries[index],
                    lease.member if lease is not None else None,
                    lease.until_ms if lease is not None else None,
                )
                index = behind


def _add_range(acquired: list[Acquired], new: Acquired) -> None:
    """Ranges that meet at the border of two chunks are one."""
    if acquired and acquired[-1].last + 1 == new.first and acquired[-1].deliveries == new.deliveries:
        new = new._replace(first=acquired.pop().first)
    acquired.append(new)


def _by_kind(held: list[Held], kinds: bytes) -> Iterator[tuple[int, Held]]:
    """The parts, cut again where the kind changes."""
    if len(kinds) == 1:
        for piece in held:
            yield kinds[0], piece
        return
    cells, place = bytearray(kinds), 0
    for chunk, start, stop, lease in held:
        for first, end, kind in runs(cells, place, place + stop - start):
            yield kind, (chunk, start + first - place, start + end - place, lease)
        place += stop - start
