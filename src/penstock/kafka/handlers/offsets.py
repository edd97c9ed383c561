"""ListOffsets and OffsetForLeaderEpoch: the offsets of a time, of the log's ends, or of the end of a leader epoch."""

import asyncio
import logging
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from functools import partial

from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.names import repeated
from penstock.kafka.handlers.rows import SLICE_ROWS, ResponseRows
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
FLUSH_WAIT_SECONDS = 5.0
"""A flush takes milliseconds. If the disk hangs for longer, clients get the end of the flushed records, rather than no
response: most wait 10 s or more for one."""


async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    isolation, rows = Isolation.from_wire(request.isolation_level), ResponseRows(context)
    twice = repeated(
        (topic.name, row.partition_index) for topic in request.topics for row in topic.partitions
    )
    await _flush_first(context, request, twice)
    answers: list[ListOffsetsTopicResponse] = []
    for topic in request.topics:
        answer = ListOffsetsTopicResponse(name=topic.name)
        for wanted in topic.partitions:
            if (topic.name, wanted.partition_index) in twice:
                answer.partitions.append(_repeated(wanted))
            else:
                answer.partitions.append(_list_one(context, topic.name, wanted, isolation))
            await rows.pause()
        answers.append(answer)
    return ListOffsetsResponse(topics=answers)


def _repeated(wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    """Kafka refuses a partition that a request names twice."""
    code = ErrorCode.INVALID_REQUEST
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code)


async def _flush_first(context: RequestContext, request: ListOffsetsRequest, twice: set[Hashable]) -> None:
    """Waits for the flush of the records that are in the logs now. Some of their producers may have an answer
    (acks=1): one that asks for the end of the log, or for a time, expects to find its records."""
    wanted = [
        (topic.name, row)
        for topic in request.topics
        for row in topic.partitions
        if (topic.name, row.partition_index) not in twice
    ]
    unflushed = list(_unflushed(context, wanted[:SLICE_ROWS]))
    for start in range(SLICE_ROWS, len(wanted), SLICE_ROWS):
        await asyncio.sleep(0)
        unflushed += _unflushed(context, wanted[start : start + SLICE_ROWS])
    if unflushed:
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WAIT_SECONDS):
                for partition, end in unflushed:
                    await partition.flushed_to(end)


def _unflushed(
    context: RequestContext, rows: Iterable[tuple[str, ListOffsetsPartition]]
) -> Iterator[tuple[Partition, Offset]]:
    """Lone replicas whose log goes on above the watermark, and the end of their log, where the answer depends on it.
    With several replicas, acks=1 promises nothing about the watermark, in Kafka neither."""
    for topic, wanted in rows:
        if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
            continue
        with suppress(KafkaError):  # its row of the response will say so
            partition = context.led_partition(topic, wanted.partition_index, wanted.current_leader_epoch)
            if not partition.is_replicated and partition.high_watermark < partition.log.end_offset:
                yield partition, partition.log.end_offset


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
    rows = ResponseRows(context)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=await rows.build(partial(_end_of_epoch, context, topic.topic), topic.partitions),
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
