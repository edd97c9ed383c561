"""Fetch: sends stored batches to readers, at once when there are enough, or when enough have been committed.

Incremental fetch sessions are declined as the protocol provides: every response has session id 0, which tells the
client to go on with full requests.

A response is no larger than the memory that clients may still take (`node.memory`). If not even one batch fits, the
request waits for its turn; while it waits, for memory or for records, it holds nothing that it has read.

Bytes that come from the disk are compared with their checksums (`log.checked_read`): not all clients do it. Wrong ones
are reported as a scrub reports them. The client of a partition with other replicas gets KAFKA_STORAGE_ERROR: it asks
again, and another replica will lead. Without one the bytes are lost, and the client gets CORRUPT_MESSAGE, which it
tells its application.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from uuid import UUID

from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.leading import Hints
from penstock.kafka.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from penstock.node import FetchWaiter, Partition
from penstock.node.access import Quotas
from penstock.node.limited_log import LimitedLog
from penstock.security.quotas import QuotaKind
from penstock.types import Caller, Isolation, Offset

log = logging.getLogger("penstock.kafka")
_warnings = LimitedLog(log, time.monotonic)

NO_SESSION = 0
FULL_REQUEST_EPOCHS_MAX = 0
"""Epochs 0 (open a session) and -1 (without one) come with all partitions, whatever session id stands beside them."""
NO_OFFSET = -1
HINTS_SINCE_VERSION = 16
"""Responses can carry a leader since version 12, but only since 16 its address; Kafka gives none before."""


def fetch(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Coroutine[None, None, FetchResponse]:
    if request.session_epoch > FULL_REQUEST_EPOCHS_MAX:
        return FetchResponse(
            error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=NO_SESSION, responses=[]
        )
    if _replica_id(request) >= 0:
        return _refuse_replica(context, request)
    attempt = _Attempt(context, request)
    attempt.read()
    if attempt.lacks_memory:
        return _wait_for_memory(attempt)
    if attempt.enough or request.max_wait_ms <= 0:
        return attempt.response
    return _wait_and_read(attempt)


def _replica_id(request: FetchRequest) -> int:
    return request.replica_state.replica_id if request.replica_state is not None else request.replica_id


def _refuse_replica(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Nodes replicate over their own port. A client that fetches as a replica must not believe that it is one: acks
    would wait for it, and records that it reads might never be committed."""
    peer, replica_id = context.connection.peer, _replica_id(request)
    _warnings.warn("replica", f"{peer} fetches as replica {replica_id}, and only consumers may fetch here")
    return FetchResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        session_id=NO_SESSION,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[_refused(row.partition, ErrorCode.INVALID_REQUEST) for row in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _refused(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=NO_OFFSET,
        aborted_transactions=None,
        records=b"",
    )


async def _wait_and_read(attempt: "_Attempt") -> FetchResponse:
    attempt.drop()
    if not attempt.outdated:  # this starts a turn of the loop after the first read
        await attempt.wait()
    attempt.read()
    return await _wait_for_memory(attempt)


async def _wait_for_memory(attempt: "_Attempt") -> FetchResponse:
    while attempt.lacks_memory:
        await attempt.wait_for_memory()
        attempt.read()
    return attempt.response


def _within_quota(quotas: Quotas, caller: Caller, limit: int) -> int:
    """A larger response would be throttled by itself, and never be sent."""
    most = quotas.most_at_once(QuotaKind.CONSUMER_BYTE_RATE, caller)
    return limit if most is None else min(limit, max(1, int(most)))


class _Attempt:
    """Reads all partitions of one request, as often as needed."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self._context = context
        self._request = request
        self._isolation = Isolation.from_wire(request.isolation_level)
        self._hints = Hints(context) if context.api_version >= HINTS_SINCE_VERSION else None
        self._partitions: list[Partition] = []
        self._ends: list[Offset] = []
        self._bytes_left = 0
        self._first_max = 0
        """The first batch is returned up to this size, also if it is larger than `_bytes_left`."""
        self._lacking = 0
        """The size of the first batch, if there is no memory for it."""
        self._reserved = 0
        self.response = FetchResponse(error_code=ErrorCode.NONE, session_id=NO_SESSION, responses=[])
        self.bytes = 0
        self._failed = False

    @property
    def enough(self) -> bool:
        """Errors are answered at once, as well as requests that name nothing to wait for."""
        return self._failed or not self._partitions or self.bytes >= self._request.min_bytes

    @property
    def outdated(self) -> bool:
        """Whether a partition has new records, or was closed, since it was read: a wait would miss that."""
        return any(
            partition.end_for(self._isolation) != seen or partition.closed
            for partition, seen in zip(self._partitions, self._ends, strict=True)
        )

    @property
    def lacks_memory(self) -> bool:
        """Whether there are records for which there is no memory. An error is answered at once, without records."""
        return self._lacking > 0 and self.bytes == 0 and not self._failed

    def read(self) -> None:
        memory = self._context.memory
        limit = self._context.node.config.limits.fetch_max_bytes
        quotas = self._context.node.quotas
        if quotas.in_force:
            limit = _within_quota(quotas, self._context.caller, limit)
        self._partitions = []
        self._ends = []
        self._bytes_left = min(self._request.max_bytes, limit, self._reserved or memory.budget.room)
        self._first_max = self._reserved or memory.budget.free
        self._lacking = 0
        self.bytes = 0
        self.response.responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    self._read_one(topic.topic, topic.topic_id, wanted) for wanted in topic.partitions
                ],
            )
            for topic in self._request.topics
        ]
        if self._hints is not None:
            self.response.node_endpoints = [
                NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
                for one in self._hints.leaders()
            ]
        memory.resize(memory.bytes - self._reserved + self.bytes)
        self._reserved = self.bytes

    def drop(self) -> None:
        """Lets go of the records: they will be read again."""
        self.response.responses = []
        self._context.memory.give_back(self._reserved)
        self._reserved = 0

    async def wait_for_memory(self) -> None:
        """Waits until there is memory for one batch. The client waits longer than it asked for, but gets it."""
        memory = self._context.memory
        count = max(self._lacking, memory.budget.small)
        await memory.wait_for(count)
        self._reserved = count

    async def wait(self) -> None:
        """Waits until the missing bytes are committed, or the request's max_wait_ms ends."""
        loop = asyncio.get_running_loop()
        waiter = FetchWaiter(self._request.min_bytes - self.bytes, loop.create_future(), self._isolation)
        timer = loop.call_later(self._request.max_wait_ms / 1000, waiter.wake)
        for partition in self._partitions:
            partition.add_waiter(waiter)
        unwatch = self._context.node.access.watch(waiter.wake)  # the next read finds out what is allowed
        try:
            await waiter.future
        finally:
            timer.cancel()
            unwatch()
            for partition in self._partitions:
                partition.remove_waiter(waiter)

    def _read_one(self, name: str, topic_id: UUID, wanted: FetchPartition) -> PartitionData:
        try:
            context, epoch = self._context, wanted.current_leader_epoch
            partition = context.node.resources.partition(
                context.caller, name, topic_id, wanted.partition, context.api.on_topic, epoch=epoch
            )
            partition.check_readable()
            try:
                return self._read_partition(partition, wanted)
            except CorruptLog as rot:
                partition.damaged(rot)
                code = ErrorCode.KAFKA_STORAGE_ERROR if partition.is_replicated else ErrorCode.CORRUPT_MESSAGE
                raise KafkaError(code, str(rot)) from rot
        except KafkaError as mistake:
            code = mistake.code
            if code == ErrorCode.OFFSET_NOT_AVAILABLE:
                # Kafka has this error in ListOffsets only, and not all clients know it here.
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        except StorageError as trouble:
            log.error("fetch: %s", trouble)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self._failed = True
        answer = _refused(wanted.partition, code)
        hints = self._hints
        if hints is not None and (hint := hints.find(code, name, topic_id, wanted.partition)) is not None:
            answer.current_leader = LeaderIdAndEpoch(leader_id=hint.leader.node_id, leader_epoch=hint.epoch)
        return answer

    def _read_partition(self, partition: Partition, wanted: FetchPartition) -> PartitionData:
        max_bytes = min(self._bytes_left, wanted.partition_max_bytes)
        end = partition.end_for(self._isolation)
        records = b""
        if max_bytes > 0 or self.bytes == 0:
            first = self.bytes == 0  # one batch is always returned, however small the request's limits
            offset = Offset(wanted.fetch_offset)
            records = partition.read(
                offset,
                max(max_bytes, 1),
                end=end,
                at_least_one=first,
                first_max=self._first_max,
                is_checked=self._context.is_checked,
            )
            if first and not records and offset < end and not self._lacking:
                self._lacking = partition.log.batch_size(offset, end)
        self._bytes_left -= len(records)
        self.bytes += len(records)
        self._partitions.append(partition)
        self._ends.append(end)
        return PartitionData(
            partition_index=wanted.partition,
            error_code=ErrorCode.NONE,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.end_for(Isolation.READ_COMMITTED),
            log_start_offset=partition.start_offset,
            aborted_transactions=self._aborted(partition, Offset(wanted.fetch_offset), records),
            records=records,
        )

    def _aborted(
        self, partition: Partition, offset: Offset, records: bytes
    ) -> list[AbortedTransaction] | None:
        """In the order of their first offsets: some clients rely on it."""
        if self._isolation is Isolation.READ_UNCOMMITTED:
            return None
        found = partition.aborted_in(offset, records)
        return [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in sorted(found, key=lambda one: one.first_offset)
        ]
