"""InitProducerId, AddPartitionsToTxn and EndTxn: requests of producers to the coordinator of their transactions.

The `transactions` package decides; this module translates requests and responses.
"""

from collections.abc import Iterable

from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from penstock.kafka.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.transactions import (
    NO_PRODUCER,
    AddRequest,
    Dialect,
    EndRequest,
    InitRequest,
    Producer,
    ProducerResult,
    TransactionApi,
    wire_error,
)
from penstock.types import TopicPartition

END_TXN_V2_SINCE_VERSION = 5
BROKERS_SINCE_VERSION = 4
"""Versions of AddPartitionsToTxn that brokers send to each other for their clients (KIP-890)."""


# --- InitProducerId


async def init_producer_id(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        if request.transactional_id is None:
            context.node.resources.check_idempotence(context.caller)
            result = ProducerResult(producer=Producer(await context.node.controller.next_producer_id(), 0))
        else:
            context.check_transactional_id(request.transactional_id)
            result = await context.node.transactions.init_producer_id(
                _init(request, request.transactional_id)
            )
    except KafkaError as mistake:
        code = mistake.code
        if code == ErrorCode.NOT_CONTROLLER:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # as in Kafka: clients wait and try again
        result = ProducerResult(error=code)
    except StorageError:
        result = ProducerResult(error=ErrorCode.KAFKA_STORAGE_ERROR)
    return InitProducerIdResponse(
        error_code=wire_error(result.error, TransactionApi.INIT_PRODUCER_ID, context.api_version),
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.epoch,
    )


def _init(request: InitProducerIdRequest, transactional_id: str) -> InitRequest:
    expected = Producer(request.producer_id, request.producer_epoch)
    if expected != NO_PRODUCER and min(expected) < 0:
        message = f"producer {expected.producer_id} with epoch {expected.epoch}: expected both or none"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return InitRequest(
        transactional_id=transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        expected=None if expected == NO_PRODUCER else expected,
    )


# --- AddPartitionsToTxn


async def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    rows = ResponseRows(context)
    if context.api_version < BROKERS_SINCE_VERSION:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await _join(context, transaction, rows)
        )
    try:
        context.node.resources.check_cluster(context.caller, context.api.on_cluster)
    except KafkaError as refused:
        return AddPartitionsToTxnResponse(error_code=refused.code)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=await _join(context, one, rows)
            )
            for one in request.transactions
        ]
    )


async def _join(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction, rows: ResponseRows
) -> list[AddPartitionsToTxnTopicResult]:
    """The outcome for each partition of one transaction. All are added, or none."""
    partitions = [
        TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions
    ]
    await rows.pause(len(partitions))
    try:
        codes = await _codes(context, transaction, partitions)
    except KafkaError as refused:
        codes = dict.fromkeys(partitions, refused.code)
    return _results(transaction.topics, codes, context.api_version)


async def _codes(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction, partitions: list[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    node, is_client = context.node, context.api_version < BROKERS_SINCE_VERSION
    transactional_id = transaction.transactional_id
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    if is_client:
        context.check_transactional_id(transactional_id)
    if transaction.verify_only:
        verified = node.transactions.verify(transactional_id, producer, partitions)
        return dict(zip(partitions, verified, strict=True))
    refusals = {one: _refusal(context, one, is_client=is_client) for one in partitions}
    if any(refusals.values()):
        return {one: code or ErrorCode.OPERATION_NOT_ATTEMPTED for one, code in refusals.items()}
    added = AddRequest(
        transactional_id=transactional_id,
        producer=producer,
        partitions=frozenset(partitions),
        dialect=Dialect.V1 if is_client else Dialect.V2,
    )
    return dict.fromkeys(partitions, await node.transactions.add_partitions(added))


def _refusal(context: RequestContext, name: TopicPartition, *, is_client: bool) -> ErrorCode:
    """NONE if the partition exists and the caller may write to it. Brokers have checked the rights of their clients."""
    try:
        if is_client:
            topic = context.topic_of(name.topic, name.partition)
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.internal else ErrorCode.NONE
    except KafkaError as refused:
        return refused.code
    exists = 0 <= name.partition < context.node.resources.partition_count(name.topic)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: dict[TopicPartition, ErrorCode], api_version: int
) -> list[AddPartitionsToTxnTopicResult]:
    api = TransactionApi.ADD_PARTITIONS_TO_TXN
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=wire_error(
                        codes[TopicPartition(topic.name, index)], api, api_version
                    ),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


# --- EndTxn


async def end_txn(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    is_v2 = context.api_version >= END_TXN_V2_SINCE_VERSION
    end = EndRequest(
        transactional_id=request.transactional_id,
        producer=Producer(request.producer_id, request.producer_epoch),
        commit=request.committed,
        dialect=Dialect.V2 if is_v2 else Dialect.V1,
    )
    try:
        context.check_transactional_id(request.transactional_id)
        result = await context.node.transactions.end(end)
    except KafkaError as refused:
        result = ProducerResult(error=refused.code)
    except StorageError:
        result = ProducerResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return EndTxnResponse(
        error_code=wire_error(result.error, TransactionApi.END_TXN, context.api_version),
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.epoch,
    )
