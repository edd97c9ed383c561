"""DescribeTransactions, ListTransactions and WriteTxnMarkers: requests of operators and their tools."""

import asyncio
from collections.abc import Callable

from penstock.batch import EndMarker
from penstock.cluster import OFFSETS_TOPIC
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages import describe_transactions as described
from penstock.kafka.wire.messages import list_transactions as listed
from penstock.kafka.wire.messages import write_txn_markers as written
from penstock.node.patterns import compile_pattern
from penstock.node.transactions.led_partitions import marker_outcome
from penstock.transactions import Producer, TransactionDescription, state_filter
from penstock.types import ResourceType, TopicPartition

PATTERN_BYTES_MAX = 1_000
"""The longest pattern for transactional ids. Matching takes time in proportion to its length."""
MARKER_SECONDS = 10.0
"""How long the markers of an operator are waited for."""


# --- DescribeTransactions


async def describe_transactions(
    context: RequestContext, request: described.DescribeTransactionsRequest
) -> described.DescribeTransactionsResponse:
    rows = ResponseRows(context)
    states = [await _describe(context, name, rows) for name in request.transactional_ids]
    return described.DescribeTransactionsResponse(transaction_states=states)


async def _describe(
    context: RequestContext, transactional_id: str, rows: ResponseRows
) -> described.TransactionState:
    await rows.pause()
    try:
        context.check_transactional_id(transactional_id)
        host = context.node.transactions.cores.find(transactional_id)
        found = None if host is None else host.core.describe(transactional_id)
        if found is None:
            message = f"there is no transactional id {transactional_id!r}"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, message)
        rows.reserve(1 + len(found.partitions))
    except KafkaError as refused:
        return described.TransactionState(error_code=refused.code, transactional_id=transactional_id)
    await rows.pause(len(found.partitions))
    return described.TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
        topics=_topics(context, found),
    )


def _topics(context: RequestContext, found: TransactionDescription) -> list[described.TopicData]:
    """The topics that the caller may see."""
    indexes: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions):
        indexes.setdefault(topic, []).append(index)
    visible = context.node.resources.visible(
        context.caller, ResourceType.TOPIC, indexes, context.api.on_topic
    )
    return [
        described.TopicData(topic=topic, partitions=numbers)
        for topic, numbers in indexes.items()
        if topic in visible
    ]


# --- ListTransactions


async def list_transactions(
    context: RequestContext, request: listed.ListTransactionsRequest
) -> listed.ListTransactionsResponse:
    """The transactional ids of this node's coordinators: a client asks all nodes."""
    node, rows = context.node, ResponseRows(context)
    states, unknown = state_filter(request.state_filters)
    response = listed.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=[])
    if not node.transactions.cores.all_online:
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return response
    if unknown and not states:
        return response
    try:
        matches = _matcher(request.transactional_id_pattern)
        for host in node.transactions.cores.loaded().values():
            for one in host.core.list_transactions(
                host.now_ms,
                states=states,
                producer_ids=request.producer_id_filters,
                longer_than_ms=request.duration_filter,
                matches=matches,
            ):
                await rows.pause()
                if not _is_visible(context, one.transactional_id):
                    continue
                rows.reserve(1)
                response.transaction_states.append(
                    listed.TransactionState(
                        transactional_id=one.transactional_id,
                        producer_id=one.producer_id,
                        transaction_state=one.state.title,
                    )
                )
    except KafkaError as refused:
        return listed.ListTransactionsResponse(error_code=refused.code)
    return response


def _is_visible(context: RequestContext, transactional_id: str) -> bool:
    return bool(
        context.node.resources.visible(
            context.caller,
            ResourceType.TRANSACTIONAL_ID,
            (transactional_id,),
            context.api.on_transactional_id,
        )
    )


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    """None for all ids."""
    if not pattern:
        return None
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        message = f"TransactionalIdPattern: {len(pattern)} characters"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
    compiled = compile_pattern(pattern, "TransactionalIdPattern")
    return lambda text: compiled.fullmatch(text) is not None


# --- WriteTxnMarkers


_Waiting = list[tuple[written.WritableTxnMarkerPartitionResult, asyncio.Future[None]]]


async def write_txn_markers(
    context: RequestContext, request: written.WriteTxnMarkersRequest
) -> written.WriteTxnMarkersResponse:
    """Ends transactions on partitions that this node leads, whatever their coordinators know: for hanging ones. All
    markers are appended, then waited for together: those of a partition without a majority hold up no others."""
    rows, waiting = ResponseRows(context), _Waiting()
    answers = [await _write_all(context, marker, rows, waiting) for marker in request.markers]
    if waiting:
        await asyncio.wait([committed for _, committed in waiting], timeout=MARKER_SECONDS)
    for row, committed in waiting:
        row.error_code = marker_outcome(committed)
    return written.WriteTxnMarkersResponse(markers=answers)


async def _write_all(
    context: RequestContext, marker: written.WritableTxnMarker, rows: ResponseRows, waiting: _Waiting
) -> written.WritableTxnMarkerResult:
    answer = written.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=[])
    for topic in marker.topics:
        await rows.pause(1 + len(topic.partition_indexes))
        results = [
            _write(context, marker, TopicPartition(topic.name, index), waiting)
            for index in topic.partition_indexes
        ]
        answer.topics.append(written.WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
    return answer


def _write(
    context: RequestContext, marker: written.WritableTxnMarker, name: TopicPartition, waiting: _Waiting
) -> written.WritableTxnMarkerPartitionResult:
    row = written.WritableTxnMarkerPartitionResult(partition_index=name.partition)
    try:
        committed = _append(context, marker, name)
        if committed is not None:
            waiting.append((row, committed))
    except KafkaError as refused:
        row.error_code = refused.code
    except StorageError:
        row.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return row


def _append(
    context: RequestContext, marker: written.WritableTxnMarker, name: TopicPartition
) -> asyncio.Future[None] | None:
    """None if the marker is committed already."""
    topic = context.cluster().topics.get(name.topic)
    if topic is not None and topic.internal and topic.name != OFFSETS_TOPIC:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name.topic} is internal")
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a marker of producer {marker.producer_id}")
    partition = context.node.leader(name.topic, name.partition)
    appended = context.node.led_transactions.write_marker(
        partition,
        Producer(marker.producer_id, marker.producer_epoch),
        EndMarker(marker.transaction_result, marker.coordinator_epoch),
    )
    return partition.committed_at(appended)
