"""OffsetCommit, OffsetFetch and OffsetDelete: where groups continue reading.

Every node answers the OffsetFetch of a consumer: one that does not coordinate the group asks the coordinator, and waits
while there is none. Clients should look for the coordinator and ask again, but librdkafka's consumer never does (its
issue 5586): it would not read until it is restarted.
"""

from collections.abc import Container, Iterable, Mapping

from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, CommittedOffset, OffsetToCommit
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire import NO_UUID, ApiKey
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
from penstock.kafka.wire.messages.txn_offset_commit import TxnOffsetCommitRequestTopic
from penstock.node.calls import CoordinatorOf, methods
from penstock.node.calls.messages.kafka import KafkaRequest, KafkaResponse
from penstock.node.calls.retry import NO_COORDINATOR, is_retryable
from penstock.types import ResourceType, TopicPartition

MANY_GROUPS_SINCE_VERSION = 8
TOPICS_BY_ID_SINCE_VERSION = 10
GROUP_NOT_FOUND_SINCE_VERSION = 9
"""Older versions of OffsetCommit know only ILLEGAL_GENERATION for a member of a group that is gone."""
NO_COMMITTED_OFFSET = -1
INNER_VERSION = 9
"""Of OffsetFetch between nodes: the newest in which topics go by name."""
FORWARDED_PARTITIONS = 10_000
"""The most partitions for which another node is asked: both nodes decode the answer on their event loops. A consumer
names far fewer; requests of tools, for many groups or for everything that a group has, are not forwarded."""

_OLDER_CODES = {
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.UNSUPPORTED_VERSION,
}
"""The errors for versions of OffsetCommit that do not know member epochs."""


# --- OffsetCommit


async def offset_commit(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    known: dict[int, Topic] = {}
    errors: dict[int, ErrorCode] = {}
    for index, topic in enumerate(request.topics):
        try:
            context.check_group(request.group_id)
            known[index] = context.named_topic(topic.name, topic.topic_id)
        except KafkaError as mistake:
            errors[index] = mistake.code
    if ErrorCode.GROUP_AUTHORIZATION_FAILED in errors.values():
        return _committed(request, known, errors, {})
    commit = CommitRequest(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        offsets=tuple(offsets_to_commit(request.topics, known)),
        retention_ms=request.retention_time_ms,
    )
    codes: Mapping[TopicPartition, ErrorCode] = (await context.node.groups.commit(commit)).errors
    if context.api_version < GROUP_NOT_FOUND_SINCE_VERSION:
        codes = {one: _older_code(code) for one, code in codes.items()}
    return _committed(request, known, errors, codes)


def _older_code(code: ErrorCode) -> ErrorCode:
    return _OLDER_CODES.get(code, code)


def _committed(
    request: OffsetCommitRequest,
    known: Mapping[int, Topic],
    errors: Mapping[int, ErrorCode],
    codes: Mapping[TopicPartition, ErrorCode],
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=code_of(codes, known.get(index), row.partition_index, errors.get(index)),
                    )
                    for row in topic.partitions
                ],
            )
            for index, topic in enumerate(request.topics)
        ]
    )


def offsets_to_commit(
    topics: Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic], known: Mapping[int, Topic]
) -> Iterable[OffsetToCommit]:
    """The offsets of partitions that exist. The others get an error here: the coordinator does not know partitions."""
    for index, topic in enumerate(topics):
        found = known.get(index)
        for row in topic.partitions:
            if found is not None and 0 <= row.partition_index < found.partitions:
                yield OffsetToCommit(
                    topic=found.name,
                    partition=row.partition_index,
                    offset=row.committed_offset,
                    leader_epoch=row.committed_leader_epoch,
                    metadata=row.committed_metadata or "",
                )


