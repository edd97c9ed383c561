"""The desk of one node (see `desk`): messages are taken, settled and looked at on the partitions that it leads."""

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from uuid import UUID

from penstock.batch import first_batches, iter_headers, unpacked_total
from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError, PenstockError, StorageError
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.messages import (
    Ahead,
    At,
    Look,
    One,
    Returned,
    Schedule,
    Seen,
    SeenRun,
    Taken,
    Verdict,
    Verdicts,
    Wish,
)
from penstock.node.queues.values import Acknowledgement, Consumer, NotLeased
from penstock.node.replication.partition_table import PartitionTable
from penstock.queue import QueueKey
from penstock.types import NodeId, Offset

WAIT_MS_MAX = 5_000
"""One question between nodes waits so long at most; whoever wants to wait longer asks again."""
OPENING_SECONDS = 1.0
PEEK_BYTES = 1024 * 1024
PEEK_UNPACKED_BYTES = 4 * 1024 * 1024
"""What that may unpack to, by what the batches say, beside one that is larger."""
PEEK_RUNS_MAX = 1_000
READ_ON_SECONDS = 2.0
"""For who asks what is scheduled: a few hundred thousand messages. The rest is read when it is asked again."""
OWN_NAME = "penstock"
"""The consumer in whose name the broker itself settles."""


