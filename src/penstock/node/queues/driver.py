"""Drives one queue on one partition that this node leads.

The core (`penstock.queue`) decides which consumer gets which message. The driver reads the log for it, saves its
changes, keeps its time, and wakes waiting consumers in the order in which they came. A driver lives in one term of its
partition's leader. When a save fails, the stored state is unknown, so the driver ends: requests that wait get the
error, and the next request creates a new driver from the stored state.

Invariants:
 1. An acknowledgement is answered when the save that contains it is committed, or with an error: never before.
 2. One save is in progress at a time; acknowledgements that arrive meanwhile go into the next one. So a thousand small
    acknowledgements cost a few writes.
 3. A driver whose partition has lost its lease or its term serves no request.
 4. An exclusive queue delivers only to the consumer that holds its lock (`exclusive_consumer`). The others stand by:
    they are woken when the lock is free, and by nothing else.
 5. Messages that are settled within a transaction are held by it until it ends (`transaction_settler`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import uuid4

from penstock.config import ShareGroupConfig
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.queues.consumers import QueueConsumers
from penstock.node.queues.dead_letter_copier import DeadLetterCopier
from penstock.node.queues.exclusive_consumer import ConsumerLock, Holder
from penstock.node.queues.failures import NO_FAILURES, FailureLog, Failures
from penstock.node.queues.log_reader import LogReader
from penstock.node.queues.retention_notices import RetentionNotices
from penstock.node.queues.start_position import first_offset, is_of_another_log, settings_of
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.queues.state_saver import StateSaver, resolve
from penstock.node.queues.stats import QueueStats
from penstock.node.queues.transaction_settler import TransactionSettler
from penstock.node.queues.values import (
    NOTHING,
    Consumer,
    LeasedBatches,
    ProducerTransaction,
    as_kafka_error,
    not_leased,
    unknown_queue,
)
from penstock.node.queues.waiting_consumers import CommitListener, WaitingConsumers
from penstock.node.queues.waking import Waking
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock, SteadyClock
from penstock.node.scheduling.deadline_timer import DeadlineTimer
from penstock.queue import Backlog, QueueKey
from penstock.queue.partition import QueuePartition
from penstock.queue.state_records import HEAD_SUFFIX
from penstock.queue.values import AckKind, Acknowledgement, DeadLetterRange
from penstock.types import NO_EVENTS, Caller, EventSink, Offset, Term

log = logging.getLogger("penstock.queues")

READ_ON_RECORDS = 100_000
"""A request that only counts or lists messages reads no further when so many records are available."""
READ_ON_SECONDS = 2.0
"""How long such a request may read on: a few hundred thousand messages. The next request reads the rest."""
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""The unpacked size of one delivery, by the headers of its batches: a few kilobytes can unpack to gigabytes."""
IDLE_SECONDS = 300.0
"""How long a queue without consumers is kept in memory."""

WriteDeadLetter = Callable[["QueueDriver", DeadLetterRange], Awaitable[None]]
"""Copies records to the dead-letter topic; PenstockError if that is not possible now."""


