"""Produce and InitProducerId: batches into logs.

A batch is never opened here, unless its topic has rules on what is in it (topic_rules.py) or wants each message once
(`dedup.window.ms`, see `penstock.node.dedup.deduplication`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from uuid import UUID

from penstock.batch import BatchHeader, check_produced
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.leading import MOVED, Hints
from penstock.kafka.handlers.topic_rules import TopicRules
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.kafka.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.log import Appended
from penstock.node import Partition
from penstock.node.exclusive_producers import Writer

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1

LOWEST_VERSION = 3
"""Older versions carry record formats 0 and 1, which are gone since Kafka 4."""
ZSTD = 4
ZSTD_SINCE_VERSION = 7
RECORDS_PER_BYTE_MAX = 1000
"""No codec packs records more densely (a record has seven bytes at least); a count beyond it is a lie that would make
offsets jump."""

_Waiting = list[tuple[PartitionProduceResponse, asyncio.Future[None]]]


def produce(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Coroutine[None, None, ProduceResponse | None] | None:
    """Everything is appended before this returns; what waits for its commit waits in the coroutine. Except where a new
    leader still reads message ids back: then the coroutine appends, and no later request overtakes it."""
    work = _Production(context, request)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    work.answer(topic.name, topic.topic_id, data) for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    if work.put_off:
        return work.go_on(response, context.connection.hold())
    return work.conclude(response)


class _StillLoading(Exception):
    """The partition's message ids are being read back; `done` tells when that is over."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done


class _Production:
    """One request at work."""

    __slots__ = ("_context", "_request", "_rules", "_waiting", "put_off")

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        self._request = request
        self._rules = TopicRules()
        self._waiting: _Waiting = []
        self.put_off: list[
            tuple[asyncio.Future[None], PartitionProduceResponse, str, UUID, PartitionProduceData]
        ] = []
        """Batches whose partitions are still loading."""

    def answer(self, name: str, topic_id: UUID, data: PartitionProduceData) -> PartitionProduceResponse:
        """Appends one partition's batch, if it can be done now."""
        row = PartitionProduceResponse(index=data.index, base_offset=-1)
        try:
            self._fill(row, name, topic_id, data)
        except _StillLoading as loading:
            self.put_off.append((loading.done, row, name, topic_id, data))
        return row

    async def go_on(self, response: ProduceResponse, let_go: Callable[[], None]) -> ProduceResponse | None:
        """Appends what was put off, when it can be done or the client's patience ends."""
        try:
            loading = {done for done, *_ in self.put_off}
            await asyncio.wait(loading, timeout=max(self._request.timeout_ms, 1) / 1000)
            for _, row, name, topic_id, data in self.put_off:
                try:
                    self._fill(row, name, topic_id, data)
                except _StillLoading:
                    # Clients try that again, and need not look for another leader.
                    row.error_code = ErrorCode.NOT_ENOUGH_REPLICAS
                    row.error_message = "its new leader still reads message ids back (dedup.window.ms)"
        finally:
            let_go()
        concluded = self.conclude(response)
        return await concluded if asyncio.iscoroutine(concluded) else concluded

    def conclude(
        self, response: ProduceResponse
    ) -> ProduceResponse | Coroutine[None, None, ProduceResponse] | None:
        if self._waiting:
            return _await_commits(self._context, response, self._waiting, self._request.timeout_ms)
        if self._request.acks == ACKS_NONE:
            _fail_unanswered(response)
            return None
        return _with_hints(self._context, response)

    def _fill(
        self, row: PartitionProduceResponse, name: str, topic_id: UUID, data: PartitionProduceData
    ) -> None:
        """With acks=all the commit is added to those that are waited for."""
        acks = self._request.acks
        try:
            _check_request(self._request, self._context.api_version)
            context, resources = self._context, self._context.node.resources
            operation = context.api.on_topic
            topic = resources.writable_topic(context.caller, name, topic_id, operation)
            partition = resources.led_partition(context.caller, topic.name, data.index, operation)
            if acks == ACKS_ALL:
                partition.check_in_sync()
            appended = self._append(partition, data)
        except KafkaError as mistake:
            row.error_code, row.error_message = mistake.code, mistake.message
            return
        except StorageError as refused:
            row.error_code, row.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(refused)
            return
        row.error_code = ErrorCode.NONE
        row.base_offset = appended.base_offset
        row.log_append_time_ms = appended.timestamp_ms
        row.log_start_offset = partition.start_offset
        # Whoever is told that a message was there already is told so of one that will stay there.
        is_told_of_another = appended.duplicate and partition.config.dedup_window_ms > 0
        waits = acks == ACKS_ALL or (acks == ACKS_LEADER and is_told_of_another)
        if waits and (committed := partition.committed_at(appended)) is not None:
            self._waiting.append((row, committed))

    def _append(self, partition: Partition, data: PartitionProduceData) -> Appended:
        context, config = self._context, partition.config
        batch, header = _checked(data, partition, context.api_version)
        if not config.exclusive_producer:
            return self._store(partition, batch, header)
        writer = Writer(context.connection, context.caller.client_id, header.producer_id)
        context.node.exclusive.check(partition.name, partition.group, partition.term, writer)
        appended = self._store(partition, batch, header)
        context.node.exclusive.take(partition.group, partition.term, writer, context.node.clock.wall_ms())
        return appended

    def _store(self, partition: Partition, batch: memoryview, header: BatchHeader) -> Appended:
        node, config = self._context.node, partition.config
        if not config.dedup_window_ms:
            batch, header = self._rules.apply(batch, header, config, node.clock.wall_ms())
            return partition.append(batch, header)
        memory = node.dedup.of(partition)
        if memory.loading is not None:
            raise _StillLoading(memory.loading)
        batch, header = self._rules.apply(batch, header, config, node.clock.wall_ms())
        most = self._rules.inflatable(config)
        return memory.append(batch, header, self._rules.message_ids(batch, header, config), most)


