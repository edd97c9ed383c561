"""Hosts one durable core (`penstock.effects`) on the partition that holds its state.

The host replays the partition into the core, carries out the core's effects, and calls the core at its next deadline.
It answers waiting requests with the core's replies, appends the core's records to the partition, and reports them to
the core once they are committed. The core's messages go to the function that the host was made with. A host lives as
long as this node leads the partition, in one term: the next leader replays the same records and goes on from there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

from penstock.batch import EndMarker
from penstock.effects import Effect, KeyValue, Persist, Reply, Send
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.log import Appended
from penstock.node.coordination.internal_topic import (
    NO_PRODUCER_ID,
    StoredEntry,
    append_records,
    entries_between,
)
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock, SteadyClock
from penstock.node.scheduling.deadline_timer import DeadlineTimer
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.types import Producer, Term

log = logging.getLogger("penstock.coordination")

CANNOT_STORE = "the coordinator on %s cannot store its state: %s"

UNREADABLE = (PenstockError, ValueError)
"""Why the records of a log cannot be replayed. Every other error while a core loads is a bug."""

T = TypeVar("T")

LOAD_AT_ONCE_BYTES = 128 * 1024
"""A partition of at most this size is replayed in one go: some milliseconds."""
RECORDS_PER_TURN = 100
"""How many records of a larger one are replayed in one turn of the loop: about a millisecond's work."""
BATCH_BYTES = 256 * 1024
"""The most bytes of keys and values in one batch: far below what a partition accepts at once."""