class QueueDriver:
    """One queue on one partition."""

    def __init__(
        self,
        *,
        key: QueueKey,
        partition: Partition,
        store: QueueStateClient,
        config: ShareGroupConfig,
        clock: Clock,
        write_dead_letter: WriteDeadLetter,
        on_end: Callable[["QueueDriver"], None],
        may_begin: bool = True,
        events: EventSink = NO_EVENTS,
        stats: QueueStats | None = None,
        consumers: QueueConsumers | None = None,
    ) -> None:
        self.key = key
        self.partition = partition
        self.term: Term = partition.term
        self.driver_id = uuid4().bytes
        """Distinguishes its leases from those of earlier and later drivers, which may count the same deliveries
        again."""
        self.config = config
        self.may_begin = may_begin
        """Whether the queue may be created if it has no stored state. A request that only mentions a deleted queue does
        not recreate it."""
        self.ended: KafkaError | None = None
        self._client = store
        self._saver = StateSaver(store, key)
        self._clock = clock
        self._write_dead_letter = write_dead_letter
        self._events = events
        self.stats = stats or QueueStats(key.group_id, partition.name.topic)
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._steady = SteadyClock(clock)
        self._saving = False
        self._last_request_at = self._loop.time()
        self._copier = DeadLetterCopier(
            partition.name, self.stats, lambda letter: self._write_dead_letter(self, letter)
        )
        self._timer = DeadlineTimer(self._steady.now_ms, self._timer_fired)
        self._consumers = WaitingConsumers(self)
        self._lock = ConsumerLock(self._tell_holder)
        self.consumers = consumers or QueueConsumers()
        self.failures = FailureLog(self.consumers.name_of)
        self._listener = CommitListener(self._committed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._transactions = TransactionSettler(self, self._saver)
        self._opening = self._loop.create_task(self._open())

    @property
    def now_ms(self) -> int:
        return self._steady.now_ms()

    @property
    def lease_ms(self) -> int:
        return self.config.record_lock_duration_ms

    @property
    def is_open(self) -> bool:
        """Whether it serves requests."""
        return self.ended is None and self._opening.done()

    @property
    def is_idle(self) -> bool:
        """Whether it had no request for a while and nothing is in progress, so that everything that matters is
        stored."""
        core = self.core
        if len(self._consumers) or self._consumers.has_standbys or self._saving or self._copier.is_busy:
            return False
        is_unused = self._loop.time() - self._last_request_at > IDLE_SECONDS
        return is_unused and not (core.leased_count or core.dying_count)

    def configure(self, config: ShareGroupConfig) -> None:
        """Applies other settings. If the order changes, the driver ends, and the next one starts with it."""
        before = self.config
        if (config.key_ordered, config.owner_ordered) != (before.key_ordered, before.owner_ordered):
            self.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key.group_id!r} was reconfigured"))
            return
        self.config = config
        self.core.configure(settings_of(config))
        self._log.isolation = config.isolation

    # --- opening and ending

    async def opened(self) -> None:
        """Returns when it serves requests; KafkaError if it cannot be opened."""
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if self._opening.cancelled() and self.ended is not None:
                raise self.ended from None
            raise

    async def _open(self) -> None:
        try:
            claimed = await self._saver.claim(self.term)
            await self._restore(dict(claimed.parts), dict(claimed.open_settlements))
            self._check_leads()
        except PenstockError as trouble:
            self.end(as_kafka_error(trouble))
            raise as_kafka_error(trouble) from trouble
        notices = RetentionNotices(self.key, self.partition, self.stats, self._events)
        self._open_reader(notices)
        self.partition.add_waiter(self._listener)
        self._transactions.follow(suffix for suffix, _ in claimed.open_settlements)
        self.refresh()

    def _open_reader(self, notices: RetentionNotices) -> None:
        self._log = LogReader(self.core, self.partition, self.config.isolation, notices=notices)
        self._waking = Waking(self.core, self._consumers, lambda: self.end_offset)

    async def _restore(self, parts: dict[bytes, bytes], open_settlements: dict[bytes, bytes]) -> None:
        """Restores the stored parts; GROUP_ID_NOT_FOUND if there are none and the queue may not be created."""
        if parts and not is_of_another_log(self.partition, parts):
            self.core = QueuePartition.restore(
                settings_of(self.config),
                term=self.term,
                records=parts,
                open_settlements=open_settlements,
                now_ms=self.now_ms,
            )
        elif parts:
            name = self.partition.name
            log.warning("queue %s on %s starts again, because the log was replaced", self.key.group_id, name)
            outdated = [part for part in (*parts, *open_settlements) if part != HEAD_SUFFIX]
            await self._start_at(self.partition.start_offset, outdated)
            reason = "the log in memory was replaced"
            self._tell("queue.reset", first_offset=self.core.start_offset, reason=reason)
        elif self.may_begin:
            first = await first_offset(self.key, self.partition, self._client, self.config, self._clock)
            await self._start_at(first, ())
            self._tell("queue.created", first_offset=self.core.start_offset)
        else:
            raise unknown_queue(self.key.group_id)

    async def _start_at(self, start_offset: int, outdated: Sequence[bytes]) -> None:
        """`outdated` are stored parts to delete."""
        self.core = QueuePartition(settings_of(self.config), term=self.term, start_offset=start_offset)
        changes = self.core.take_changes()
        if changes is not None:
            await self._saver.save([*changes.records, *((part, None) for part in outdated)])
            self.core.saved(changes.number)

    def end(self, why: KafkaError) -> None:
        """Requests that wait get this error, and all later ones too."""
        if self.ended is not None:
            return
        self.ended = why
        self.partition.remove_waiter(self._listener)
        self._timer.cancel()
        self._saver.fail(why)
        self._transactions.stop()
        self._consumers.wake_all()
        self._on_end(self)

    async def settled(self) -> None:
        """Returns when no save and no copy of dead letters is in progress."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self) -> None:
        """Cancels everything in progress and waits for it. A save whose partition has no leader would be retried for
        long, and the requests that waited for it have got an error already."""
        for task in (self._opening, *self._tasks):
            task.cancel()
        await asyncio.wait({self._opening, *self._tasks})
        await self._transactions.stopped()

    def _check_leads(self) -> None:
        if self.ended is not None:
            raise self.ended
        self.partition.check_readable()
        if self.partition.term != self.term:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition.name} has a new term")

    def _begin(self) -> int:
        """Every request: the time, after what is due by then; KafkaError if this node does not lead (any more)."""
        self._check_leads()
        now_ms = self.now_ms
        self._tick(now_ms)
        return now_ms

    # --- requests of consumers

    def deliver(
        self,
        member: str,
        max_records: int,
        max_bytes: int,
        *,
        whole_batches: bool = False,
        unpacks: bool = True,
        client: str = "",
        hold_ms: int | None = None,
    ) -> LeasedBatches:
        """Records for a consumer, leased to it from now on; NOTHING if there are none, or another consumer holds the
        lock. `unpacks`: the caller will unpack them, so their unpacked size is limited. `client` names the consumer for
        others. `hold_ms`: how long each request of it keeps the lock; by default until `release`."""
        self.check_admits(member)
        now_ms = self._begin()
        self._last_request_at = self._loop.time()
        if self.config.exclusive and not self._lock.acquire(member, client, now_ms, hold_ms):
            return NOTHING
        delivery = self._log.deliver(
            now_ms,
            member,
            max_records,
            max_bytes,
            others=len(self._consumers),
            whole_batches=whole_batches,
            max_unpacked=UNPACKED_BYTES_MAX if unpacks else None,
        )
        self.stats.count_delivered(delivery.acquired)
        self._after()
        return delivery

    def acknowledge(
        self,
        member: str,
        batches: Sequence[Acknowledgement],
        failures: Failures = NO_FAILURES,
        epoch: int | None = None,
    ) -> asyncio.Future[None]:
        """Done when it is durable; KafkaError if it is not. NotLeased: the member does not hold some of the ranges (any
        more); the others are durable by then. `failures`: why messages are released or rejected. `epoch`: the newest
        table of lanes that the member knew."""
        now_ms = self._begin()
        self._lock.renew(member, now_ms)
        future: asyncio.Future[None] = self._loop.create_future()
        errors, waits = self.core.acknowledge_all(now_ms, member, batches, epoch=epoch, token=future)
        taken = [batch for error, batch in zip(errors, batches, strict=True) if not error]
        self.stats.count_settled(taken)
        self.consumers.count_settled(member, taken, now_ms)
        self.failures.settled(now_ms, member, taken, failures)
        error = not_leased(errors, batches) if any(errors) else None
        if waits:
            self._saver.add_waiting(future, error)
        else:
            resolve(future, error)
        self._after()
        return future

    def settle_in_transaction(
        self,
        member: str,
        batches: Sequence[Acknowledgement],
        failures: Failures,
        transaction: ProducerTransaction,
        *,
        caller: Caller,
    ) -> asyncio.Future[None]:
        """Done when the settlement is durable as a part of the transaction: it counts if the transaction commits. Until
        the transaction ends it holds the messages. KafkaError if the transaction does not take it; the messages are
        available again then. NotLeased as in `acknowledge`."""
        now_ms = self._begin()
        self._lock.renew(member, now_ms)
        future: asyncio.Future[None] = self._loop.create_future()
        work = self._transactions.begin(now_ms, member, batches, failures, transaction, future, caller=caller)
        self._saver.add_waiting(future, None)
        self._after()
        self._spawn(work)
        return future

    def check_admits(self, member: str) -> None:
        """KafkaError if this consumer cannot get messages of this queue."""

    async def accept_one(self, member: str, offset: int) -> None:
        """Accepts a message that is not leased. NotLeased if it is done already, or another consumer holds it."""
        await self._read_to(offset)
        now_ms = self.now_ms
        acquired = self.core.acquire(now_ms, member, self.config.max_record_locks, below=offset + 1)
        for given in acquired:
            if given.first < offset:
                self.core.hand_back(now_ms, member, given.first, min(given.last, offset - 1))
        await self.acknowledge(member, [Acknowledgement(offset, offset, bytes([AckKind.ACCEPT]))])

    async def _read_to(self, offset: int) -> None:
        """Reads the log up to this offset and with it, as far as the limits allow."""
        while True:
            self._check_leads()
            before = self.core.next_offset
            if before > offset:
                return
            self._log.read_ahead(self.now_ms, self.config.max_record_locks)
            if self.core.next_offset == before:
                return
            await asyncio.sleep(0)

    async def read_on(self) -> None:
        """Reads more of the log, as far as the limits allow: only the log tells which messages are not due yet."""
        deadline = self._loop.time() + READ_ON_SECONDS
        while self._loop.time() < deadline:
            self._check_leads()
            before = self.core.next_offset
            # No consumer waits for it: other work first.
            self._log.read_ahead(self.now_ms, READ_ON_RECORDS, reads=1)
            self._after()
            if self.core.next_offset == before:
                return
            await asyncio.sleep(0)

    def has_delivery(self, member: str, offset: int, deliveries: int) -> bool:
        """Whether the member holds this message by this very delivery, and not by an earlier or later one. A count that
        has reached its maximum (255) no longer distinguishes the next delivery from the last."""
        runs = self.core.peek(offset, offset)
        return any(run.member == member and run.deliveries == deliveries for run in runs)

    def held_by(self, member: str) -> int:
        """How many messages it holds."""
        return self.core.held_by(member) if self.is_open else 0

    def other_holder(self, member: str) -> Holder | None:
        """The holder of an exclusive queue, if it is another consumer."""
        return self._lock.other_holder(member, self.now_ms) if self.config.exclusive else None

    @property
    def end_offset(self) -> Offset:
        """The first offset that this queue's consumers may not see."""
        return self.partition.end_for(self.config.isolation)

    @property
    def backlog(self) -> Backlog:
        return self.core.backlog(self.now_ms, self.end_offset)

    def refresh(self) -> None:
        """Applies what time and retention have changed, so that the counts are right now."""
        now_ms = self.now_ms
        self._tick(now_ms)
        self._log.trim(now_ms)
        self._after()

    def release(self, member: str) -> None:
        """A consumer has gone: its messages become available to others."""
        self.failures.gone(member)
        self.consumers.detach(member)
        if self.is_open:
            now_ms = self.now_ms
            self._tick(now_ms)
            self.core.release_member(now_ms, member)
            self._lock.release(member)
            self._after()

    def hand_back(self, member: str, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Undoes deliveries that did not arrive, or that their consumer did not start. Returns the ranges that the
        member does not hold (any more), at least not all of it. The next save contains it, and the caller does not
        wait: a crash before that leaves a delivery count that is one too high, never a lost message."""
        now_ms = self._begin()
        refused: list[tuple[int, int]] = []
        for first, last in ranges:
            if self.core.hand_back(now_ms, member, first, last):
                self.stats.count_returned(first, last)
            else:
                refused.append((first, last))
        self._after()
        return refused

    def wait(self, consumer: Consumer, member: str = "") -> None:
        """Wakes the consumer when there may be messages for it, in the order in which consumers came."""
        if self.other_holder(member) is not None:
            self._consumers.add_standby(consumer)
            self._set_timer()
        else:
            self._consumers.add(consumer, member)
            if self._log.is_behind:  # no commit may come that wakes a consumer to read further
                self._loop.call_soon(self._committed)

    def forget(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)

    def pass_on(self) -> None:
        """A consumer that was woken will not ask: wakes another one instead."""
        if self.is_open:
            self._wake()

    # --- inside

    def _after(self) -> None:
        """After any change: saves, copies dead letters, sets the timer and wakes consumers."""
        self._start_saving()
        self._start_copying()
        self._set_timer()
        self._wake()

    def _wake(self) -> None:
        if self._consumers.has_standbys and self.other_holder("") is None:
            self._consumers.wake_standbys()
        self._waking.changed()

    def _committed(self) -> None:
        """Records were committed, or the leader has changed."""
        if self.ended is None and len(self._consumers):
            self._waking.committed()

    def _tick(self, now_ms: int) -> None:
        """Must come before any other call of the core at this time, which would end leases without counting them."""
        if self.core.next_due_ms is not None and self.core.next_due_ms <= now_ms:
            held = self.core.leased_count
            self.core.tick(now_ms)
            self.stats.expired += held - self.core.leased_count

    def _set_timer(self) -> None:
        due_ms = self.core.next_due_ms
        if self._consumers.has_standbys and self._lock.until_ms is not None:
            due_ms = self._lock.until_ms if due_ms is None else min(due_ms, self._lock.until_ms)
        self._timer.set(due_ms)

    def _timer_fired(self) -> None:
        if self.ended is None:
            self._tick(self.now_ms)
            self._after()

    # --- saving

    def _start_saving(self) -> None:
        if self._saving or self.ended is not None:
            return
        changes = self.core.take_changes()
        if changes is not None:
            self._saving = True
            self._spawn(self._save_all(changes.number, changes.records))

    async def _save_all(self, number: int, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        try:
            await self._saver.save(records)
        except PenstockError as trouble:
            log.warning("queue %s on %s is reloaded: %s", self.key.group_id, self.partition.name, trouble)
            self.end(as_kafka_error(trouble))
            return
        finally:
            self._saving = False
        self._saver.answer(self.core.saved(number))
        self._start_saving()

    # --- dead letters

    def _start_copying(self) -> None:
        if not self._copier.is_busy and self.ended is None and (letters := self.core.take_dead_letters()):
            self._copier.is_busy = True
            self._spawn(self._copy(letters))

    async def _copy(self, letters: Sequence[DeadLetterRange]) -> None:
        await self._copier.copy_all(self.core, letters, lambda: self.ended is None)
        if self.ended is None:
            self._after()

    def _tell(self, kind: str, **facts: object) -> None:
        topic, index = self.partition.name
        self._events.tell(kind, group=self.key.group_id, topic=topic, partition=index, **facts)

    def _tell_holder(self, consumer: str | None) -> None:
        self._tell("queue.consumer_changed", **({} if consumer is None else {"consumer": consumer}))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