class LocalQueues:
    """Answers nodes, this one and others. Every method is called on the event loop."""

    def __init__(self, *, state: ClusterState, partitions: PartitionTable, queues: QueueManager) -> None:
        self._state = state
        self._partitions = partitions
        self._queues = queues
        self._turn = itertools.count()
        self._waiting: dict[tuple[int, int], Consumer] = {}
        """Who waits here for a node's ticket."""

    @property
    def is_waited_at(self) -> bool:
        return bool(self._waiting)

    # --- taking

    async def take(self, sender: NodeId, wish: Wish) -> list[Taken]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wish.wait_ms, WAIT_MS_MAX) / 1000
        consumer = Consumer()
        if wish.wait_ms > 0:
            self._waiting[sender, wish.ticket] = consumer
        try:
            while True:
                drivers, troubles = await self._drivers(wish)
                taken = self._take_here(wish, drivers)
                if not drivers and troubles:
                    raise troubles[0]
                if taken or loop.time() >= deadline:
                    return taken
                if wish.wait_ms > 0 and (sender, wish.ticket) not in self._waiting:
                    return []
                if not await _woken(consumer, drivers, wish.consumer, deadline):
                    return []
        finally:
            self._waiting.pop((sender, wish.ticket), None)

    async def _drivers(self, wish: Wish) -> tuple[list[tuple[At, QueueDriver]], list[PenstockError]]:
        """POLICY_VIOLATION if somebody else has one of them, and this one is not content to stand by."""
        found: list[tuple[At, QueueDriver]] = []
        absent: list[At] = []
        for place in wish.places:
            driver = self._open_driver(wish.group_id, place)
            if driver is None:
                absent.append(place)
            else:
                found.append((place, driver))
        opened, troubles = await self._opened(wish.group_id, absent)
        found += opened
        for _, driver in found:
            other = driver.other_holder(wish.consumer)
            if other is not None and not wish.standby:
                raise held_by_other(driver, str(other))
        if len(found) > 1:
            first = next(self._turn) % len(found)
            found = found[first:] + found[:first]
        return found, troubles

    def _open_driver(self, group_id: str, place: At) -> QueueDriver | None:
        driver = self._queues.find(QueueKey(group_id, UUID(bytes=place.topic_id), place.partition))
        if driver is None or driver.config != self._state.group_config(group_id):
            return None
        return driver

    async def _opened(
        self, group_id: str, places: Sequence[At]
    ) -> tuple[list[tuple[At, QueueDriver]], list[PenstockError]]:
        """Queues that have to be opened first. One that does not come must not hold up the others for long."""
        found: list[tuple[At, QueueDriver]] = []
        troubles: list[PenstockError] = []
        tasks = {asyncio.ensure_future(self._driver(group_id, place, begin=True)): place for place in places}
        if not tasks:
            return found, troubles
        done, late = await asyncio.wait(tasks, timeout=OPENING_SECONDS)
        for task in late:
            task.add_done_callback(lambda one: one.cancelled() or one.exception())
            troubles.append(leaderless(group_id))
        for task in done:
            trouble = task.exception()
            if isinstance(trouble, PenstockError):
                troubles.append(trouble)
            else:
                found.append((tasks[task], task.result()))
        return found, troubles

    def _take_here(self, wish: Wish, drivers: Sequence[tuple[At, QueueDriver]]) -> list[Taken]:
        taken: list[Taken] = []
        left, room = wish.max_records, wish.max_bytes
        for place, driver in drivers:
            if left <= 0 or room <= 0:
                break
            try:
                delivery = driver.deliver(wish.consumer, left, room, who=wish.who, seat_ms=driver.lease_ms)
            except PenstockError:
                continue  # it has just ended: the next look finds who leads now
            if delivery.acquired:
                acquired = [(one.first, one.last, one.deliveries) for one in delivery.acquired]
                taken.append(Taken(place, delivery.records, acquired, driver.lease_ms, driver.life))
                left -= taken[-1].count
                room -= len(delivery.records)
        return taken

    async def _driver(self, group_id: str, place: At, *, begin: bool = False) -> QueueDriver:
        """Who takes messages may `begin` a queue. Who speaks of them does not bring one back that was deleted."""
        topic_id = UUID(bytes=place.topic_id)
        topic = self._state.topic_by_id(topic_id)
        if topic is None or not 0 <= place.partition < topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic here has the id {topic_id}")
        if topic.internal:
            raise internal_topic(topic.name)
        partition = self._partitions.get(topic.name, place.partition)
        return await self._queues.driver(group_id, topic_id, partition, begin=begin)

    def stop_waiting(self, node: int, ticket: int) -> None:
        if (consumer := self._waiting.pop((node, ticket), None)) is not None:
            consumer.set()

    async def hand_back(self, sender: NodeId, back: Returned) -> None:
        driver = await self._driver(back.group_id, back.place)
        for first, last in back.ranges:
            driver.hand_back(back.consumer, first, last)

    # --- settling and looking

    async def settle(self, sender: NodeId, verdicts: Verdicts) -> list[tuple[int, int, str]]:
        try:
            driver = await self._driver(verdicts.group_id, verdicts.place)
        except KafkaError as refused:
            if refused.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            message = (
                f"there is no queue {verdicts.group_id!r} on this topic, or no more: all its leases are over"
            )
            return [(row.offset, ErrorCode.INVALID_RECORD_STATE, message) for row in verdicts.rows]
        rows, late = _in_hand(driver, verdicts, verdicts.rows)
        if not rows:
            return late
        try:
            await driver.acknowledge(verdicts.consumer, list(_ranges(rows)))
        except NotLeased as refused:
            wrong = {offset for first, last in refused.ranges for offset in range(first, last + 1)}
            rows = [row for row in rows if row.offset in wrong]
        else:
            return late
        return [*late, *await self._settle_singly(driver, verdicts, rows)]

    async def _settle_singly(
        self, driver: QueueDriver, verdicts: Verdicts, rows: Sequence[Verdict]
    ) -> list[tuple[int, int, str]]:
        """A range is taken as a whole or not at all: what of these is the consumer's must be found one by one."""
        rows, late = _in_hand(driver, verdicts, rows)  # again: others had their turn since
        single = [_acknowledgement(row, row.offset) for row in rows]
        try:
            await driver.acknowledge(verdicts.consumer, single)
        except NotLeased as refused:
            message = "it is not, or no more, leased to this consumer"
            return [*late, *((first, refused.code, message) for first, _ in refused.ranges)]
        return late

    async def peek(self, sender: NodeId, look: Look) -> Seen:
        topic = self._state.topic_by_id(UUID(bytes=look.place.topic_id))
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no such topic here")
        partition = self._partitions.get(topic.name, look.place.partition)
        partition.check_readable()
        isolation = self._state.group_config(look.group_id).isolation
        first, end = max(look.first, partition.start_offset), partition.end_for(isolation)
        driver = None if look.is_new else await self._driver(look.group_id, look.place)
        runs = list(_undone(driver, first, end, look.max_records))
        if not runs:
            return Seen([], b"", -1)
        data = bytearray()
        seen: list[SeenRun] = []
        covered = unpacked = 0
        try:
            for run in runs:
                if run.last >= covered and len(data) < PEEK_BYTES:
                    part = partition.read(
                        Offset(max(run.first, covered)),
                        PEEK_BYTES - len(data),
                        end=end,
                        at_least_one=not data,
                    )
                    part = first_batches(part, PEEK_UNPACKED_BYTES - unpacked, at_least_one=not data)
                    unpacked += unpacked_total(part)
                    data += part
                    covered = max((head.next_offset for _, head in iter_headers(part)), default=covered)
                if covered <= run.first:
                    break
                last = min(run.last, covered - 1)
                seen.append(SeenRun(run.first, last, *_rest(run)))
        except StorageError as trouble:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)) from trouble
        at = seen[-1].last + 1 if seen else runs[0].first
        return Seen(seen, bytes(data), at if at < end else -1)

    async def scheduled(self, sender: NodeId, ahead: Ahead) -> Schedule:
        driver = await self._driver(ahead.group_id, ahead.place)
        await driver.read_on(READ_ON_SECONDS)
        core = driver.core
        unread = max(0, driver.end_offset - core.next_offset)
        return Schedule(core.deferred_count, unread, core.scheduled(ahead.max_records))

    async def accept(self, sender: NodeId, one: One) -> None:
        driver = await self._driver(one.group_id, one.place)
        await driver.accept_one(OWN_NAME, one.offset)


