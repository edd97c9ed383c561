"""AddOffsetsToTxn and TxnOffsetCommit: offsets of a consumer group that are committed with a transaction.

The offsets are records of the partition of `__consumer_offsets` that holds the group's, so that this partition is part
of the transaction like any other. A client of V1 adds it by AddOffsetsToTxn; for a client of V2 (TxnOffsetCommit 5 and
later) the group's coordinator has it added.
"""

from collections.abc import Mapping

from penstock.cluster import OFFSETS_TOPIC, Topic
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.group_offsets import code_of, offsets_to_commit
from penstock.kafka.wire import NO_UUID
from penstock.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.kafka.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.node.calls.retry import NO_COORDINATOR_ANSWER
from penstock.transactions import AddRequest, Dialect, Producer, TransactionApi, wire_error
from penstock.types import TopicPartition

ADDED_SINCE_VERSION = 5
"""TxnOffsetCommit adds the partition of the group's offsets to the transaction (KIP-890, V2)."""
TOPICS_BY_ID_SINCE_VERSION = 6


# --- AddOffsetsToTxn


async def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    try:
        code = await _add(context, request)
    except KafkaError as refused:
        code = refused.code
    except StorageError:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    api = TransactionApi.ADD_OFFSETS_TO_TXN
    return AddOffsetsToTxnResponse(error_code=wire_error(code, api, context.api_version))


async def _add(context: RequestContext, request: AddOffsetsToTxnRequest) -> ErrorCode:
    context.check_transactional_id(request.transactional_id)
    context.check_group(request.group_id)
    cores = context.node.groups.cores
    await cores.ensure_topic()
    added = AddRequest(
        transactional_id=request.transactional_id,
        producer=Producer(request.producer_id, request.producer_epoch),
        partitions=frozenset({TopicPartition(OFFSETS_TOPIC, cores.index_of(request.group_id))}),
        dialect=Dialect.V1,
    )
    return await context.node.transactions.add_partitions(added)


# --- TxnOffsetCommit


async def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    known: dict[int, Topic] = {}
    errors: dict[int, ErrorCode] = {}
    codes: Mapping[TopicPartition, ErrorCode] = {}
    for index, topic in enumerate(request.topics):
        try:
            known[index] = _find_topic(context, topic)
        except KafkaError as refused:
            errors[index] = refused.code
    try:
        context.check_transactional_id(request.transactional_id)
        context.check_group(request.group_id)
        offsets = tuple(offsets_to_commit(request.topics, known))
        if offsets:
            await _join(context, request)
            codes = (await context.node.groups.commit(_commit(request, offsets))).errors
    except KafkaError as refused:
        errors = dict.fromkeys(range(len(request.topics)), refused.code)
    return _response(context.api_version, request, known, errors, codes)


def _find_topic(context: RequestContext, topic: TxnOffsetCommitRequestTopic) -> Topic:
    if context.api_version >= TOPICS_BY_ID_SINCE_VERSION and topic.topic_id == NO_UUID:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "topic_id: the zero id belongs to no topic")
    return context.named_topic(topic.name, topic.topic_id)


def _commit(request: TxnOffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]) -> CommitRequest:
    return CommitRequest(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        offsets=offsets,
        producer=Producer(request.producer_id, request.producer_epoch),
    )


async def _join(context: RequestContext, request: TxnOffsetCommitRequest) -> None:
    """Raises unless the group's offsets are part of the transaction."""
    if min(request.producer_id, request.producer_epoch) < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"producer {request.producer_id} in a transaction")
    node, adds = context.node, context.api_version >= ADDED_SINCE_VERSION
    host = await node.groups.cores.host_of(request.group_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    code = await node.led_transactions.admit(
        host.partition, request.transactional_id, producer, adds=adds, caller=context.caller
    )
    is_busy = code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds
    if code in NO_COORDINATOR_ANSWER or is_busy:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code:
        message = f"the coordinator of {request.transactional_id!r} answers {code.name}"
        raise KafkaError(code, message)


def _response(
    api_version: int,
    request: TxnOffsetCommitRequest,
    known: Mapping[int, Topic],
    errors: Mapping[int, ErrorCode],
    codes: Mapping[TopicPartition, ErrorCode],
) -> TxnOffsetCommitResponse:
    def code(index: int, partition: int) -> ErrorCode:
        found = code_of(codes, known.get(index), partition, errors.get(index))
        return wire_error(found, TransactionApi.TXN_OFFSET_COMMIT, api_version)

    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=code(index, row.partition_index)
                    )
                    for row in topic.partitions
                ],
            )
            for index, topic in enumerate(request.topics)
        ]
    )