class DurableCore(Protocol):
    """A state machine whose state is a partition. Times are wall milliseconds that never go back."""

    @property
    def applies_early(self) -> bool:
        """Whether the core changes its memory before its writes are committed. After a write that failed its memory
        is wrong then, and the partition must be replayed. Writes within transactions never change it before."""
        ...

    @property
    def topics_version(self) -> int:
        """The newest metadata by which any replayed record was decided. The core serves when this node has applied
        that much: otherwise it would take topics that this node does not know yet for deleted ones."""
        ...

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None while there is nothing to wait for."""
        ...

    def replay(self, key: bytes, value: bytes | None) -> None:
        """One stored record, in order."""
        ...

    def loaded(self, now_ms: int) -> Iterable[Effect]:
        """All records were replayed: the core serves from now on."""
        ...

    def tick(self, now_ms: int) -> Iterable[Effect]: ...

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> Iterable[Effect]:
        """A write is committed, or has failed."""
        ...


@runtime_checkable
class TransactionalCore(Protocol):
    """The further methods of a core that persists records within transactions of producers."""

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """One stored record of a transaction, in order with the others."""
        ...

    def replay_marker(self, producer_id: int, *, commit: bool) -> None:
        """A stored marker: the transaction of this producer ended."""
        ...

    def transaction_ended(self, now_ms: int, producer_id: int, *, commit: bool) -> Iterable[Effect]:
        """A marker is committed, and so are all writes before it. It may be a repetition."""
        ...


C = TypeVar("C", bound=DurableCore)

Request = Callable[[int, object], Iterable[Effect]]
"""Takes the time and a token for the reply."""
Fact = Callable[[int], Iterable[Effect]]


class CoreHost(Generic[C]):
    """A core and its partition. Every method is called on the event loop."""

    def __init__(
        self,
        core: C,
        partition: Partition,
        clock: Clock,
        metadata: MetadataLog,
        send: "Sender[C] | None" = None,
    ) -> None:
        """`send` passes on the messages of a core that has any. It must not wait; it reports with `tell`."""
        self.core = core
        self._transactional = core if isinstance(core, TransactionalCore) else None
        self._send = send
        self.partition = partition
        self.term: Term = partition.term
        self.is_ready = False
        """Whether the core has loaded."""
        self.is_loading = True
        self.is_broken = False
        """Whether the core's memory is ahead of the log: it must not serve, and a new core must load."""
        self._metadata = metadata
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._loop = asyncio.get_running_loop()
        self._loading: asyncio.Task[None] | None = None
        self._facts: list[Fact] = []
        """Facts that the core is told when it has loaded."""
        self._stopped = False
        self._asked: dict[asyncio.Future[object], None] = {}
        """Requests that wait for their reply."""
        self._writes: deque[_Write | _MarkerWrite] = deque()
        """All that are not reported, oldest first."""
        self._unwritten: list[_Write] = []
        """The writes among them that are appended at the end of this turn of the loop."""
        self._timer = DeadlineTimer(self._steady.now_ms, self._tick)

    @property
    def now_ms(self) -> int:
        return self._steady.now_ms()

    @property
    def serves(self) -> bool:
        """Whether the core may answer from memory: no other node can have taken over. A leader without a lease may
        have been replaced, and know old state."""
        partition = self.partition
        return (
            self.is_ready
            and not self._stopped
            and not self.is_broken
            and partition.may_serve
            and partition.term == self.term
        )

    @property
    def is_stopped(self) -> bool:
        """Whether this node no longer leads the partition in the host's term."""
        return self._stopped

    # --- loading

    def start(self) -> None:
        """Loads: at once if the partition is small and the metadata new enough, else in slices."""
        records = self._replay()
        if self.partition.log.size_bytes <= LOAD_AT_ONCE_BYTES:
            try:
                for _ in records:
                    pass
            except Exception as trouble:  # noqa: BLE001 - logged there
                self._cannot_load(trouble, is_bug=not isinstance(trouble, UNREADABLE))
                return
            if self._knows_enough:
                self._begin()
                return
        self._loading = self._loop.create_task(self._load(records))

    async def _load(self, records: Iterator[None]) -> None:
        try:
            for count, _ in enumerate(records):
                if count % RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
            while not self._knows_enough:
                log.info("the coordinator on %s waits for newer metadata", self.partition.name)
                await self._metadata.next_change()
        except Exception as trouble:  # noqa: BLE001 - logged there
            self._cannot_load(trouble, is_bug=not isinstance(trouble, UNREADABLE))
        else:
            self._begin()

    def _replay(self) -> Iterator[None]:
        """One record a step. Nothing else is appended meanwhile: only the core and `write_marker` write to this
        partition. The end of the log is the leader's: after a broken core, writes that it appended in this term may not
        be committed yet."""
        partition = self.partition
        for entry in entries_between(partition, partition.start_offset, partition.log.end_offset):
            self._replay_one(entry)
            yield

    def _replay_one(self, entry: StoredEntry) -> None:
        content, core = entry.content, self._transactional
        if isinstance(content, EndMarker):
            if core is not None:
                core.replay_marker(entry.producer_id, commit=content.commit)
        elif core is not None and entry.producer_id != NO_PRODUCER_ID:
            core.replay_pending(entry.producer_id, content.key or b"", content.value)
        else:
            self.core.replay(content.key or b"", content.value)

    @property
    def _knows_enough(self) -> bool:
        return self._metadata.applied >= self.core.topics_version

    def _cannot_load(self, trouble: Exception, *, is_bug: bool) -> None:
        """Whatever the reason is, clients are told that the coordinator is offline, and not that it is loading. The
        core does nothing any more: as clients cannot reach it, it would expire their sessions, and store that."""
        self.is_loading = self.is_ready = False
        self._facts.clear()
        self._timer.cancel()
        traceback = trouble if is_bug else None
        log.error(
            "the coordinator on %s stays offline: %s",
            self.partition.name,
            str(trouble) or repr(trouble),
            exc_info=traceback,
        )

    def _begin(self) -> None:
        self.is_loading, self.is_ready = False, True
        try:
            self.carry_out(self.core.loaded(self.now_ms))
        except Exception as bug:  # noqa: BLE001 - logged there
            self._cannot_load(bug, is_bug=True)
            return
        facts, self._facts = self._facts, []
        for fact in facts:
            with logged_bugs(f"a change that the coordinator on {self.partition.name} is told"):
                self.tell(fact)

    def stop(self) -> None:
        """This node no longer leads: waiting requests fail with NOT_COORDINATOR, and clients look for the leader."""
        self._stopped = True
        if self._loading is not None:
            self._loading.cancel()
        self._timer.cancel()
        moved = KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.partition.name} is led by another node now")
        for future in self._asked:
            if not future.done():
                future.set_exception(moved)

    # --- requests

    async def ask(self, kind: type[T], request: Request) -> T:
        """Makes a request and waits for its reply, which may come much later. KafkaError if this stops meanwhile."""
        future: asyncio.Future[object] = self._loop.create_future()
        self._asked[future] = None
        try:
            self.carry_out(request(self.now_ms, future))
            return cast(T, await future)
        finally:
            del self._asked[future]

    def tell(self, fact: Fact) -> None:
        """Tells the core about a change around it: now, or when it has loaded. A core that could not load is not told:
        the next one reads its log."""
        if self.is_ready:
            self.carry_out(fact(self.now_ms))
        elif self.is_loading and not self._stopped:
            self._facts.append(fact)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        if self._stopped or not self.is_ready:
            return
        for effect in effects:
            match effect:
                case Reply(token=token, result=result):
                    _reply(cast("asyncio.Future[object]", token), result)
                case Persist():
                    self._persist(effect)
                case Send(message=message):
                    assert self._send is not None, "a core that sends needs a host with a sender"
                    self._send(self, message)
        self._timer.set(self.core.next_deadline_ms)

    # --- writes

    def _persist(self, effect: Persist) -> None:
        """Appends at the end of this turn. The caller may be within a decision of the partition's own Raft group,
        where nothing can be appended."""
        write = _Write(effect.id, effect.records, effect.producer)
        self._writes.append(write)
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten.append(write)

    def _write(self) -> None:
        """Appends all writes of this turn. A thousand commits in one turn are one batch: the batch has the cost, not
        its records."""
        unwritten, self._unwritten = self._unwritten, []
        if self._stopped or not self.is_ready:
            return
        for writes in _batches(unwritten):
            if self.is_broken:
                self._report(writes, False)
            elif any(write.records for write in writes):
                self._append(writes)
            else:
                self._report(writes, True)

    def _append(self, writes: "Sequence[_Write]") -> None:
        partition = self.partition
        records = (record for write in writes for record in write.records)
        try:
            appended = append_records(partition, records, self._clock.wall_ms(), writes[0].producer)
        except PenstockError as refused:
            log.log(_level(refused, writes[0].producer), CANNOT_STORE, partition.name, refused)
            self._report(writes, False)
            return
        self._report_committed(writes, appended)

    def write_marker(self, marker: EndMarker, *, producer_id: int, producer_epoch: int) -> Appended:
        """Ends the producer's transaction on this partition, like `Partition.append_marker`. The marker is behind all
        writes that the core has asked for; once it is committed, the core is told so, before anybody who waits for it
        with `committed_at`. KafkaError if the marker is refused, or if the core cannot be told: it is loading, or
        another node may have taken over."""
        assert self._transactional is not None, "a core without transactions has no use for markers"
        if not self.serves:
            message = f"the coordinator on {self.partition.name} does not serve now"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        while self._unwritten:  # the report of a write may cause another one
            self._write()
        appended = self.partition.append_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch
        )
        write = _MarkerWrite(producer_id, marker.commit)
        self._writes.append(write)
        self._report_committed([write], appended)
        return appended

    def _report_committed(self, writes: "Sequence[_Write | _MarkerWrite]", appended: Appended) -> None:
        committed = self.partition.committed_at(appended)
        if committed is None:
            self._report(writes, True)
        else:
            committed.add_done_callback(lambda done: self._report(writes, done.exception() is None))

    def _report(self, writes: "Sequence[_Write | _MarkerWrite]", ok: bool) -> None:
        """Reports in the order of the writes, whenever their outcomes become known."""
        self.is_broken |= self.core.applies_early and not ok and any(_is_own(write) for write in writes)
        for write in writes:
            write.ok = ok
        while self._writes and self._writes[0].ok is not None:
            self.carry_out(self._outcome(self._writes.popleft()))

    def _outcome(self, write: "_Write | _MarkerWrite") -> Iterable[Effect]:
        if isinstance(write, _Write):
            return self.core.persisted(self.now_ms, write.id, bool(write.ok))
        if not write.ok or self._transactional is None:
            return ()
        return self._transactional.transaction_ended(self.now_ms, write.producer_id, commit=write.commit)

    def _tick(self) -> None:
        self.carry_out(self.core.tick(self.now_ms))