def internal_topic(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: a queue cannot be on it")


def held_by_other(driver: QueueDriver, holder: str) -> KafkaError:
    topic, partition = driver.partition.name
    message = (
        f"queue {driver.key.group_id!r} has one consumer at a time on {topic}-{partition} (penstock.queue.exclusive): "
        f"{holder} has it; stand by, or come again when that one has gone"
    )
    return KafkaError(ErrorCode.POLICY_VIOLATION, message)


async def _woken(
    consumer: Consumer, drivers: Sequence[tuple[At, QueueDriver]], member: str, deadline: float
) -> bool:
    """Whether there may be something, before the deadline."""
    consumer.clear()
    for _, driver in drivers:
        driver.wait(consumer, member)
    try:
        async with asyncio.timeout_at(deadline):
            await consumer.wait()
    except TimeoutError:
        return False
    finally:
        for _, driver in drivers:
            driver.forget(consumer)
    return True


def _undone(driver: QueueDriver | None, first: int, end: int, most: int) -> Iterable[SeenRun]:
    """Runs that are not done, no more than so many messages; what nobody has read yet is available."""
    left = most
    known = first
    if driver is not None:
        core = driver.core
        known = max(core.next_offset, first)
        for run in core.peek(first, known - 1, PEEK_RUNS_MAX) if known > first else ():
            if left <= 0:
                return
            last = min(run.last, run.first + left - 1)
            left -= last - run.first + 1
            yield SeenRun(run.first, last, run.state.name.lower(), run.deliveries, run.member, run.until_ms)
        known = max(known, core.start_offset)
    if left > 0 and known < end:
        yield SeenRun(known, min(end - 1, known + left - 1), "available", 0, None, None)


def _rest(run: SeenRun) -> tuple[str, int, str | None, int | None]:
    return run.state, run.deliveries, run.consumer, run.until_ms


def _in_hand(
    driver: QueueDriver, verdicts: Verdicts, rows: Sequence[Verdict]
) -> tuple[list[Verdict], list[tuple[int, int, str]]]:
    """What is the consumer's by the delivery that it speaks of, and what to say of the rest: a name alone does not tell
    a lease from an earlier one of the same message. To be acknowledged before anybody else has a turn."""
    by = verdicts.by
    if by is None:
        return list(rows), []
    mine: list[Verdict] = []
    late: list[tuple[int, int, str]] = []
    for row in rows:
        if by.life == driver.life and driver.has_delivery(verdicts.consumer, row.offset, by.deliveries):
            mine.append(row)
        else:
            message = f"delivery {by.deliveries} of it is over: it is settled, waits, or was handed out again"
            late.append((row.offset, ErrorCode.INVALID_RECORD_STATE, message))
    return mine, late


def _ranges(rows: Sequence[Verdict]) -> Iterable[Acknowledgement]:
    """Neighbours of which the same is said, as one."""
    ordered = sorted(rows, key=lambda row: row.offset)
    start = 0
    for at in range(1, len(ordered) + 1):
        before = ordered[at - 1]
        if at < len(ordered) and ordered[at] == Verdict(before.offset + 1, before.kind, before.delay_ms):
            continue
        yield _acknowledgement(ordered[start], before.offset)
        start = at


def _acknowledgement(row: Verdict, last: int) -> Acknowledgement:
    return Acknowledgement(row.offset, last, bytes([row.kind]), row.delay_ms)


def leaderless(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads a partition of {group_id!r} now")
