"""ListOffsets and OffsetForLeaderEpoch: the offsets of a time, of the log's ends, or of the end of a leader epoch."""

import logging

from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.kafka.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from penstock.node import Partition
from penstock.types import Isolation, Offset, Term

log = logging.getLogger("penstock.kafka")

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
UNKNOWN = -1
OFFSET_NOT_AVAILABLE_SINCE_VERSION = 5
"""Older clients do not know this error and get LEADER_NOT_AVAILABLE."""


async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    isolation = Isolation.from_wire(request.isolation_level)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[_list_one(context, topic.name, wanted, isolation) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _list_one(
    context: RequestContext, topic: str, wanted: ListOffsetsPartition, isolation: Isolation
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=ErrorCode.NONE)
    try:
        partition = context.led_partition(topic, wanted.partition_index, wanted.current_leader_epoch)
        partition.check_readable()
        answer.timestamp, answer.offset, answer.leader_epoch = _locate(
            partition, wanted.timestamp, partition.end_for(isolation)
        )
    except KafkaError as mistake:
        answer.error_code = mistake.code
        if (
            mistake.code == ErrorCode.OFFSET_NOT_AVAILABLE
            and context.api_version < OFFSET_NOT_AVAILABLE_SINCE_VERSION
        ):
            answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    except (StorageError, CorruptLog) as trouble:
        log.error("list offsets: %s", trouble)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return answer


def _locate(partition: Partition, timestamp: int, limit: Offset) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) of a record below `limit`, with -1 where there is none."""
    if timestamp == LATEST:
        return UNKNOWN, limit, partition.term
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return UNKNOWN, partition.start_offset, partition.log.term_at(partition.start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return UNKNOWN, UNKNOWN, UNKNOWN
    if timestamp < EARLIEST_PENDING:
        message = f"timestamp {timestamp}: expected ms since 1970, or {EARLIEST_PENDING} to {LATEST}"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
    if timestamp == MAX_TIMESTAMP:
        found = partition.log.max_timestamp(limit)
    else:
        found = partition.log.find_timestamp(timestamp, limit)
    return found if found is not None else (UNKNOWN, UNKNOWN, UNKNOWN)


async def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_of_epoch(context, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(context: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition, error_code=ErrorCode.NONE)
    try:
        partition = context.led_partition(topic, wanted.partition, wanted.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = partition.end_of_term(Term(wanted.leader_epoch))
    except KafkaError as mistake:
        answer.error_code = mistake.code
    return answer
