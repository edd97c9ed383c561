"""Produce and InitProducerId: batches into logs.

A batch is never opened here, unless its topic has rules on what is in it (topic_rules.py).
"""

import asyncio
from collections.abc import Coroutine
from uuid import UUID

from penstock.batch import BatchHeader, check_produced
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.leading import MOVED, Hints
from penstock.kafka.handlers.topic_names import resolve_topic
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
from penstock.node import Node, Partition

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1

LOWEST_VERSION = 3
"""Older versions carry record formats 0 and 1, which are gone since Kafka 4."""
ZSTD = 4
ZSTD_SINCE_VERSION = 7
HINTS_SINCE_VERSION = 10
RECORDS_PER_BYTE_MAX = 1000
"""No codec packs records more densely (a record has seven bytes at least); a count beyond it is a lie that would make
offsets jump."""

_Waiting = list[tuple[PartitionProduceResponse, asyncio.Future[None]]]


def produce(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Coroutine[None, None, ProduceResponse] | None:
    """Everything is appended before this returns; what waits for its commit waits in the coroutine."""
    waiting: _Waiting = []
    rules = TopicRules()
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _answer(context, request, topic.name, topic.topic_id, data, waiting, rules)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    hinting = context.node if context.api_version >= HINTS_SINCE_VERSION else None
    if waiting:
        return _await_commits(response, waiting, request.timeout_ms, hinting)
    if request.acks == ACKS_NONE:
        _fail_unanswered(response)
        return None
    return _with_hints(response, hinting)


def _with_hints(response: ProduceResponse, node: Node | None) -> ProduceResponse:
    """Tells those who should go elsewhere where that is."""
    rows = [
        (topic, row)
        for topic in response.responses
        for row in topic.partition_responses
        if row.error_code in MOVED
    ]
    if node is None or not rows:
        return response
    hints = Hints(node)
    for topic, row in rows:
        known = node.metadata.state.topic_by_id(topic.topic_id)
        name = known.name if known is not None else topic.name
        if (hint := hints.find(ErrorCode(row.error_code), name, row.index)) is not None:
            row.current_leader = LeaderIdAndEpoch(leader_id=hint.leader.node_id, leader_epoch=hint.epoch)
    response.node_endpoints = [
        NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
        for one in hints.leaders()
    ]
    return response


def _answer(
    context: RequestContext,
    request: ProduceRequest,
    name: str,
    topic_id: UUID,
    data: PartitionProduceData,
    waiting: _Waiting,
    rules: TopicRules,
) -> PartitionProduceResponse:
    """Appends one partition's batch; with acks=all its commit is added to `waiting`."""
    try:
        _check_request(request, context.api_version)
        topic = resolve_topic(context.node, name, topic_id, internal=False)
        partition = context.node.leader(topic, data.index)
        if request.acks == ACKS_ALL:
            partition.check_in_sync()
        batch, header = _checked(data, partition, context.api_version)
        batch, header = rules.apply(batch, header, partition.config, context.node.clock.wall_ms())
        appended = partition.append(batch, header)
    except KafkaError as mistake:
        return PartitionProduceResponse(
            index=data.index, error_code=mistake.code, base_offset=-1, error_message=mistake.message
        )
    except StorageError as refused:
        return PartitionProduceResponse(
            index=data.index,
            error_code=ErrorCode.KAFKA_STORAGE_ERROR,
            base_offset=-1,
            error_message=str(refused),
        )
    answer = PartitionProduceResponse(
        index=data.index,
        error_code=ErrorCode.NONE,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.timestamp_ms,
        log_start_offset=partition.start_offset,
    )
    if request.acks == ACKS_ALL and (committed := partition.committed_at(appended)) is not None:
        waiting.append((answer, committed))
    return answer


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
    response: ProduceResponse, waiting: _Waiting, timeout_ms: int, hinting: Node | None
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
    return _with_hints(response, hinting)


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
