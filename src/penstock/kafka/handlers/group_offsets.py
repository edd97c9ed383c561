"""OffsetCommit, OffsetFetch and OffsetDelete: where groups continue reading."""

from collections.abc import Iterable, Mapping

from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, CommittedOffset, OffsetToCommit
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.topic_names import resolve_topic
from penstock.kafka.wire import NO_UUID
from penstock.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.kafka.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.node import Node
from penstock.types import TopicPartition

MANY_GROUPS_SINCE_VERSION = 8
TOPICS_BY_ID_SINCE_VERSION = 10
NO_COMMITTED_OFFSET = -1


# --- OffsetCommit


async def offset_commit(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    names: dict[int, str] = {}
    errors: dict[int, ErrorCode] = {}
    for index, topic in enumerate(request.topics):
        try:
            names[index] = resolve_topic(context.node, topic.name, topic.topic_id)
        except KafkaError as mistake:
            errors[index] = mistake.code
    wish = CommitRequest(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        offsets=tuple(_to_commit(context.node, request.topics, names)),
        retention_ms=request.retention_time_ms,
    )
    codes = (await context.node.groups.commit(wish)).errors
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=_code(codes, names.get(index), row.partition_index, errors.get(index)),
                    )
                    for row in topic.partitions
                ],
            )
            for index, topic in enumerate(request.topics)
        ]
    )


def _to_commit(
    node: Node, topics: Iterable[OffsetCommitRequestTopic], names: Mapping[int, str]
) -> Iterable[OffsetToCommit]:
    """Offsets of partitions that exist. What exists is the metadata's to know, not the coordinator's."""
    for index, topic in enumerate(topics):
        name = names.get(index)
        count = node.metadata.state.topics[name].partitions if name is not None else 0
        for row in topic.partitions:
            if name is not None and 0 <= row.partition_index < count:
                yield OffsetToCommit(
                    topic=name,
                    partition=row.partition_index,
                    offset=row.committed_offset,
                    leader_epoch=row.committed_leader_epoch,
                    metadata=row.committed_metadata or "",
                )


def _code(
    codes: Mapping[TopicPartition, ErrorCode], name: str | None, partition: int, error: ErrorCode | None
) -> ErrorCode:
    if error is not None or name is None:
        return error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes.get(TopicPartition(name, partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


# --- OffsetFetch


async def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.api_version >= MANY_GROUPS_SINCE_VERSION:
        groups = [_fetch_group(context, group) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=row.name, partition_indexes=row.partition_indexes)
            for row in request.topics
        ]
    group = _fetch_group(context, OffsetFetchRequestGroup(group_id=request.group_id, topics=topics))
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=row.partition_index,
                        committed_offset=row.committed_offset,
                        committed_leader_epoch=row.committed_leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error_code,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _fetch_group(context: RequestContext, wanted: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    node = context.node
    by_id = context.api_version >= TOPICS_BY_ID_SINCE_VERSION
    partitions = None if wanted.topics is None or by_id else _named_partitions(wanted.topics)
    try:
        committed = node.groups.committed(wanted.group_id, partitions)
    except KafkaError as mistake:
        return OffsetFetchResponseGroup(group_id=wanted.group_id, topics=[], error_code=mistake.code)
    topics = wanted.topics if wanted.topics is not None else _all_topics(node, committed, by_id)
    return OffsetFetchResponseGroup(
        group_id=wanted.group_id,
        topics=[_fetch_topic(node, topic, committed) for topic in topics],
        error_code=ErrorCode.NONE,
    )


def _named_partitions(topics: Iterable[OffsetFetchRequestTopics]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes]


def _all_topics(
    node: Node, committed: Mapping[TopicPartition, CommittedOffset], by_id: bool
) -> list[OffsetFetchRequestTopics]:
    topics: dict[str, OffsetFetchRequestTopics] = {}
    for name, partition in committed:
        known = node.metadata.state.topics.get(name)
        if known is None and by_id:
            continue
        row = topics.setdefault(name, OffsetFetchRequestTopics(name=name, partition_indexes=[]))
        row.topic_id = known.topic_id if known is not None and by_id else NO_UUID
        row.partition_indexes.append(partition)
    return list(topics.values())


def _fetch_topic(
    node: Node, topic: OffsetFetchRequestTopics, committed: Mapping[TopicPartition, CommittedOffset]
) -> OffsetFetchResponseTopics:
    name, code = topic.name, ErrorCode.NONE
    if topic.topic_id != NO_UUID:
        try:
            name = resolve_topic(node, None, topic.topic_id)
        except KafkaError as mistake:
            code = mistake.code
    rows = [
        _row(index, committed.get(TopicPartition(name, index)), code) for index in topic.partition_indexes
    ]
    return OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id, partitions=rows)


def _row(partition: int, found: CommittedOffset | None, code: ErrorCode) -> OffsetFetchResponsePartitions:
    if found is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=NO_COMMITTED_OFFSET, metadata="", error_code=code
        )
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=code,
    )


# --- OffsetDelete


async def offset_delete(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    partitions = [
        TopicPartition(topic.name, row.partition_index)
        for topic in request.topics
        for row in topic.partitions
    ]
    result = await context.node.groups.delete_offsets(request.group_id, partitions)
    if result.error:
        return OffsetDeleteResponse(error_code=result.error)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=row.partition_index,
                        error_code=result.errors[TopicPartition(topic.name, row.partition_index)],
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
