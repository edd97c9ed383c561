"""ShareGroupHeartbeat and ShareGroupDescribe.

The `groups` package decides; this module translates requests and responses.
"""

from collections.abc import Iterable

from penstock.errors import ErrorCode, KafkaError
from penstock.groups import SharedTopic, ShareGroupDescription, ShareHeartbeat, ShareMemberDescription
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.group_descriptions import describe_each
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages import share_group_describe as describing
from penstock.kafka.wire.messages import share_group_heartbeat as heartbeats

DEAD = "Dead"
ASSIGNOR = "simple"
"""The name of Kafka's only assignor for share groups, which gives all partitions to all."""


async def share_group_heartbeat(
    context: RequestContext, request: heartbeats.ShareGroupHeartbeatRequest
) -> heartbeats.ShareGroupHeartbeatResponse:
    names = request.subscribed_topic_names
    try:
        context.check_group(request.group_id)
        for name in names or ():
            context.check_topic_name(name)
    except KafkaError as refused:
        return heartbeats.ShareGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message)
    heartbeat = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        topics=None if names is None else tuple(names),
        rack_id=request.rack_id,
        client_id=context.caller.client_id,
        client_host="/" + context.caller.host,
    )
    result = await context.node.queues.share_groups.heartbeat(heartbeat)
    return heartbeats.ShareGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None if result.assignment is None else _assigned(result.assignment),
    )


def _assigned(topics: Iterable[SharedTopic]) -> heartbeats.Assignment:
    return heartbeats.Assignment(
        topic_partitions=[
            heartbeats.TopicPartitions(topic_id=topic.topic_id, partitions=list(range(topic.partitions)))
            for topic in topics
        ]
    )


async def share_group_describe(
    context: RequestContext, request: describing.ShareGroupDescribeRequest
) -> describing.ShareGroupDescribeResponse:
    groups = await describe_each(
        context, request.group_ids, _describe, operations=request.include_authorized_operations
    )
    return describing.ShareGroupDescribeResponse(groups=groups)


async def _describe(context: RequestContext, group_id: str, rows: ResponseRows) -> describing.DescribedGroup:
    await rows.pause()
    try:
        context.check_group(group_id)
        group = context.node.queues.share_groups.describe(group_id)
        if group is None:
            message = f"there is no share group {group_id!r}"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        rows.reserve(1 + len(group.members))
        await rows.pause(len(group.members))
        for name in {name for member in group.members for name in member.topics}:
            context.check_topic_name(name)
    except KafkaError as mistake:
        return describing.DescribedGroup(
            group_id=group_id, group_state=DEAD, error_code=mistake.code, error_message=mistake.message
        )
    return _described(group)


def _described(group: ShareGroupDescription) -> describing.DescribedGroup:
    return describing.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.epoch,
        assignor_name=ASSIGNOR,
        members=[_described_member(member) for member in group.members],
    )


def _described_member(member: ShareMemberDescription) -> describing.Member:
    return describing.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=describing.Assignment(
            topic_partitions=[
                describing.TopicPartitions(
                    topic_id=topic.topic_id, topic_name=topic.name, partitions=list(range(topic.partitions))
                )
                for topic in member.assignment
            ]
        ),
    )
