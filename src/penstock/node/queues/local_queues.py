"""The queues on the partitions that this node leads, for `QueueRouter` of this and of other nodes."""

from collections.abc import Iterable, Sequence
from functools import partial

from penstock.batch import first_batches, iter_headers, unpacked_total
from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError, NotExecuted, StorageError
from penstock.node.calls import Calls, methods
from penstock.node.calls.messages.queues import (
    AcceptRequest,
    MessageSettlement,
    PeekedRange,
    PeekRequest,
    PeekResult,
    ReturnRequest,
    ScheduledRequest,
    ScheduledResult,
    SettleRequest,
    SettleResult,
)
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.failures import Failure
from penstock.node.queues.local_receiver import LocalReceiver
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.values import NotLeased
from penstock.node.replication.partition_table import PartitionTable
from penstock.queue.values import Acknowledgement
from penstock.types import Caller, GroupId, Offset

PEEK_BYTES = 1024 * 1024
PEEK_UNPACKED_BYTES = 4 * 1024 * 1024
"""The unpacked size of all batches of one response, by their headers; a single larger batch is read alone."""
PEEK_RUNS_MAX = 1_000
OWN_NAME = "penstock"
"""The consumer name under which the broker itself settles messages."""


class LocalQueues:
    """Answers requests of this and of other nodes. Every method is called on the event loop."""

    def __init__(
        self, *, state: ClusterState, partitions: PartitionTable, queues: QueueManager, calls: Calls
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._queues = queues
        self.receiver = LocalReceiver(
            state=state, queues=queues, open_driver=partial(self._driver, begin=True), calls=calls
        )
        calls.serve(methods.RETURN, self._return)
        calls.serve(methods.SETTLE, self._settle)
        calls.serve(methods.PEEK, self._peek)
        calls.serve(methods.ACCEPT, self._accept)
        calls.serve(methods.LIST_SCHEDULED, self._list_scheduled)

    async def _driver(self, group_id: str, partition: GroupId, *, begin: bool = False) -> QueueDriver:
        """`begin`: a consumer that receives messages may create the queue. A request that only mentions a deleted queue
        does not recreate it. Errors are NotExecuted: without a driver nothing has been done."""
        topic = self._state.topic_by_id(partition.topic_id)
        if topic is None or not 0 <= partition.partition < topic.partitions:
            message = f"this node knows no topic with the id {partition.topic_id}"
            raise NotExecuted(ErrorCode.UNKNOWN_TOPIC_ID, message)
        if topic.internal:
            raise internal_topic(topic.name)
        try:
            replica = self._partitions.get(topic.name, partition.partition)
            return await self._queues.driver(group_id, partition.topic_id, replica, begin=begin)
        except KafkaError as refused:
            has_others = len(topic.assignments[partition.partition].shown) > 1
            is_elsewhere = refused.code == ErrorCode.FENCED_STATE_EPOCH or (
                refused.code == ErrorCode.KAFKA_STORAGE_ERROR and has_others
            )  # there is a later leader, or will be one, which is to be asked
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_elsewhere else refused.code
            raise NotExecuted(code, refused.message) from refused

    async def _return(self, caller: Caller, request: ReturnRequest) -> None:
        driver = await self._driver(request.group_id, request.partition)
        driver.hand_back(request.consumer, request.ranges)

    # --- settling and peeking

    async def _settle(self, caller: Caller, request: SettleRequest) -> SettleResult:
        try:
            driver = await self._driver(request.group_id, request.partition)
        except KafkaError as refused:
            if refused.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            message = (
                f"there is no queue {request.group_id!r} on this topic (any more): all its leases are over"
            )
            return SettleResult(
                [(row.offset, ErrorCode.INVALID_RECORD_STATE, message) for row in request.rows]
            )
        rows, late = _held(driver, request, request.rows)
        if not rows:
            return SettleResult(late)
        try:
            await driver.acknowledge(request.consumer, list(_ranges(rows)), _failures(rows))
        except NotLeased as refused:
            wrong = {offset for first, last in refused.ranges for offset in range(first, last + 1)}
            rows = [row for row in rows if row.offset in wrong]
        else:
            return SettleResult(late)
        return SettleResult([*late, *await self._settle_singly(driver, request, rows)])

    async def _settle_singly(
        self, driver: QueueDriver, request: SettleRequest, rows: Sequence[MessageSettlement]
    ) -> list[tuple[int, int, str]]:
        """A range is settled as a whole or not at all, so the messages that the consumer holds are found one by one."""
        rows, late = _held(driver, request, rows)  # again: other requests had their turn since
        single = [_acknowledgement(row, row.offset) for row in rows]
        try:
            await driver.acknowledge(request.consumer, single, _failures(rows))
        except NotLeased as refused:
            message = "it is not (any more) leased to this consumer"
            return [*late, *((first, refused.code, message) for first, _ in refused.ranges)]
        return late

    async def _peek(self, caller: Caller, request: PeekRequest) -> PeekResult:
        topic = self._state.topic_by_id(request.partition.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "this node does not know the topic")
        partition = self._partitions.get(topic.name, request.partition.partition)
        partition.check_readable()
        isolation = self._state.group_config(request.group_id).isolation
        first, end = max(request.first, partition.start_offset), partition.end_for(isolation)
        driver = None if request.is_new else await self._driver(request.group_id, request.partition)
        if driver is not None:
            await driver.read_on()
        runs = list(_undone(driver, first, end, request.max_records))
        if not runs:
            return PeekResult([], b"", -1)
        data = bytearray()
        seen: list[PeekedRange] = []
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
                seen.append(PeekedRange(run.first, last, *_rest(run)))
        except StorageError as problem:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem)) from problem
        at = seen[-1].last + 1 if seen else runs[0].first
        return PeekResult(seen, bytes(data), at if at < end else -1)

    async def _list_scheduled(self, caller: Caller, request: ScheduledRequest) -> ScheduledResult:
        driver = await self._driver(request.group_id, request.partition)
        await driver.read_on()
        core = driver.core
        unread = core.unread_count(driver.end_offset)
        return ScheduledResult(core.deferred_count, unread, core.scheduled(request.max_records))

    async def _accept(self, caller: Caller, request: AcceptRequest) -> None:
        driver = await self._driver(request.group_id, request.partition)
        await driver.accept_one(OWN_NAME, request.offset)