Sender = Callable[[CoreHost[C], object], None]


def _level(refused: PenstockError, producer: Producer | None) -> int:
    """A leader change is not logged as an error: clients retry at the next leader. Neither is a fenced producer:
    another one has taken its place."""
    is_clients = isinstance(refused, KafkaError) and (
        refused.code == ErrorCode.NOT_LEADER_OR_FOLLOWER or producer is not None
    )
    return logging.INFO if is_clients else logging.ERROR


def _reply(waiting: asyncio.Future[object], result: object) -> None:
    if waiting.done():  # its client may have gone
        return
    if isinstance(result, Exception):
        waiting.set_exception(result)
    else:
        waiting.set_result(result)


class _Write:
    """A write that is not reported; `ok` once its outcome is known."""

    __slots__ = ("id", "ok", "producer", "records")

    def __init__(self, persist_id: int, records: Sequence[KeyValue], producer: Producer | None) -> None:
        self.id = persist_id
        self.records = records
        self.producer = producer
        self.ok: bool | None = None


class _MarkerWrite:
    """A marker that is not reported."""

    __slots__ = ("commit", "ok", "producer_id")

    def __init__(self, producer_id: int, commit: bool) -> None:
        self.producer_id = producer_id
        self.commit = commit
        self.ok: bool | None = None


def _is_own(write: _Write | _MarkerWrite) -> bool:
    """Whether the core decides by itself about the outcome: not within a transaction, whose producer may be refused."""
    return isinstance(write, _Write) and write.producer is None


def _batches(writes: Iterable[_Write]) -> Iterator[list[_Write]]:
    """Groups writes into batches of about BATCH_BYTES; a larger write is a batch of its own. The records of a batch
    belong to one producer's transaction, or to none."""
    batch: list[_Write] = []
    remaining = BATCH_BYTES
    for write in writes:
        size = sum(len(key) + len(value or b"") for key, value in write.records)
        if batch and (size > remaining or write.producer != batch[0].producer):
            yield batch
            batch, remaining = [], BATCH_BYTES
        batch.append(write)
        remaining -= size
    if batch:
        yield batch
