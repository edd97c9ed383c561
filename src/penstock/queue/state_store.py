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

A settlement within a transaction is a record of its producer's transaction, in the same log. The marker that commits
makes it a part of the queue's state. The queue's driver applies it, and deletes it with the save that contains it:

 5. A settlement that was accepted is in every claim until its transaction ends, and if that commits, until a save has
    deleted it. So no change of leaders loses one, and none is applied twice.
 6. The outcome of a settlement is told only after its marker is in the log. A settlement that is neither open nor
    stored was aborted: a driver asks only about those that were accepted, under its own fence.

    fence   int16 version 0 | int32 term | int64 number      the value under FENCE_SUFFIX; others: `state_records.py`
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from penstock.effects import Effect, KeyValue, Outbox
from penstock.errors import ErrorCode, KafkaError
from penstock.queue.open_parts import OpenParts
from penstock.queue.state_records import (
    FENCE_SUFFIX,
    HEAD_SUFFIX,
    Head,
    decode_head,
    decode_key,
    encode_head,
    encode_key,
    is_settlement,
    unknown_format,
)
from penstock.queue.stored_values import NO_FENCE, Claimed, Fence, Outcomes, QueueKey, StatePart
from penstock.types import NO_TERM, Producer, Term

_FENCE = Struct(">hiq")
_FENCE_VERSION = 0


Heads = list[tuple[QueueKey, Head]]


