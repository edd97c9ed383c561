"""Counts the messages that are not done in the stored state of a queue, without a `QueuePartition`.

A leader that has just taken over has read nothing of the log yet, and a queue without consumers has no
`QueuePartition` at all. The stored state alone tells which offsets are done, which wait for their next try, and which
go to the dead letters. All other offsets up to the end of the log count as available: the log would tell which of them
are not due, have expired, or wait for an earlier message of their key.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.queue.settings import QueueSettings
from penstock.queue.settlements import TransactionSettlement
from penstock.queue.state_records import (
    DelayedRun,
    Head,
    StoredChunk,
    decode_chunk,
    stored_chunk_end,
)
from penstock.queue.states import BYTE, CHUNK_SIZE, DONE, DYING, LEASED, REJECTED, UNREAD, runs
from penstock.queue.stored_values import Backlog
from penstock.queue.values import AckKind, DeadLetterReason

_SETTLED_STATES = {AckKind.ACCEPT: DONE, AckKind.RELEASE: UNREAD, AckKind.REJECT: REJECTED}


class Unread(NamedTuple):
    """Offsets that the log was not read up to and that are not done, by their stored state."""

    available: int = 0
    deferred: int = 0


def count_unread(
    state: bytearray, delays: Sequence[DelayedRun], start: int, stop: int, now_ms: int
) -> Unread:
    """The UNREAD cells of one chunk from `start` to `stop`."""
    deferred = sum(
        state.count(UNREAD, max(first, start), max(start, min(first + length, stop)))
        for first, length, due_ms in delays
        if due_ms > now_ms
    )
    return Unread(state.count(UNREAD, start, stop) - deferred, deferred)


def dead_runs(
    state: bytearray, deliveries: bytearray, limit: int
) -> Iterator[tuple[int, int, DeadLetterReason]]:
    """The offsets of a stored chunk that go to the dead letters, as (start, stop, reason), each run with one delivery
    count. The caller may change the states of the run that it was given."""
    if REJECTED not in state and not _has_count_from(deliveries, limit):
        return  # as in almost all chunks
    for start, stop, value in list(runs(state, 0, CHUNK_SIZE)):
        for first, end, count in runs(deliveries, start, stop):
            if value == REJECTED:
                yield first, end, DeadLetterReason.REJECTED
            elif value == UNREAD and 0 < limit <= count:
                yield first, end, DeadLetterReason.DELIVERY_LIMIT


def _has_count_from(deliveries: bytearray, limit: int) -> bool:
    """Whether any delivery count has reached the limit."""
    return limit > 0 and len(deliveries.translate(None, bytes(range(limit)))) > 0


class StoredBacklog:
    """The stored parts of one queue. They are added one by one, so that the caller can do other work in between."""

    def __init__(
        self, head: Head, settings: QueueSettings, *, now_ms: int, log_start_offset: int, end_offset: int
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._first = max(head.start_offset, log_start_offset)
        self._end = end_offset
        self._counted = Backlog()
        self._covered = 0
        """Offsets from first to end that are in the chunks that were added."""
        self._settled: dict[int, list[tuple[int, int, int]]] = {}
        """Parts (start, stop, state) of chunks that were not added yet, of which a settlement says more."""
        self.state_end = head.start_offset
        """The end of the offsets about which the parts say anything."""

    @property
    def backlog(self) -> Backlog:
        """No chunk was stored of the other offsets: but for settlements, they were never delivered."""
        for number in list(self._settled):
            self._add_chunk(number, StoredChunk(bytearray(CHUNK_SIZE), bytearray(CHUNK_SIZE), []))
        others = max(0, self._end - self._first) - self._covered
        return self._counted.plus(Backlog(available=others))

    def settle(self, settlement: TransactionSettlement, *, is_open: bool) -> None:
        """A stored settlement, before the chunks. Those of open transactions are leased; the others count as they will
        be applied."""
        for one in settlement.ranges:
            self.state_end = max(self.state_end, one.last + 1)
            state = LEASED if is_open else _SETTLED_STATES[one.kind]
            for number in range(one.first // CHUNK_SIZE, one.last // CHUNK_SIZE + 1):
                start = max(0, one.first - number * CHUNK_SIZE)
                stop = min(CHUNK_SIZE, one.last + 1 - number * CHUNK_SIZE)
                self._settled.setdefault(number, []).append((start, stop, state))

    def add(self, number: int, value: bytes) -> None:
        """A stored chunk."""
        chunk = decode_chunk(value)
        self.state_end = max(self.state_end, number * CHUNK_SIZE + stored_chunk_end(chunk))
        self._add_chunk(number, chunk)

    def _add_chunk(self, number: int, chunk: StoredChunk) -> None:
        for start, stop, state in self._settled.pop(number, ()):
            for first, end, before in list(runs(chunk.state, start, stop)):
                if before == UNREAD:
                    chunk.state[first:end] = BYTE[state] * (end - first)
        base = number * CHUNK_SIZE
        start, stop = max(0, self._first - base), min(CHUNK_SIZE, self._end - base)
        if start < stop:
            self._covered += stop - start
            self._counted = self._counted.plus(self._count(chunk, start, stop))

    def _count(self, chunk: StoredChunk, start: int, stop: int) -> Backlog:
        dead = BYTE[DYING if self._settings.dead_letters else DONE]
        for first, end, _ in dead_runs(chunk.state, chunk.deliveries, self._settings.delivery_limit):
            chunk.state[first:end] = dead * (end - first)
        unread = count_unread(chunk.state, chunk.delayed, start, stop, self._now_ms)
        dying = chunk.state.count(DYING, start, stop)
        leased = chunk.state.count(LEASED, start, stop)
        return Backlog(unread.available, leased, unread.deferred, dying=dying)
