"""One queue at work on one partition that this node leads.

The core (`penstock.queue`) decides who gets what; here the log is read for it, its changes are saved, its clock is
kept, and consumers that found nothing are woken in the order in which they came. A driver lives in one term of its
partition's leader. When a save fails, nobody knows what is stored, so the driver ends: what waits is answered with the
error, and the next request makes a new one from what is stored.

Invariants:
 1. An acknowledgement is answered when the save that holds it is committed, or with an error: never before.
 2. One save is under way at a time; what is acknowledged meanwhile goes into the next one. A thousand small
    acknowledgements so cost a few writes.
 3. Nobody is served by a driver whose partition has lost its lease or its term.
 4. An exclusive queue hands out records only to whoever has its seat (`exclusive`). The others stand by: they are woken
    when the seat is free, and by nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

from penstock.config import ShareGroupConfig
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.clock import Clock, SteadyClock
from penstock.node.queues.exclusive_consumer import Holder, Seat
from penstock.node.queues.log_reader import LogReader
from penstock.node.queues.retry_backoff import RetryBackoff
from penstock.node.queues.start_position import first_offset, is_of_another_log, settings_of
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.queues.stats import Backlog, QueueStats
from penstock.node.queues.values import (
    NOTHING,
    Acknowledgement,
    Consumer,
    Delivery,
    as_kafka_error,
    not_leased,
    unknown_queue,
)
from penstock.node.replication.fetch_waiter import FetchWaiter
from penstock.node.replication.partition import Partition
from penstock.queue import HEAD_SUFFIX, AckKind, DeadLetter, QueueKey, QueuePartition
from penstock.types import NO_EVENTS, EventSink, Offset, Term

log = logging.getLogger("penstock.queues")

READ_ON_RECORDS = 100_000
"""Available records that are known of before nothing more is read for somebody who only looks."""
HOLES_PER_TURN = 16
"""How often it is tried again at once where compaction has taken what was to be handed out."""
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""What one delivery may unpack to, by what its batches say: a few kilobytes can hold gigabytes."""
IDLE_SECONDS = 300.0
"""How long a queue without consumers is kept in memory."""

Bury = Callable[["QueueDriver", DeadLetter], Awaitable[None]]
"""Copies what died to where dead letters go; PenstockError if that cannot be done now."""