def internal_topic(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: a queue cannot be on it")


def _undone(driver: QueueDriver | None, first: int, end: int, most: int) -> Iterable[PeekedRange]:
    """Ranges that are not done, no more than `most` messages; records that the queue has not read are available."""
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
            yield PeekedRange(
                run.first, last, run.state.name.lower(), run.deliveries, run.member, run.until_ms
            )
        known = max(known, core.start_offset)
    if left > 0 and known < end:
        yield PeekedRange(known, min(end - 1, known + left - 1), "available", 0, None, None)


def _rest(run: PeekedRange) -> tuple[str, int, str | None, int | None]:
    return run.state, run.deliveries, run.consumer, run.until_ms


def _held(
    driver: QueueDriver, request: SettleRequest, rows: Sequence[MessageSettlement]
) -> tuple[list[MessageSettlement], list[tuple[int, int, str]]]:
    """The messages that the consumer holds by the delivery that it names, and the refusals of the others: a consumer's
    name alone does not tell a lease from an earlier one of the same message. The result is valid until other requests
    have their turn."""
    delivery = request.delivery
    if delivery is None:
        return list(rows), []
    mine: list[MessageSettlement] = []
    late: list[tuple[int, int, str]] = []
    for row in rows:
        is_held = driver.has_delivery(request.consumer, row.offset, delivery.deliveries)
        if is_held and delivery.driver_id == driver.driver_id:
            mine.append(row)
        else:
            message = (
                f"delivery {delivery.deliveries} of it is over: it was settled, released or delivered again"
            )
            late.append((row.offset, ErrorCode.INVALID_RECORD_STATE, message))
    return mine, late


def _ranges(rows: Sequence[MessageSettlement]) -> Iterable[Acknowledgement]:
    """Adjacent offsets with the same settlement become one range."""
    ordered = sorted(rows, key=lambda row: row.offset)
    start = 0
    for at in range(1, len(ordered) + 1):
        before = ordered[at - 1]
        wanted = before.offset + 1, before.kind, before.delay_ms
        if at < len(ordered) and (ordered[at].offset, ordered[at].kind, ordered[at].delay_ms) == wanted:
            continue
        yield _acknowledgement(ordered[start], before.offset)
        start = at


def _acknowledgement(row: MessageSettlement, last: int) -> Acknowledgement:
    return Acknowledgement(row.offset, last, bytes([row.kind]), row.delay_ms)


def _failures(rows: Sequence[MessageSettlement]) -> dict[int, Failure]:
    return {row.offset: Failure(*row.failure) for row in rows if row.failure is not None}
