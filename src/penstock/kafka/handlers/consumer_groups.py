"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer protocol of KIP-848.

The `groups` package decides; this module translates requests and responses.
"""

from collections.abc import Callable, Iterable
from uuid import UUID, uuid4

from penstock.errors import ErrorCode, KafkaError
from penstock.groups import ConsumerGroupDescription, ConsumerHeartbeat, ConsumerMemberDescription
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.group_descriptions import describe_each
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages import consumer_group_describe as describing
from penstock.kafka.wire.messages import consumer_group_heartbeat as heartbeats

DEAD = "Dead"
CLIENT_NAMES_MEMBER_SINCE_VERSION = 1
"""Before, a member that joined without an id got one."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


# --- ConsumerGroupHeartbeat


async def consumer_group_heartbeat(
    context: RequestContext, request: heartbeats.ConsumerGroupHeartbeatRequest
) -> heartbeats.ConsumerGroupHeartbeatResponse:
    try:
        context.check_group(request.group_id)
        for name in request.subscribed_topic_names or ():
            context.check_topic_name(name)
    except KafkaError as refused:
        return heartbeats.ConsumerGroupHeartbeatResponse(
            error_code=refused.code, error_message=refused.message
        )
    result = await context.node.groups.consumer_heartbeat(_heartbeat(context, request))
    assignment = None
    if result.assignment is not None:
        assignment = heartbeats.Assignment(
            topic_partitions=[
                heartbeats.TopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in _by_topic(result.assignment)
            ]
        )
    return heartbeats.ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _heartbeat(
    context: RequestContext, request: heartbeats.ConsumerGroupHeartbeatRequest
) -> ConsumerHeartbeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    member_id = request.member_id
    if not member_id and request.member_epoch == 0:
        member_id = str(uuid4()) if context.api_version < CLIENT_NAMES_MEMBER_SINCE_VERSION else ""
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else tuple(names),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else frozenset(_partitions(owned)),
        caller=context.caller,
    )


def _partitions(topics: Iterable[heartbeats.TopicPartitions]) -> Iterable[tuple[UUID, int]]:
    return ((topic.topic_id, index) for topic in topics for index in topic.partitions)


def _by_topic(partitions: Iterable[tuple[UUID, int]]) -> Iterable[tuple[UUID, list[int]]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return topics.items()


# --- ConsumerGroupDescribe


async def consumer_group_describe(
    context: RequestContext, request: describing.ConsumerGroupDescribeRequest
) -> describing.ConsumerGroupDescribeResponse:
    groups = await describe_each(
        context, request.group_ids, _describe, operations=request.include_authorized_operations
    )
    return describing.ConsumerGroupDescribeResponse(groups=groups)


async def _describe(context: RequestContext, group_id: str, rows: ResponseRows) -> describing.DescribedGroup:
    await rows.pause()
    try:
        context.check_group(group_id)
        group = context.node.groups.describe_consumer_group(group_id)
        if group is None:
            message = f"there is no group {group_id!r} of the consumer protocol"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        rows.reserve(1 + len(group.members))
        await rows.pause(len(group.members))
        names = _topic_names(context, group)
        for name in {*names.values(), *(name for member in group.members for name in member.topics)}:
            context.check_topic_name(name)
    except KafkaError as mistake:
        return describing.DescribedGroup(
            group_id=group_id, group_state=DEAD, error_code=mistake.code, error_message=mistake.message
        )
    return describing.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_described_member(member, names.get) for member in group.members],
    )


def _topic_names(context: RequestContext, group: ConsumerGroupDescription) -> dict[UUID, str]:
    """The names of all topics that are assigned. One that was deleted has none, and is left out."""
    assigned = (part for member in group.members for part in (*member.assignment, *member.target))
    return context.node.resources.topic_names({topic_id for topic_id, _ in assigned})


def _described_member(
    member: ConsumerMemberDescription, name_of: Callable[[UUID], str | None]
) -> describing.Member:
    return describing.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern or None,
        assignment=_described_assignment(member.assignment, name_of),
        target_assignment=_described_assignment(member.target, name_of),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _described_assignment(
    partitions: Iterable[tuple[UUID, int]], name_of: Callable[[UUID], str | None]
) -> describing.Assignment:
    return describing.Assignment(
        topic_partitions=[
            describing.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=indexes)
            for topic_id, indexes in _by_topic(partitions)
            if (name := name_of(topic_id)) is not None
        ]
    )
