"""The state of the queues that hash to one partition of the state topic, as a durable core (`penstock.effects`).

A driver of a queue claims the queue first. The claim returns all stored state and a *fence*: the term in which the
driver's node leads the data, and a number that each claim raises. A claim is a record in the log like any other, so it
survives a change of leader.

Invariants:
 1. A save under a fence that is not the newest is refused: a leader that was replaced, or a driver that gave up waiting
    for a save and started again, cannot overwrite what its successor stores.
 2. The state that a claim returns is committed: the claim waits for its own record, and every save before it is earlier
    in the same log.
 3. Memory changes when a write is requested, in the order of the writes. After a write that fails, memory is wrong and
    the core is replaced (`applies_early`).
 4. A save that was delayed on its way never overwrites a later one: its number is lower.

    fence   int16 version 0 | int32 term | int64 number      the value under FENCE_SUFFIX; others: `state_records.py`
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from penstock.effects import Effect, KeyValue, Outbox
from penstock.errors import ErrorCode, KafkaError
from penstock.queue.state_records import (
    FENCE_SUFFIX,
    HEAD_SUFFIX,
    Head,
    decode_head,
    decode_key,
    encode_head,
    encode_key,
)
from penstock.types import NO_TERM, Term

_FENCE = Struct(">hiq")
_FENCE_VERSION = 0


class QueueKey(NamedTuple):
    """A queue on one partition."""

    group_id: str
    topic_id: UUID
    partition: int


class Fence(NamedTuple):
    """The right to write a queue's state: held by the leader of the data in this term, since the claim with this
    number."""

    term: int
    number: int


NO_FENCE = Fence(-1, 0)

StatePart = tuple[bytes, bytes | None]
"""The key suffix of a part of a queue's state, and its bytes; None deletes it."""
Heads = list[tuple[QueueKey, Head]]


class Claimed(NamedTuple):
    """The fence of a claim, and all stored parts."""

    fence: Fence
    parts: list[tuple[bytes, bytes]]


