"""One partition of the queues' state topic, on the node that leads it: the state of the queues that hash to it.

Whoever drives a queue claims it first, and gets all that is stored with a *fence*: the term in which it leads the data,
and a number that each claim raises. A claim is an entry in the log like any other, so it survives this node too.

Invariants:
 1. A save under a fence that is not the newest is refused: a leader that was replaced, or a driver that gave up waiting
    for a save and began anew, cannot overwrite what its successor stores.
 2. What a claim returns is committed: it waits for its own entry, and every save before it is earlier in the same log.
 3. Memory follows the log in the order of the appends. An append that fails ends this node's lead, or the shelf.
 4. A save that was delayed on its way never overwrites a later one: its number is lower.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from penstock.batch import Record, build_batch, check_batch
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.clock import Clock
from penstock.node.coordination.internal_topic import records_between
from penstock.node.replication.partition import Partition
from penstock.queue import (
    FENCE_SUFFIX,
    HEAD_SUFFIX,
    Head,
    decode_head,
    decode_key,
    encode_head,
    encode_key,
)
from penstock.types import NO_TERM, Term

log = logging.getLogger("penstock.queues")

_FENCE = Struct(">hiq")
_FENCE_VERSION = 0

RECORDS_PER_BATCH = 1000
"""A queue's state is written in batches of bounded size, also when all of it is deleted at once."""

SETTLE_SECONDS = 0.01
"""Between two looks whether what was stored when somebody asked is committed: a flush or so."""


class QueueKey(NamedTuple):
    """A queue on one partition."""

    group_id: str
    topic_id: UUID
    partition: int


class Fence(NamedTuple):
    """Who may write: the leader of the data in this term, since this claim."""

    term: int
    turn: int


NO_FENCE = Fence(-1, 0)

Part = tuple[bytes, bytes | None]
"""Which part of a queue's state, and its bytes; None deletes it."""