class _Watch(NamedTuple):
    """A driver waits for the outcomes of these settlements."""

    token: object
    suffixes: Sequence[bytes]


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
        self._open: OpenParts[QueueKey] = OpenParts()
        self._settling: dict[QueueKey, set[bytes]] = {}
        """Settlements that are being written."""
        self._watches: dict[QueueKey, _Watch] = {}

    # --- what is stored

    def start_offsets(self, group_id: str | None) -> list[tuple[QueueKey, int]]:
        """Where the queues of a group, or of all groups (None), start: everything before is done."""
        return [(queue, head.start_offset) for queue, head in self._heads(group_id)]

    def _heads(self, group_id: str | None = None) -> Iterator[tuple[QueueKey, Head]]:
        """Consumers ask for one group with every receive: the heads of thousands of others are not decoded for it."""
        for queue, parts in self._queues.items():
            if group_id in (None, queue.group_id) and HEAD_SUFFIX in parts:
                yield queue, decode_head(parts[HEAD_SUFFIX])

    def parts(self, queue: QueueKey) -> dict[bytes, bytes]:
        """All that is stored of a queue, by suffix."""
        return dict(self._queues.get(queue, {}))

    def open_settlements(self, queue: QueueKey) -> dict[bytes, bytes]:
        """The settlements of a queue whose transactions have not ended, by suffix."""
        return self._open.of(queue)

    def committed_heads(self, token: object) -> list[Effect]:
        """Replies with the heads of all queues as they are now, when they are committed."""
        return self._write(token, [], list(self._heads()))

    def queues_of(self, topic_ids: frozenset[UUID]) -> list[QueueKey]:
        return [queue for queue in dict.fromkeys(self._all_queues()) if queue.topic_id in topic_ids]

    def topic_ids(self) -> set[UUID]:
        return {queue.topic_id for queue in self._all_queues()}

    def _all_queues(self) -> Iterator[QueueKey]:
        yield from self._queues
        yield from self._fences
        yield from self._open.queues()

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
                stored = list(self._queues.get(queue, {}).items())
                self._outbox.reply(token, Claimed(fence, stored, list(self._open.of(queue).items())))

        self._outbox.persist([_fence_record(queue, fence)], written)
        return self._outbox.take()

    def save(
        self, token: object, queue: QueueKey, fence: Fence, number: int, parts: Sequence[StatePart]
    ) -> list[Effect]:
        """Replies when the parts are committed. Saves under one fence are numbered, and one may come twice (4)."""
        self._check_fence(queue, fence)
        if number < self._saves.get(queue, 0):
            raise _fenced(queue, fence)
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
        deleted = self._remove(queue)
        head = encode_head(Head(Term(max(fence.term, term)), start_offset))
        self._put(queue, HEAD_SUFFIX, head)
        records: list[KeyValue] = [
            (encode_key(*queue, part), None) for part in deleted if part != HEAD_SUFFIX
        ]
        records += [(encode_key(*queue, HEAD_SUFFIX), head), _fence_record(queue, fence)]
        return self._write(token, records)

    def forget(self, token: object, queues: Sequence[QueueKey]) -> list[Effect]:
        """Deletes the state of queues; their drivers find their fences gone."""
        records: list[KeyValue] = []
        for queue in queues:
            fence = self._fences.pop(queue, None)
            self._saves.pop(queue, None)
            records += [(encode_key(*queue, part), None) for part in self._remove(queue)]
            if fence is not None:
                records.append((encode_key(*queue, FENCE_SUFFIX), None))
        return self._write(token, records)

    def _remove(self, queue: QueueKey) -> list[bytes]:
        """Forgets all parts of a queue. Returns their suffixes, whose records are to be deleted."""
        settlements = [*self._open.of(queue), *self._settling.pop(queue, ())]
        for suffix in settlements:
            self._open.void(queue, suffix)
        self._answer_watch(queue, ())
        return [*self._queues.pop(queue, {}), *settlements]

    # --- settlements within transactions

    def settle(
        self, token: object, queue: QueueKey, fence: Fence, producer: Producer, suffix: bytes, value: bytes
    ) -> list[Effect]:
        """Replies when the settlement is committed to the log, as a part of the producer's transaction. The partition
        must have joined the transaction. A repetition writes the same record again."""
        self._check_fence(queue, fence)
        self._settling.setdefault(queue, set()).add(suffix)

        def written(now_ms: int, ok: bool) -> None:
            is_wanted = suffix in self._settling.get(queue, ()) or self._open.has(queue, suffix)
            if ok and is_wanted:
                self._open.add(producer.producer_id, queue, suffix, value)
                self._outbox.reply(token, None)
            elif ok:  # the queue was reset or deleted meanwhile
                self._outbox.reply(token, _fenced(queue, self._fences.get(queue, NO_FENCE)))
            else:
                self._outbox.reply(token, _not_written())
            self._end_settling(queue, suffix)

        self._outbox.persist([(encode_key(*queue, suffix), value)], written, producer)
        return self._outbox.take()

    def _end_settling(self, queue: QueueKey, suffix: bytes) -> None:
        settling = self._settling.get(queue, set())
        settling.discard(suffix)
        if not settling:
            self._settling.pop(queue, None)

    def watch(self, token: object, queue: QueueKey, fence: Fence, suffixes: Sequence[bytes]) -> list[Effect]:
        """Replies with the Outcomes of these settlements, as soon as there is one. A queue has one watch: a second one
        takes the place of the first, which gets no outcomes."""
        self._check_fence(queue, fence)
        self._answer_watch(queue, ())
        if ended := self._outcomes(queue, suffixes):
            self._outbox.reply(token, ended)
        else:
            self._watches[queue] = _Watch(token, suffixes)
        return self._outbox.take()

    def _check_fence(self, queue: QueueKey, fence: Fence) -> None:
        known = self._fences.get(queue, NO_FENCE)
        if fence != known:
            raise _fenced(queue, known)

    def _outcomes(self, queue: QueueKey, suffixes: Sequence[bytes]) -> Outcomes:
        stored = self._queues.get(queue, {})
        return [(suffix, suffix in stored) for suffix in suffixes if not self._open.has(queue, suffix)]

    def _answer_watch(self, queue: QueueKey, outcomes: Sequence[tuple[bytes, bool]]) -> None:
        watch = self._watches.pop(queue, None)
        if watch is not None:
            self._outbox.reply(watch.token, list(outcomes))

    def _end(self, producer_id: int, *, commit: bool) -> list[QueueKey]:
        """Returns the queues that the transaction has settlements of."""
        ended = self._open.end(producer_id)
        for queue, parts in ended.items() if commit else ():
            for suffix, value in parts.items():
                self._put(queue, suffix, value)
        return list(ended)

    def _write(self, token: object, records: Sequence[KeyValue], result: object = None) -> list[Effect]:
        """Replies with the result when the records, and all before them, are committed."""

        def written(now_ms: int, ok: bool) -> None:
            self._outbox.reply(token, result if ok else _not_written())

        self._outbox.persist(records, written)
        return self._outbox.take()

    def _put(self, queue: QueueKey, part: bytes, value: bytes | None) -> None:
        if value is None and is_settlement(part):
            self._open.void(queue, part)
        parts = self._queues.setdefault(queue, {})
        if value is None:
            parts.pop(part, None)
        else:
            parts[part] = value
        if not parts:
            del self._queues[queue]

    # --- called by its host

    def replay(self, key: bytes, value: bytes | None) -> None:
        queue, part = _decode(key)
        if part != FENCE_SUFFIX:
            self._put(queue, part, value)
        elif value is None:
            self._fences.pop(queue, None)
        else:
            _, term, number = _FENCE.unpack(value)
            self._fences[queue] = Fence(term, number)

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        queue, part = _decode(key)
        if not is_settlement(part) or value is None:
            raise unknown_format(f"a transaction with the key suffix {part.hex()}")
        self._open.add(producer_id, queue, part, value)

    def replay_marker(self, producer_id: int, *, commit: bool) -> None:
        self._end(producer_id, commit=commit)

    def transaction_ended(self, now_ms: int, producer_id: int, *, commit: bool) -> list[Effect]:
        """A marker is committed: drivers that wait for outcomes are told."""
        for queue in self._end(producer_id, commit=commit):
            watch = self._watches.get(queue)
            if watch is not None:
                self._answer_watch(queue, self._outcomes(queue, watch.suffixes))
        return self._outbox.take()

    def loaded(self, now_ms: int) -> list[Effect]:
        return []

    def tick(self, now_ms: int) -> list[Effect]:
        return []

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> list[Effect]:
        self._outbox.persisted(now_ms, persist_id, ok)
        return self._outbox.take()


def _decode(key: bytes) -> tuple[QueueKey, bytes]:
    name = decode_key(key)
    return QueueKey(name.group_id, name.topic_id, name.partition), name.suffix


def _fence_record(queue: QueueKey, fence: Fence) -> KeyValue:
    return encode_key(*queue, FENCE_SUFFIX), _FENCE.pack(_FENCE_VERSION, *fence)


def _fenced(queue: QueueKey, known: Fence) -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_STATE_EPOCH,
        f"{queue.group_id!r} on partition {queue.partition} has a newer driver, of term {known.term}",
    )


def _not_written() -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the state of the queue could not be written")