class QueueStateStore:
    """Claims and saves of queues. Requests take a token for the reply; a refusal raises KafkaError at once."""

    applies_early = True
    topics_version = -1
    next_deadline_ms: int | None = None

    def __init__(self) -> None:
        self._outbox = Outbox()
        self._queues: dict[QueueKey, dict[bytes, bytes]] = {}
        self._fences: dict[QueueKey, Fence] = {}
        self._saves: dict[QueueKey, int] = {}
        """The number of the last save under each fence."""

    # --- what is stored

    def start_offsets(self, group_id: str | None) -> list[tuple[QueueKey, int]]:
        """Where the queues of a group, or of all groups (None), start: everything before is done."""
        return [
            (queue, head.start_offset) for queue, head in self._heads() if group_id in (None, queue.group_id)
        ]

    def _heads(self) -> Iterator[tuple[QueueKey, Head]]:
        for queue, parts in self._queues.items():
            if HEAD_SUFFIX in parts:
                yield queue, decode_head(parts[HEAD_SUFFIX])

    def parts(self, queue: QueueKey) -> dict[bytes, bytes]:
        """All that is stored of a queue, by suffix."""
        return dict(self._queues.get(queue, {}))

    def committed_heads(self, token: object) -> list[Effect]:
        """Replies with the heads of all queues as they are now, when they are committed."""
        return self._write(token, [], list(self._heads()))

    def queues_of(self, topic_ids: frozenset[UUID]) -> list[QueueKey]:
        return [
            queue for queue in dict.fromkeys((*self._queues, *self._fences)) if queue.topic_id in topic_ids
        ]

    def topic_ids(self) -> set[UUID]:
        return {queue.topic_id for queue in (*self._queues, *self._fences)}

    # --- requests

    def claim(self, token: object, queue: QueueKey, term: int) -> list[Effect]:
        """Replies with the new fence and all stored parts."""
        known = self._fences.get(queue, NO_FENCE)
        if term < known.term:
            raise _fenced(queue, known)
        fence = self._fences[queue] = Fence(term, known.number + 1)
        self._saves.pop(queue, None)

        def written(now_ms: int, ok: bool) -> None:
            newest = self._fences.get(queue, NO_FENCE)
            if not ok:
                self._outbox.reply(token, _not_written())
            elif newest != fence:
                self._outbox.reply(token, _fenced(queue, newest))
            else:
                self._outbox.reply(token, Claimed(fence, list(self._queues.get(queue, {}).items())))

        self._outbox.persist([_fence_record(queue, fence)], written)
        return self._outbox.take()

    def save(
        self, token: object, queue: QueueKey, fence: Fence, number: int, parts: Sequence[StatePart]
    ) -> list[Effect]:
        """Replies when the parts are committed. Saves under one fence are numbered, and one may come twice (4)."""
        known = self._fences.get(queue, NO_FENCE)
        if fence != known or number < self._saves.get(queue, 0):
            raise _fenced(queue, known)
        self._saves[queue] = number
        for part, value in parts:
            self._put(queue, part, value)
        return self._write(token, [(encode_key(*queue, part), value) for part, value in parts])

    def reset(self, token: object, queue: QueueKey, start_offset: int, term: int = NO_TERM) -> list[Effect]:
        """The queue starts at this offset, whatever was done before; its driver finds its fence outdated. `term` is
        that of the leader in whose log the offset was found."""
        known = self._fences.get(queue, NO_FENCE)
        fence = self._fences[queue] = Fence(known.term, known.number + 1)
        self._saves.pop(queue, None)
        parts = self._queues.pop(queue, {})
        head = encode_head(Head(Term(max(fence.term, term)), start_offset))
        self._put(queue, HEAD_SUFFIX, head)
        records: list[KeyValue] = [(encode_key(*queue, part), None) for part in parts if part != HEAD_SUFFIX]
        records += [(encode_key(*queue, HEAD_SUFFIX), head), _fence_record(queue, fence)]
        return self._write(token, records)

    def forget(self, token: object, queues: Sequence[QueueKey]) -> list[Effect]:
        """Deletes the state of queues; their drivers find their fences gone."""
        records: list[KeyValue] = []
        for queue in queues:
            parts = self._queues.pop(queue, {})
            fence = self._fences.pop(queue, None)
            self._saves.pop(queue, None)
            records += [(encode_key(*queue, part), None) for part in parts]
            if fence is not None:
                records.append((encode_key(*queue, FENCE_SUFFIX), None))
        return self._write(token, records)

    def _write(self, token: object, records: Sequence[KeyValue], result: object = None) -> list[Effect]:
        """Replies with the result when the records, and all before them, are committed."""

        def written(now_ms: int, ok: bool) -> None:
            self._outbox.reply(token, result if ok else _not_written())

        self._outbox.persist(records, written)
        return self._outbox.take()

    def _put(self, queue: QueueKey, part: bytes, value: bytes | None) -> None:
        parts = self._queues.setdefault(queue, {})
        if value is None:
            parts.pop(part, None)
        else:
            parts[part] = value
        if not parts:
            del self._queues[queue]

    # --- called by its host

    def replay(self, key: bytes, value: bytes | None) -> None:
        name = decode_key(key)
        queue, part = QueueKey(name.group_id, name.topic_id, name.partition), name.suffix
        if part != FENCE_SUFFIX:
            self._put(queue, part, value)
        elif value is None:
            self._fences.pop(queue, None)
        else:
            _, term, number = _FENCE.unpack(value)
            self._fences[queue] = Fence(term, number)

    def loaded(self, now_ms: int) -> list[Effect]:
        return []

    def tick(self, now_ms: int) -> list[Effect]:
        return []

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> list[Effect]:
        self._outbox.persisted(now_ms, persist_id, ok)
        return self._outbox.take()


def _fence_record(queue: QueueKey, fence: Fence) -> KeyValue:
    return encode_key(*queue, FENCE_SUFFIX), _FENCE.pack(_FENCE_VERSION, *fence)


def _fenced(queue: QueueKey, known: Fence) -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_STATE_EPOCH,
        f"{queue.group_id!r} on partition {queue.partition} has a newer driver, of term {known.term}",
    )


def _not_written() -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the state of the queue could not be written")