class QueueStateLog:
    """The state of some queues, in memory and in the log. It lives as long as this node leads, in one term."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.term: Term = partition.term
        self.is_broken = False
        """Whether it must be read from the log again before anybody believes it."""
        self._partition = partition
        self._clock = clock
        self._queues: dict[QueueKey, dict[bytes, bytes]] = {}
        self._fences: dict[QueueKey, Fence] = {}
        self._saves: dict[QueueKey, int] = {}
        """The last save under each fence."""

    @property
    def serves(self) -> bool:
        partition = self._partition
        return not self.is_broken and partition.may_serve and partition.term == self.term

    def load(self) -> Iterator[None]:
        """Replays the log, a record a step, so that the caller may let others have their turn."""
        partition = self._partition
        for record in records_between(partition, partition.start_offset, partition.high_watermark):
            self._replay(record.key or b"", record.value)
            yield

    def _replay(self, key: bytes, value: bytes | None) -> None:
        name = decode_key(key)
        queue, part = QueueKey(name.group_id, name.topic_id, name.partition), name.suffix
        if part != FENCE_SUFFIX:
            self._put(queue, part, value)
        elif value is None:
            self._fences.pop(queue, None)
        else:
            _, term, turn = _FENCE.unpack(value)
            self._fences[queue] = Fence(term, turn)

    def _put(self, queue: QueueKey, part: bytes, value: bytes | None) -> None:
        parts = self._queues.setdefault(queue, {})
        if value is None:
            parts.pop(part, None)
        else:
            parts[part] = value
        if not parts:
            del self._queues[queue]

    def starts(self, group_id: str | None) -> list[tuple[QueueKey, int]]:
        """Where the queues of a group, or all, begin: everything before is done."""
        return [
            (queue, head.start_offset) for queue, head in self._heads() if group_id in (None, queue.group_id)
        ]

    def _heads(self) -> Iterator[tuple[QueueKey, Head]]:
        for queue, parts in self._queues.items():
            if HEAD_SUFFIX in parts:
                yield queue, decode_head(parts[HEAD_SUFFIX])

    async def settled_heads(self) -> list[tuple[QueueKey, Head]]:
        """The heads of all queues, of what can no longer be lost. KafkaError if another node may know better by now."""
        heads, end = list(self._heads()), self._partition.log.end_offset
        while self.serves and self._partition.high_watermark < end:
            await asyncio.sleep(SETTLE_SECONDS)
        if not self.serves:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self._partition.name} is led elsewhere")
        return heads

    def topic_ids(self) -> set[UUID]:
        return {queue.topic_id for queue in (*self._queues, *self._fences)}

    # --- what drivers ask for

    async def claim(self, queue: QueueKey, term: int) -> tuple[Fence, list[tuple[bytes, bytes]]]:
        """All that is stored of a queue, and the fence under which it may be changed from now on."""
        self._check_leads(queue)
        known = self._fences.get(queue, NO_FENCE)
        if term < known.term:
            raise _fenced(queue, known)
        fence = self._fences[queue] = Fence(term, known.turn + 1)
        self._saves.pop(queue, None)
        await self._append([(encode_key(*queue, FENCE_SUFFIX), _FENCE.pack(_FENCE_VERSION, *fence))])
        if self._fences.get(queue) != fence:
            raise _fenced(queue, self._fences.get(queue, NO_FENCE))
        return fence, list(self._queues.get(queue, {}).items())

    async def save(self, queue: QueueKey, fence: Fence, number: int, parts: Sequence[Part]) -> None:
        """Returns when it can no longer be lost. Saves under one fence are numbered, and one may come twice (4)."""
        self._check_leads(queue)
        known = self._fences.get(queue, NO_FENCE)
        if fence != known or number < self._saves.get(queue, 0):
            raise _fenced(queue, known)
        self._saves[queue] = number
        rows = [(encode_key(*queue, part), value) for part, value in parts]
        for part, value in parts:
            self._put(queue, part, value)
        await self._append(rows)

    async def reset(self, queue: QueueKey, start_offset: int, term: int = NO_TERM) -> None:
        """A queue begins at this offset, whatever was done before; whoever drives it finds its fence gone. `term`: of
        the leader in whose log that offset was found."""
        self._check_leads(queue)
        known = self._fences.get(queue, NO_FENCE)
        fence = self._fences[queue] = Fence(known.term, known.turn + 1)
        self._saves.pop(queue, None)
        parts = self._queues.pop(queue, {})
        head = encode_head(Head(Term(max(fence.term, term)), start_offset))
        self._put(queue, HEAD_SUFFIX, head)
        rows: list[Part] = [(encode_key(*queue, part), None) for part in parts if part != HEAD_SUFFIX]
        rows.append((encode_key(*queue, HEAD_SUFFIX), head))
        rows.append((encode_key(*queue, FENCE_SUFFIX), _FENCE.pack(_FENCE_VERSION, *fence)))
        await self._append(rows)

    async def forget(self, queue: QueueKey) -> None:
        """Deletes a queue's state; whoever drives it finds its fence gone."""
        self._check_leads(queue)
        parts = self._queues.pop(queue, {})
        fenced = self._fences.pop(queue, None)
        self._saves.pop(queue, None)
        rows: list[Part] = [(encode_key(*queue, part), None) for part in parts]
        if fenced is not None:
            rows.append((encode_key(*queue, FENCE_SUFFIX), None))
        await self._append(rows)

    async def forget_topics(self, gone: Sequence[UUID]) -> None:
        ids = frozenset(gone)
        for queue in [key for key in dict.fromkeys((*self._queues, *self._fences)) if key.topic_id in ids]:
            await self.forget(queue)

    # --- inside

    def _check_leads(self, queue: QueueKey) -> None:
        if not self.serves:
            message = f"{self._partition.name}, which keeps the state of {queue.group_id!r}, is led elsewhere"
            raise KafkaError(ErrorCode.NOT_COORDINATOR, message)

    async def _append(self, rows: Sequence[Part]) -> None:
        stamp_ms = self._clock.wall_ms()
        waiting = None
        for at in range(0, len(rows), RECORDS_PER_BATCH):
            some = rows[at : at + RECORDS_PER_BATCH]
            records = [Record(i, stamp_ms, key, value, ()) for i, (key, value) in enumerate(some)]
            batch = memoryview(bytearray(build_batch(records)))
            try:
                appended = self._partition.append(batch, check_batch(batch))
            except PenstockError as refused:
                self.is_broken = True  # memory is ahead of the log now (3)
                log.error("%s: %s", self._partition.name, refused)
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(refused)) from refused
            waiting = self._partition.committed_at(appended)
        if waiting is not None:
            await waiting


def _fenced(queue: QueueKey, known: Fence) -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_STATE_EPOCH,
        f"{queue.group_id!r} on partition {queue.partition} is driven under term {known.term} by now",
    )
