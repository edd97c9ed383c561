"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: where queues begin.

They are asked of the group's coordinator, which knows whether the group is empty; what is stored may be elsewhere.
"""

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
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
from penstock.node import Node
from penstock.node.queues import QueuePicture

NO_OFFSET = -1


async def describe_share_group_offsets(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    groups = [await _describe(context.node, group) for group in request.groups]
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _describe(
    node: Node, wanted: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    try:
        _check_group(node, wanted.group_id)
        pictures = await node.queue_overview.pictures(wanted.group_id)
    except KafkaError as mistake:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=wanted.group_id, error_code=mistake.code, error_message=mistake.message
        )
    found = {(one.topic, one.partition): one for one in pictures}
    if wanted.topics is None:
        places = list(found)
    else:
        places = [(topic.topic_name, index) for topic in wanted.topics for index in topic.partitions]
    rows: dict[str, list[DescribeShareGroupOffsetsResponsePartition]] = {}
    for topic, index in places:
        rows.setdefault(topic, []).append(_row(node, topic, index, found.get((topic, index))))
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=wanted.group_id,
        topics=[
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=node.metadata.state.topics[name].topic_id, partitions=partitions
            )
            if name in node.metadata.state.topics
            else DescribeShareGroupOffsetsResponseTopic(topic_name=name, partitions=partitions)
            for name, partitions in rows.items()
        ],
    )


def _check_group(node: Node, group_id: str, *, must_be_empty: bool = False) -> None:
    described = node.share_groups.describe(group_id)
    if described is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id!r}")
    if must_be_empty and described.members:
        message = f"{group_id!r} has {len(described.members)} members; stop them first"
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, message)


def _row(
    node: Node, topic: str, index: int, picture: QueuePicture | None
) -> DescribeShareGroupOffsetsResponsePartition:
    known = node.metadata.state.topics.get(topic)
    if known is None or not 0 <= index < known.partitions:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=NO_OFFSET,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"there is no partition {topic}-{index}",
        )
    if picture is None:
        return DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=NO_OFFSET)
    lag = NO_OFFSET
    if picture.undone is not None:
        lag = picture.undone
    elif picture.end_offset is not None:
        lag = max(0, picture.end_offset - picture.start_offset)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=picture.start_offset,
        leader_epoch=node.view.partition(known, index).term,
        lag=lag,
    )


async def alter_share_group_offsets(
    context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    node = context.node
    try:
        _check_group(node, request.group_id, must_be_empty=True)
    except KafkaError as mistake:
        return AlterShareGroupOffsetsResponse(error_code=mistake.code, error_message=mistake.message)
    answers: list[AlterShareGroupOffsetsResponseTopic] = []
    for topic in request.topics:
        rows = [
            await _alter(node, request.group_id, topic.topic_name, row.partition_index, row.start_offset)
            for row in topic.partitions
        ]
        if altered := sum(row.error_code == ErrorCode.NONE for row in rows):
            facts = {"group": request.group_id, "topic": topic.topic_name, "partitions": altered}
            node.events.tell("queue.reset", **facts, reason="its offsets were altered")
        known = node.metadata.state.topics.get(topic.topic_name)
        answer = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=rows)
        if known is not None:
            answer.topic_id = known.topic_id
        answers.append(answer)
    return AlterShareGroupOffsetsResponse(responses=answers)


async def _alter(
    node: Node, group_id: str, name: str, index: int, start_offset: int
) -> AlterShareGroupOffsetsResponsePartition:
    try:
        topic = node.metadata.state.topics.get(name)
        if topic is None or not 0 <= index < topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        if start_offset < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"start_offset {start_offset}: expected 0 or more")
        await node.queue_overview.reset(group_id, topic, index, start_offset)
    except KafkaError as mistake:
        return AlterShareGroupOffsetsResponsePartition(
            partition_index=index, error_code=mistake.code, error_message=mistake.message
        )
    return AlterShareGroupOffsetsResponsePartition(partition_index=index)


async def delete_share_group_offsets(
    context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    node = context.node
    try:
        _check_group(node, request.group_id, must_be_empty=True)
        await node.queue_overview.forget(request.group_id, [topic.topic_name for topic in request.topics])
    except KafkaError as mistake:
        return DeleteShareGroupOffsetsResponse(error_code=mistake.code, error_message=mistake.message)
    answers: list[DeleteShareGroupOffsetsResponseTopic] = []
    for wanted in request.topics:
        topic = node.metadata.state.topics.get(wanted.topic_name)
        answer = DeleteShareGroupOffsetsResponseTopic(topic_name=wanted.topic_name)
        if topic is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answer.error_message = f"there is no topic {wanted.topic_name!r}"
        else:
            answer.topic_id = topic.topic_id
        answers.append(answer)
    return DeleteShareGroupOffsetsResponse(responses=answers)