class QueueDriver:
    """A queue and its partition."""

    def __init__(
        self,
        *,
        key: QueueKey,
        partition: Partition,
        store: QueueStateClient,
        config: ShareGroupConfig,
        clock: Clock,
        bury: Bury,
        on_end: Callable[["QueueDriver"], None],
        may_begin: bool = True,
        events: EventSink = NO_EVENTS,
        tally: QueueStats | None = None,
    ) -> None:
        self.key = key
        self.partition = partition
        self.term: Term = partition.term
        self.life = uuid4().bytes
        """Tells its leases from those of the drivers before and after it, which may count the same deliveries again."""
        self.config = config
        self.may_begin = may_begin
        """Whether the queue may begin here if nothing is stored of it. Who only speaks of it does not bring it back."""
        self.ended: KafkaError | None = None
        self._store = store
        self._clock = clock
        self._bury = bury
        self._events = events
        self.tally = tally or QueueStats(key.group_id, partition.name.topic)
        """Where it is counted what happens here."""
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._steady = SteadyClock(clock)
        self._saving = False
        self._save_number = 0
        self._asked_at = self._loop.time()
        self._burying = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms: int | None = None
        self._waiting: dict[Consumer, None] = {}
        self._standing_by: dict[Consumer, None] = {}
        self._seat = Seat()
        self._seated = ""
        """Who is told to have the seat."""
        self._workers: dict[str, None] = {}
        """Consumers that stay, whether or not they wait or hold anything now."""
        self._acks: dict[asyncio.Future[None], KafkaError | None] = {}
        """Acknowledgements that wait for a save, and what to say of them then."""
        self._bell = _Bell(self._rung)
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = self._loop.create_task(self._open())

    @property
    def now_ms(self) -> int:
        return self._steady.now_ms()

    @property
    def lease_ms(self) -> int:
        return self.config.record_lock_duration_ms

    @property
    def is_open(self) -> bool:
        """Whether it can be asked now."""
        return self.ended is None and self._opening.done()

    @property
    def is_idle(self) -> bool:
        """Whether nobody has asked for anything for a while, and nothing is under way: all that matters is stored."""
        core = self.core
        return (
            self._loop.time() - self._asked_at > IDLE_SECONDS
            and not (self._waiting or self._standing_by or self._saving or self._burying)
            and not (core.leased_count or core.dying_count)
        )

    def configure(self, config: ShareGroupConfig) -> None:
        """Other settings from now on. Key order cannot change under way: the queue begins anew with it."""
        if config.key_ordered != self.config.key_ordered:
            self.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key.group_id!r} was reconfigured"))
            return
        self.config = config
        self.core.configure(settings_of(config))
        self._log.isolation = config.isolation

    # --- life

    async def opened(self) -> None:
        """Returns when it can be asked; KafkaError if it never can."""
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if self._opening.cancelled() and self.ended is not None:
                raise self.ended from None
            raise

    async def _open(self) -> None:
        try:
            self._fence, parts = await self._store.claim(self.key, self.term)
            await self._restore(dict(parts))
            self._check_leads()
        except PenstockError as trouble:
            self.end(as_kafka_error(trouble))
            raise as_kafka_error(trouble) from trouble
        self._log = LogReader(
            self.core, self.partition, self.config.isolation, with_keys=self.config.key_ordered
        )
        self.core.trimmed(self.now_ms, self.partition.start_offset)
        self.partition.add_waiter(self._bell)
        self._after()

    async def _restore(self, parts: dict[bytes, bytes]) -> None:
        """From what is stored; GROUP_ID_NOT_FOUND if that is nothing, and this is no time to begin."""
        if parts and not is_of_another_log(self.partition, parts):
            self.core = QueuePartition.restore(settings_of(self.config), term=self.term, records=parts)
        elif parts:
            name = self.partition.name
            log.warning("%s on %s begins anew, as the log has", self.key.group_id, name)
            await self._begin(self.partition.start_offset, [part for part in parts if part != HEAD_SUFFIX])
            self._tell("queue.reset", first_offset=self.core.start_offset, reason="its log has begun anew")
        elif self.may_begin:
            first = await first_offset(self.key, self.partition, self._store, self.config, self._clock)
            await self._begin(first, ())
            self._tell("queue.created", first_offset=self.core.start_offset)
        else:
            raise unknown_queue(self.key.group_id)

    async def _begin(self, start_offset: int, gone: Sequence[bytes]) -> None:
        """`gone` are parts of the state of which nothing is true any more."""
        self.core = QueuePartition(settings_of(self.config), term=self.term, start_offset=start_offset)
        changes = self.core.take_changes()
        if changes is not None:
            await self._save([*changes.records, *((part, None) for part in gone)])
            self.core.saved(changes.number)

    def end(self, why: KafkaError) -> None:
        """No more is decided here. Whoever waits is told so."""
        if self.ended is not None:
            return
        self.ended = why
        self.partition.remove_waiter(self._bell)
        if self._timer is not None:
            self._timer.cancel()
        for future in self._acks:
            if not future.done():
                future.set_exception(why)
                future.exception()
        for consumer in (*self._waiting, *self._standing_by):
            consumer.set()
        self._on_end(self)

    async def settled(self) -> None:
        """Returns when all saves and burials that were begun have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self) -> None:
        """Returns when nothing is under way any more. A save whose partition nobody leads would be tried for long, and
        whoever waited for it has been told that it failed."""
        for task in (self._opening, *self._tasks):
            task.cancel()
        await asyncio.wait({self._opening, *self._tasks})

    def _check_leads(self) -> None:
        if self.ended is not None:
            raise self.ended
        self.partition.check_readable()
        if self.partition.term != self.term:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition.name}: a new term began")

    # --- what consumers ask for

    def deliver(
        self,
        member: str,
        max_records: int,
        max_bytes: int,
        *,
        whole_batches: bool = False,
        opened: bool = True,
        who: str = "",
        seat_ms: int | None = None,
    ) -> Delivery:
        """Records for a consumer, leased to it from now on; NOTHING if there are none, or somebody else has the seat.
        `opened`: they are going to be unpacked here, so there is a limit to what that makes of them.
        `who` is how others are told of it; `seat_ms`, how long its word holds the seat: by default until `release`."""
        self._check_leads()
        self._asked_at = self._loop.time()
        now_ms = self.now_ms
        self._tick(now_ms)
        if self.config.exclusive and not self._take_seat(member, who, now_ms, seat_ms):
            return NOTHING
        delivery = self._hand_out(now_ms, member, max_records, max_bytes, whole_batches, opened)
        self.tally.handed_out(delivery.acquired)
        self._after()
        return delivery

    def _hand_out(
        self, now_ms: int, member: str, max_records: int, max_bytes: int, whole_batches: bool, opened: bool
    ) -> Delivery:
        """Tries again where all that was acquired was in holes of the log."""
        others = len(self._waiting)
        for _ in range(HOLES_PER_TURN):
            self._log.ahead(now_ms, max_records * (others + 1))
            fair = max(1, -(-self.core.available_count // (others + 1)))
            acquired = self.core.acquire(now_ms, member, min(max_records, fair))
            if not acquired:
                break
            delivery = self._log.fetch(
                now_ms,
                member,
                acquired,
                max_bytes,
                whole_batches=whole_batches and not others,
                max_unpacked=UNPACKED_BYTES_MAX if opened else None,
            )
            if delivery.acquired:
                return delivery
        return NOTHING

    def acknowledge(self, member: str, batches: Sequence[Acknowledgement]) -> asyncio.Future[None]:
        """Done when it is durable; KafkaError when it is not. NotLeased: some ranges are not (any more) this member's;
        the others are durable by then."""
        self._check_leads()
        now_ms = self.now_ms
        self._tick(now_ms)
        self._seat.prolong(member, now_ms)
        future: asyncio.Future[None] = self._loop.create_future()
        refused: list[tuple[ErrorCode, Acknowledgement]] = []
        waits = False
        for batch in batches:
            result = self.core.acknowledge(
                now_ms, member, batch.first, batch.last, batch.kinds, delay_ms=batch.delay_ms, token=future
            )
            waits = waits or result.waits
            if result.error != ErrorCode.NONE:
                refused.append((result.error, batch))
            else:
                self.tally.settled(batch.first, batch.last, batch.kinds)
        wrong = not_leased(refused) if refused else None
        if waits:
            self._acks[future] = wrong
            future.add_done_callback(lambda done: self._acks.pop(done, None))
        else:
            _answer(future, wrong)
        self._after()
        return future

    async def accept_one(self, member: str, offset: int) -> None:
        """Says that a message is done which nobody was handed. NotLeased if it is done already, or somebody's."""
        await self._read_to(offset)
        now_ms = self.now_ms
        acquired = self.core.acquire(now_ms, member, self.config.max_record_locks, below=offset + 1)
        for given in acquired:
            if given.first < offset:
                self.core.hand_back(now_ms, member, given.first, min(given.last, offset - 1))
        await self.acknowledge(member, [Acknowledgement(offset, offset, bytes([AckKind.ACCEPT]))])

    async def _read_to(self, offset: int) -> None:
        """Learns of everything up to and with this offset, as far as the limits let it."""
        while True:
            self._check_leads()
            before = self.core.next_offset
            if before > offset:
                return
            self._log.ahead(self.now_ms, self.config.max_record_locks)
            if self.core.next_offset == before:
                return
            await asyncio.sleep(0)

    async def read_on(self, seconds: float) -> None:
        """Learns of what is in the log, for so long at most, and as far as the limits let it."""
        deadline = self._loop.time() + seconds
        while self._loop.time() < deadline:
            self._check_leads()
            before = self.core.next_offset
            self._log.ahead(self.now_ms, READ_ON_RECORDS, reads=1)  # nobody waits for it: others first
            self._after()
            if self.core.next_offset == before:
                return
            await asyncio.sleep(0)

    def has_delivery(self, member: str, offset: int, deliveries: int) -> bool:
        """Whether the member has this message in its hands by this very delivery, and not by an earlier or later one. A
        count that has reached its maximum (255) no longer tells the next delivery from the last."""
        runs = self.core.peek(offset, offset)
        return any(run.member == member and run.deliveries == deliveries for run in runs)

    def held_by(self, member: str) -> int:
        """How many messages are in its hands."""
        return self.core.held_by(member) if self.is_open else 0

    def other_holder(self, member: str) -> Holder | None:
        """Who has the seat of an exclusive queue, if it is somebody else."""
        return self._seat.other_than(member, self.now_ms) if self.config.exclusive else None

    @property
    def end_offset(self) -> Offset:
        """The first offset that this queue's consumers may not see."""
        return self.partition.end_for(self.config.isolation)

    @property
    def backlog(self) -> Backlog:
        """What nobody has looked at so far can be had, too."""
        core = self.core
        available = core.available_count + max(0, self.end_offset - core.next_offset)
        return Backlog(
            available, core.leased_count, core.deferred_count, core.waiting_count, core.dying_count
        )

    @property
    def workers(self) -> list[str]:
        return list(self._workers)

    @property
    def worker_count(self) -> int:
        """Consumers that are connected to it."""
        return len(self._workers)

    def attach(self, member: str) -> None:
        """A consumer stays until `release`."""
        self._workers[member] = None

    def release(self, member: str) -> None:
        """A consumer has gone: others get what it held."""
        self._workers.pop(member, None)
        if self.is_open:
            now_ms = self.now_ms
            self._tick(now_ms)
            self.core.release_member(now_ms, member)
            self._leave_seat(member)
            self._after()

    def _take_seat(self, member: str, who: str, now_ms: int, seat_ms: int | None) -> bool:
        is_taken = self._seat.take(member, who, now_ms, seat_ms)
        if is_taken and member != self._seated:
            self._seated = member
            self._tell("queue.consumer_changed", consumer=who or member)
        return is_taken

    def _leave_seat(self, member: str) -> None:
        self._seat.leave(member)
        if member == self._seated:
            self._seated = ""
            self._tell("queue.consumer_changed")

    def hand_back(self, member: str, first: int, last: int) -> bool:
        """What was handed out did not reach anybody, or nobody has begun it: it is as if it had not been. False if it
        is not (any more) this member's. Saved with what comes next, and not waited for: a crash before that leaves a
        count that is one too high, never a message that is lost."""
        self._check_leads()
        now_ms = self.now_ms
        self._tick(now_ms)
        taken = self.core.hand_back(now_ms, member, first, last)
        if taken:
            self.tally.handed_back(first, last)
        self._after()
        return taken

    def wait(self, consumer: Consumer, member: str = "") -> None:
        """Wakes the consumer when there may be something for it, those that came first before the others."""
        if self.other_holder(member) is not None:
            self._standing_by[consumer] = None
            self._set_timer()
        else:
            self._waiting[consumer] = None
            if self._log.is_behind:  # nothing else would wake anybody to read on
                self._loop.call_soon(self._rung)

    def forget(self, consumer: Consumer) -> None:
        self._waiting.pop(consumer, None)
        self._standing_by.pop(consumer, None)

    # --- inside

    def _after(self) -> None:
        """What follows from any change: saves, burials, the alarm, and those who wait."""
        self._start_saving()
        self._start_burying()
        self._let_in()
        self._set_timer()
        if self._waiting and self._has_more:
            self._wake()

    def _let_in(self) -> None:
        """The seat is free: whoever stands by and comes first has it."""
        if self._standing_by and self.other_holder("") is None:
            for consumer in self._standing_by:
                consumer.set()
            self._standing_by.clear()

    @property
    def _has_more(self) -> bool:
        """Whether anybody could be given anything: not when as much is leased as may be, or those who wait would wake
        each other for ever."""
        core = self.core
        if core.leased_count >= core.settings.max_leased:
            return False
        return core.available_count > 0 or (core.next_offset < self.end_offset and core.wants_more(1))

    def _wake(self) -> None:
        """As many as there are records for; whoever finds nothing comes back to the end of the line."""
        count = max(1, self.core.available_count)
        for consumer in list(self._waiting)[:count]:
            del self._waiting[consumer]
            consumer.set()

    def _rung(self) -> None:
        """Something was committed, or the lead has moved."""
        if self.ended is None and self._waiting:
            self._wake()

    def _tick(self, now_ms: int) -> None:
        """Before anything else is asked of the core at this time, which would let leases end uncounted."""
        if self.core.next_due_ms is not None and self.core.next_due_ms <= now_ms:
            held = self.core.leased_count
            self.core.tick(now_ms)
            self.tally.expired += held - self.core.leased_count

    def _set_timer(self) -> None:
        due_ms = self.core.next_due_ms
        if self._standing_by and self._seat.until_ms is not None:
            due_ms = self._seat.until_ms if due_ms is None else min(due_ms, self._seat.until_ms)
        if due_ms == self._timer_due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due_ms
        if due_ms is not None:
            self._timer = self._loop.call_later(max(0.0, (due_ms - self.now_ms) / 1000), self._alarm)

    def _alarm(self) -> None:
        self._timer_due_ms = None
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
            await self._save(records)
        except PenstockError as trouble:
            log.warning("%s on %s begins anew: %s", self.key.group_id, self.partition.name, trouble)
            self.end(as_kafka_error(trouble))
            return
        finally:
            self._saving = False
        for token in self.core.saved(number):
            if isinstance(token, asyncio.Future) and not token.done():
                _answer(token, self._acks.get(token))
        self._start_saving()

    async def _save(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._save_number += 1
        await self._store.save(self.key, self._fence, self._save_number, records)

    # --- dead letters

    def _start_burying(self) -> None:
        if not self._burying and self.ended is None and (dead := self.core.take_dead_letters()):
            self._burying = True
            self._spawn(self._bury_all(dead))

    async def _bury_all(self, dead: Sequence[DeadLetter]) -> None:
        try:
            for letter in dead:
                patience = RetryBackoff(f"dead letters of {self.partition.name} wait")
                while self.ended is None:
                    try:
                        await self._bury(self, letter)
                        self.core.dead_letters_copied(letter.first, letter.last)
                        self.tally.buried(letter)
                        break
                    except PenstockError as trouble:
                        await asyncio.sleep(patience.after(trouble))
        finally:
            self._burying = False
        if self.ended is None:
            self._after()

    def _tell(self, kind: str, **facts: object) -> None:
        topic, index = self.partition.name
        self._events.tell(kind, group=self.key.group_id, topic=topic, partition=index, **facts)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Bell(FetchWaiter):
    """Hears of every commit, for as long as it hangs on the partition."""

    __slots__ = ("_ring",)

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__(0, asyncio.get_running_loop().create_future())
        self._ring = ring

    def committed(self, size_bytes: int) -> None:
        self._ring()

    def wake(self) -> None:
        self._ring()


def _answer(future: asyncio.Future[None], wrong: KafkaError | None) -> None:
    if wrong is None:
        future.set_result(None)
    else:
        future.set_exception(wrong)
        future.exception()