def code_of(
    codes: Mapping[TopicPartition, ErrorCode], topic: Topic | None, partition: int, error: ErrorCode | None
) -> ErrorCode:
    if error is not None or topic is None:
        return error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes.get(TopicPartition(topic.name, partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


# --- OffsetFetch


async def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    rows = ResponseRows(context)
    if context.api_version >= MANY_GROUPS_SINCE_VERSION:
        stable = request.require_stable
        forward = len(request.groups) == 1 and _is_small(context, request.groups[0])
        groups = [await _fetch_group(context, group, rows, stable, forward) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=row.name, partition_indexes=row.partition_indexes)
            for row in request.topics
        ]
    wanted = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    group = await _fetch_group(context, wanted, rows, request.require_stable, _is_small(context, wanted))
    if group.error_code:  # before version 2 only partitions can carry it
        group.topics = [_refused_topic(topic, ErrorCode(group.error_code)) for topic in topics or ()]
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


def _is_small(context: RequestContext, wanted: OffsetFetchRequestGroup) -> bool:
    """Whether the coordinator may be asked for it: it is a client's, and names few partitions."""
    if context.connection.is_inner or wanted.topics is None:
        return False
    return sum(len(topic.partition_indexes) for topic in wanted.topics) <= FORWARDED_PARTITIONS


async def _fetch_group(
    context: RequestContext,
    wanted: OffsetFetchRequestGroup,
    rows: ResponseRows,
    require_stable: bool,
    may_forward: bool,
) -> OffsetFetchResponseGroup:
    """`require_stable`: offsets of open transactions may follow those that are committed, so the client must wait."""
    by_id = context.api_version >= TOPICS_BY_ID_SINCE_VERSION
    partitions = None if wanted.topics is None or by_id else _named_partitions(wanted.topics)
    try:
        context.check_group(wanted.group_id)
        if wanted.member_id is not None and wanted.member_epoch >= 0:
            context.node.groups.check_fetch(wanted.group_id, wanted.member_id, wanted.member_epoch)
        committed = context.node.groups.committed(wanted.group_id, partitions)
        unstable = context.node.groups.unstable(wanted.group_id, partitions) if require_stable else ()
        rows.reserve(1 + len(committed))
        await rows.pause(1 + len(committed))
    except KafkaError as mistake:
        if mistake.code in NO_COORDINATOR and may_forward and not by_id:
            return await _ask_coordinator(context, wanted, rows, require_stable)
        return OffsetFetchResponseGroup(group_id=wanted.group_id, topics=[], error_code=mistake.code)
    topics = wanted.topics if wanted.topics is not None else _all_topics(context, committed, by_id)
    return OffsetFetchResponseGroup(
        group_id=wanted.group_id,
        topics=[_fetch_topic(context, topic, committed, unstable) for topic in topics],
        error_code=ErrorCode.NONE,
    )


async def _ask_coordinator(
    context: RequestContext, wanted: OffsetFetchRequestGroup, rows: ResponseRows, require_stable: bool
) -> OffsetFetchResponseGroup:
    request = OffsetFetchRequest(groups=[wanted], require_stable=require_stable)
    try:
        response = await context.node.calls.ask(
            CoordinatorOf(wanted.group_id),
            methods.KAFKA_QUERY,
            KafkaRequest(ApiKey.OFFSET_FETCH, INNER_VERSION, request, None),
            caller=context.caller,
            code_of=lambda response: _group_of(response).error_code,
        )
    except KafkaError as trouble:
        is_passing = is_retryable(trouble.code) and trouble.code not in NO_COORDINATOR
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_passing else trouble.code
        return OffsetFetchResponseGroup(group_id=wanted.group_id, topics=[], error_code=code)
    group = _group_of(response)
    count = 1 + sum(len(topic.partitions) for topic in group.topics)
    rows.reserve(count)
    await rows.pause(count)
    return group


def _group_of(response: KafkaResponse) -> OffsetFetchResponseGroup:
    assert isinstance(response.body, OffsetFetchResponse)
    return response.body.groups[0]


def _refused_topic(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    rows = [_row(index, None, code) for index in topic.partition_indexes]
    return OffsetFetchResponseTopics(name=topic.name, partitions=rows)


def _named_partitions(topics: Iterable[OffsetFetchRequestTopics]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes]


def _all_topics(
    context: RequestContext, committed: Mapping[TopicPartition, CommittedOffset], by_id: bool
) -> list[OffsetFetchRequestTopics]:
    """All topics with committed offsets that the caller may see. By name, topics that were deleted are among them."""
    resources, operation = context.node.resources, context.api.on_topic
    names = {name for name, _ in committed}
    visible = resources.visible(context.caller, ResourceType.TOPIC, names, operation)
    ids = (
        {topic.name: topic.topic_id for topic in resources.topics(context.caller, operation)} if by_id else {}
    )
    topics: dict[str, OffsetFetchRequestTopics] = {}
    for name, partition in committed:
        if name not in visible or (by_id and name not in ids):
            continue
        row = topics.setdefault(name, OffsetFetchRequestTopics(name=name, partition_indexes=[]))
        row.topic_id = ids.get(name, NO_UUID)
        row.partition_indexes.append(partition)
    return list(topics.values())


def _fetch_topic(
    context: RequestContext,
    topic: OffsetFetchRequestTopics,
    committed: Mapping[TopicPartition, CommittedOffset],
    unstable: Container[TopicPartition],
) -> OffsetFetchResponseTopics:
    name, code = topic.name, ErrorCode.NONE
    try:
        if topic.topic_id != NO_UUID:
            name = context.named_topic(None, topic.topic_id).name
        else:
            context.check_topic_name(name)
    except KafkaError as mistake:
        code, committed, unstable = mistake.code, {}, ()
    partitions = [TopicPartition(name, index) for index in topic.partition_indexes]
    rows = [
        _row(one.partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if one in unstable
        else _row(one.partition, committed.get(one), code)
        for one in partitions
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
    try:
        context.check_group(request.group_id)
    except KafkaError as refused:
        return OffsetDeleteResponse(error_code=refused.code)
    names = (topic.name for topic in request.topics)
    visible = context.node.resources.visible(context.caller, ResourceType.TOPIC, names, context.api.on_topic)
    partitions = [
        TopicPartition(topic.name, row.partition_index)
        for topic in request.topics
        for row in topic.partitions
        if topic.name in visible
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
                        error_code=result.errors.get(
                            TopicPartition(topic.name, row.partition_index),
                            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        ),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