def _with_hints(context: RequestContext, response: ProduceResponse) -> ProduceResponse:
    """Adds the current leader to each refusal that sends the client to another node."""
    rows = [
        (topic, row)
        for topic in response.responses
        for row in topic.partition_responses
        if row.error_code in MOVED
    ]
    if not rows:
        return response
    hints = Hints(context)
    for topic, row in rows:
        if (hint := hints.find(row.error_code, topic.name, topic.topic_id, row.index)) is not None:
            row.current_leader = LeaderIdAndEpoch(leader_id=hint.leader.node_id, leader_epoch=hint.epoch)
    response.node_endpoints = [
        NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
        for one in hints.leaders()
    ]
    return response


def _check_request(request: ProduceRequest, api_version: int) -> None:
    if api_version < LOWEST_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"Produce v{api_version}: expected v{LOWEST_VERSION} or newer"
        )
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: expected 0, 1 or -1 (all)")
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not offered by this broker")


def _checked(
    data: PartitionProduceData, partition: Partition, api_version: int
) -> tuple[memoryview, BatchHeader]:
    """The one batch that a partition's data may hold, proven sound."""
    if not data.records:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{partition.name}: no record batch")
    batch = memoryview(data.records)
    header = check_produced(batch)
    if header.size != len(batch):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"{partition.name}: expected one record batch, found more bytes"
        )
    if header.size > partition.config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{partition.name}: batch of {header.size} bytes, max.message.bytes={partition.config.max_message_bytes}",
        )
    if header.record_count > header.size * RECORDS_PER_BYTE_MAX:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{partition.name}: {header.record_count} records in {header.size} bytes",
        )
    if header.transactional:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not offered by this broker")
    if header.compression == ZSTD and api_version < ZSTD_SINCE_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{ZSTD_SINCE_VERSION} or newer"
        )
    return batch, header


async def _await_commits(
    context: RequestContext, response: ProduceResponse, waiting: _Waiting, timeout_ms: int
) -> ProduceResponse:
    """Waits for all commits; what is not committed in time is answered as such, and may still commit."""
    timer = asyncio.get_running_loop().call_later(max(timeout_ms, 1) / 1000, _time_out, waiting, timeout_ms)
    try:
        for answer, committed in waiting:
            try:
                await committed
            except KafkaError as mistake:
                answer.error_code, answer.error_message = mistake.code, mistake.message
            except StorageError as refused:
                answer.error_code, answer.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(refused)
    finally:
        timer.cancel()
    return _with_hints(context, response)


def _time_out(waiting: _Waiting, timeout_ms: int) -> None:
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"not committed within {timeout_ms} ms")
    for _, committed in waiting:
        if not committed.done():
            committed.set_exception(late)


def _fail_unanswered(response: ProduceResponse) -> None:
    """With acks=0 there is no answer to carry an error: closing the connection is how Kafka tells the producer."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code), f"acks=0: {answer.error_message}")


async def init_producer_id(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,  # clients take it as final; transactions are not offered yet
            producer_id=-1,
            producer_epoch=-1,
        )
    try:
        context.cluster()
        producer_id = await context.node.controller.next_producer_id()
    except KafkaError as mistake:
        code = mistake.code
        if code == ErrorCode.NOT_CONTROLLER:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # what Kafka says then, and clients wait for
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    except StorageError:
        return InitProducerIdResponse(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, producer_id=-1, producer_epoch=-1
        )
    return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0)
