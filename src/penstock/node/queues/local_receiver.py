"""Delivers the messages of queues on the partitions that this node leads, to callers of `QueueRouter` on any node.

A request may wait for messages, and may name thousands of partitions. It waits at all of them, and when one of them has
messages it asks only that one. Looking at many partitions is done in slices, so that other requests have their turn.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError, NotExecuted, PenstockError
from penstock.node.calls import Calls, methods
from penstock.node.calls.messages.queues import CancelReceive, ReceivedBatch, ReceiveRequest
from penstock.node.queues.consumers import ConsumerIdentity, Interface, bounded_id
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.values import Consumer
from penstock.node.queues.waiting_consumers import woken
from penstock.queue import QueueKey
from penstock.types import Caller, GroupId

OPENING_SECONDS = 1.0
OPENED_AT_ONCE = 32
RETRY_MS = 5_000
"""A request waits so long at most if some of its partitions could not be opened: they may have other leaders."""
PARTITIONS_PER_TURN = 50
"""Partitions that are asked before other work gets its turn; each takes some 50 µs."""

Drivers = Sequence[tuple[GroupId, QueueDriver]]
OpenDriver = Callable[[str, GroupId], Awaitable[QueueDriver]]
"""The driver of a queue on a partition; PenstockError if there can be none now."""


class LocalReceiver:
    """Answers RECEIVE and CANCEL_RECEIVE. Every method is called on the event loop."""

    def __init__(
        self, *, state: ClusterState, queues: QueueManager, open_driver: OpenDriver, calls: Calls
    ) -> None:
        self._state = state
        self._queues = queues
        self._open_driver = open_driver
        self._turn = itertools.count()
        self._waiting: dict[int, Consumer] = {}
        """Consumers that wait here, by the `wait_id` of their request."""
        calls.serve(methods.RECEIVE, self._receive)
        calls.serve(methods.CANCEL_RECEIVE, self._cancel_receive)

    @property
    def waiting_count(self) -> int:
        """How many consumers wait here."""
        return len(self._waiting)

    def _cancel_receive(self, caller: Caller, request: CancelReceive) -> None:
        if (consumer := self._waiting.pop(request.wait_id, None)) is not None:
            consumer.set()

    async def _receive(self, caller: Caller, request: ReceiveRequest) -> list[ReceivedBatch]:
        deadline = asyncio.get_running_loop().time() + request.wait_ms / 1000
        consumer = Consumer()
        if request.wait_ms > 0:
            self._waiting[request.wait_id] = consumer
        try:
            while (received := await self._look(caller, request, consumer, deadline)) is None:
                pass
            return received
        finally:
            self._waiting.pop(request.wait_id, None)

    async def _look(
        self, caller: Caller, request: ReceiveRequest, consumer: Consumer, deadline: float
    ) -> list[ReceivedBatch] | None:
        """Asks all partitions, and waits. None: look again, because a driver has ended or has other settings now."""
        loop = asyncio.get_running_loop()
        consumer.clear()
        drivers, problems = await self._drivers(request)
        if not drivers and problems:
            raise problems[0]
        await _note_seen(caller, request, drivers)
        if self._is_cancelled(request):  # while queues were opened; its messages would be leased to nobody
            return []
        received = await _deliver(request, drivers)
        until = min(deadline, loop.time() + RETRY_MS / 1000) if problems else deadline
        while not received and loop.time() < until and not self._is_cancelled(request):
            if not await woken(consumer, [driver for _, driver in drivers], request.consumer, until):
                break
            asked = [(place, driver) for place, driver in drivers if driver in consumer.woken_by]
            consumer.clear()
            if not all(self._is_current(request, place, driver) for place, driver in asked):
                return None
            received = await _deliver(request, asked)
        return received

    def _is_cancelled(self, request: ReceiveRequest) -> bool:
        return request.wait_ms > 0 and request.wait_id not in self._waiting

    # --- drivers

    async def _drivers(self, request: ReceiveRequest) -> tuple[Drivers, list[PenstockError]]:
        """POLICY_VIOLATION if another consumer has one of them, and this one does not want to stand by; or if the queue
        does not admit it."""
        found: list[tuple[GroupId, QueueDriver]] = []
        absent: list[GroupId] = []
        for count, partition in enumerate(request.partitions, 1):
            driver = self._find(request.group_id, partition)
            if driver is None:
                absent.append(partition)
            else:
                _check_admits(request, driver)
                found.append((partition, driver))
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        problems: list[PenstockError] = []
        if absent:
            opened, problems = await self._opened(request.group_id, absent)
            for _, driver in opened:
                _check_admits(request, driver)
            found += opened
        if len(found) > 1:
            first = next(self._turn) % len(found)
            found = found[first:] + found[:first]
        return found, problems

    def _find(self, group_id: str, partition: GroupId) -> QueueDriver | None:
        driver = self._queues.find(QueueKey(group_id, *partition))
        if driver is None or driver.config != self._state.group_config(group_id):
            return None
        return driver

    def _is_current(self, request: ReceiveRequest, partition: GroupId, driver: QueueDriver) -> bool:
        """Whether the driver still serves, with the settings of the queue."""
        if self._find(request.group_id, partition) is not driver:
            return False
        _check_admits(request, driver)
        return True

    async def _opened(
        self, group_id: str, partitions: Iterable[GroupId]
    ) -> tuple[list[tuple[GroupId, QueueDriver]], list[PenstockError]]:
        """Opens queues. One that takes long must not hold up the others for more than OPENING_SECONDS."""
        found: list[tuple[GroupId, QueueDriver]] = []
        problems: list[PenstockError] = []
        remaining = deque(partitions)
        unopened = len(remaining)

        async def open_in_turn() -> None:
            nonlocal unopened
            while remaining:
                partition = remaining.popleft()
                try:
                    found.append((partition, await self._open_driver(group_id, partition)))
                except PenstockError as problem:
                    problems.append(problem)
                unopened -= 1

        tasks = [asyncio.ensure_future(open_in_turn()) for _ in range(min(OPENED_AT_ONCE, unopened))]
        done, late = await asyncio.wait(tasks, timeout=OPENING_SECONDS)
        remaining.clear()
        for task in done:
            task.result()
        for task in late:
            task.add_done_callback(lambda one: one.cancelled() or one.exception())
        late_ones = [leaderless(group_id)] if unopened else []
        return list(found), [*problems, *late_ones]


async def _deliver(request: ReceiveRequest, drivers: Drivers) -> list[ReceivedBatch]:
    """Messages of the first of these partitions that have some."""
    received: list[ReceivedBatch] = []
    records_left, bytes_left = request.max_records, request.max_bytes
    for count, (partition, driver) in enumerate(drivers, 1):
        if records_left <= 0 or bytes_left <= 0:
            break
        try:
            delivery = driver.deliver(
                request.consumer, records_left, bytes_left, client=request.client, hold_ms=driver.lease_ms
            )
        except PenstockError:
            continue  # the driver has just ended: the next round finds the new leader
        if delivery.acquired:
            acquired = [(one.first, one.last, one.deliveries) for one in delivery.acquired]
            received.append(
                ReceivedBatch(partition, delivery.records, acquired, driver.lease_ms, driver.driver_id)
            )
            records_left -= received[-1].count
            bytes_left -= len(delivery.records)
        if count % PARTITIONS_PER_TURN == 0:
            if received:  # a caller that goes away during a pause would keep their leases
                break
            await asyncio.sleep(0)
    return received


async def _note_seen(caller: Caller, request: ReceiveRequest, drivers: Drivers) -> None:
    """Lists the consumer. Requests without a name are listed together, by address and user agent."""
    for count, (_, driver) in enumerate(drivers, 1):
        if driver.is_open:
            now_ms = driver.now_ms
            identity = ConsumerIdentity.of(
                Interface.HTTP,
                request.consumer
                if request.is_named
                else bounded_id(f"http {caller.host} {caller.client_id}"),
                name=request.consumer if request.is_named else caller.client_id,
                address=caller.host,
                since_ms=now_ms,
            )
            driver.consumers.seen(request.consumer, identity, now_ms, driver.held_by)
        if count % PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)


def _check_admits(request: ReceiveRequest, driver: QueueDriver) -> None:
    driver.check_admits(request.consumer)
    other = driver.other_holder(request.consumer)
    if other is not None and not request.standby:
        raise held_by_other(driver, str(other))


def held_by_other(driver: QueueDriver, holder: str) -> KafkaError:
    topic, partition = driver.partition.name
    message = (
        f"queue {driver.key.group_id!r} has one consumer at a time on {topic}-{partition} (penstock.queue.exclusive): "
        f"{holder} has it; ask as a standby, or again when that consumer has gone"
    )
    return KafkaError(ErrorCode.POLICY_VIOLATION, message)


def leaderless(group_id: str) -> NotExecuted:
    return NotExecuted(ErrorCode.LEADER_NOT_AVAILABLE, f"no node leads a partition of {group_id!r} now")
