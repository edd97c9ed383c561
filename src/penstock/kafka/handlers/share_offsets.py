"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: where queues begin.

Clients ask the group's coordinator, which knows whether the group is empty; other nodes may hold the stored state.
"""

from contextlib import suppress
from uuid import UUID

from penstock.errors import ErrorCode, KafkaError
from penstock.groups import ShareGroupDescription
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire import NO_UUID
from penstock.kafka.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from penstock.kafka.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from penstock.kafka.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from penstock.node.calls.messages.queues import QueueDescription
from penstock.types import ResourceType

NO_OFFSET = -1
ROWS_PER_GROUP = 20
"""Asking for the stored state of a group takes as long as so many rows."""


async def describe_share_group_offsets(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    rows = ResponseRows(context)
    groups = [await _describe(context, group, rows) for group in request.groups]
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _describe(
    context: RequestContext, wanted: DescribeShareGroupOffsetsRequestGroup, rows: ResponseRows
) -> DescribeShareGroupOffsetsResponseGroup:
    await rows.pause(ROWS_PER_GROUP)
    try:
        _find_group(
            context, wanted.group_id
        )  # as in Kafka, a group that does not exist has no offsets, and no error
        descriptions = await context.node.queues.overview.descriptions(
            wanted.group_id, caller=context.caller, counted=True
        )
    except KafkaError as mistake:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=wanted.group_id, error_code=mistake.code, error_message=mistake.message
        )
    found = {(one.topic, one.partition): one for one in descriptions}
    if wanted.topics is None:
        visible = context.node.resources.visible(
            context.caller, ResourceType.TOPIC, (topic for topic, _ in found), context.api.on_topic
        )
        places = [place for place in found if place[0] in visible]
    else:
        places = [(topic.topic_name, index) for topic in wanted.topics for index in topic.partitions]
    topics: dict[str, list[DescribeShareGroupOffsetsResponsePartition]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(_row(context, topic, index, found.get((topic, index))))
        await rows.pause()
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=wanted.group_id,
        topics=[
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=_topic_id(context, name), partitions=partitions
            )
            for name, partitions in topics.items()
        ],
    )


def _topic_id(context: RequestContext, name: str) -> UUID:
    try:
        return context.topic(name).topic_id
    except KafkaError:
        return NO_UUID


def _find_group(context: RequestContext, group_id: str) -> ShareGroupDescription | None:
    """None: there is no such share group. KafkaError unless this node coordinates it and the caller may use it."""
    context.check_group(group_id)
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group's name is empty")
    return context.node.queues.share_groups.describe(group_id)


def _check_empty(group: ShareGroupDescription) -> None:
    if group.members:
        message = f"{group.group_id!r} has {len(group.members)} members; stop them first"
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, message)


def _row(
    context: RequestContext, topic: str, index: int, description: QueueDescription | None
) -> DescribeShareGroupOffsetsResponsePartition:
    try:
        known = context.topic_of(topic, index)
    except KafkaError as refused:
        row = DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=NO_OFFSET)
        if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            row.error_code, row.error_message = refused.code, refused.message
        return row
    if description is None:
        return DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=NO_OFFSET)
    lag = NO_OFFSET
    if description.undone is not None:
        lag = description.undone
    elif description.end_offset is not None:
        lag = max(0, description.end_offset - description.start_offset)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=description.start_offset,
        leader_epoch=context.node.view.partition(known, index).term,
        lag=lag,
    )


async def alter_share_group_offsets(
    context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """A group that does not exist is created, unless the request names no partition that exists."""
    node, rows = context.node, ResponseRows(context)
    try:
        group = _find_group(context, request.group_id)
        if group is not None:
            _check_empty(group)
        elif await _names_a_partition(context, request, rows):
            await node.queues.share_groups.create(request.group_id)
    except KafkaError as mistake:
        return AlterShareGroupOffsetsResponse(error_code=mistake.code, error_message=mistake.message)
    answers: list[AlterShareGroupOffsetsResponseTopic] = []
    for topic in request.topics:
        partitions = []
        for row in topic.partitions:
            partitions.append(await _alter(context, request.group_id, topic.topic_name, row))
            await rows.pause()
        if altered := sum(row.error_code == ErrorCode.NONE for row in partitions):
            facts = {"group": request.group_id, "topic": topic.topic_name, "partitions": altered}
            node.events.tell("queue.reset", **facts, reason="its offsets were altered")
        answers.append(
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=_topic_id(context, topic.topic_name),
                partitions=partitions,
            )
        )
    return AlterShareGroupOffsetsResponse(responses=answers)


async def _names_a_partition(
    context: RequestContext, request: AlterShareGroupOffsetsRequest, rows: ResponseRows
) -> bool:
    for topic in request.topics:
        for row in topic.partitions:
            await rows.pause()
            with suppress(KafkaError):
                context.topic_of(topic.topic_name, row.partition_index)
                return True
    return False


async def _alter(
    context: RequestContext, group_id: str, name: str, wanted: AlterShareGroupOffsetsRequestPartition
) -> AlterShareGroupOffsetsResponsePartition:
    index, start_offset = wanted.partition_index, wanted.start_offset
    try:
        topic = context.topic_of(name, index)
        if start_offset < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"start_offset {start_offset}: expected 0 or more")
        await context.node.queues.overview.reset(group_id, topic, index, start_offset, caller=context.caller)
    except KafkaError as mistake:
        return AlterShareGroupOffsetsResponsePartition(
            partition_index=index, error_code=mistake.code, error_message=mistake.message
        )
    return AlterShareGroupOffsetsResponsePartition(partition_index=index)


async def delete_share_group_offsets(
    context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    node, rows = context.node, ResponseRows(context)
    try:
        group = _find_group(context, request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {request.group_id!r}")
        _check_empty(group)
        names = (topic.topic_name for topic in request.topics)
        visible = node.resources.visible(context.caller, ResourceType.TOPIC, names, context.api.on_topic)
        await node.queues.overview.forget(request.group_id, sorted(visible), caller=context.caller)
    except KafkaError as mistake:
        return DeleteShareGroupOffsetsResponse(error_code=mistake.code, error_message=mistake.message)
    answers: list[DeleteShareGroupOffsetsResponseTopic] = []
    for wanted in request.topics:
        answer = DeleteShareGroupOffsetsResponseTopic(topic_name=wanted.topic_name)
        try:
            answer.topic_id = context.topic(wanted.topic_name).topic_id
        except KafkaError as refused:
            answer.error_code, answer.error_message = refused.code, refused.message
        answers.append(answer)
        await rows.pause()
    return DeleteShareGroupOffsetsResponse(responses=answers)
