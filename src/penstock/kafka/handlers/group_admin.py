"""ListGroups, DescribeGroups and DeleteGroups."""

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.group_descriptions import describe_each
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from penstock.kafka.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.kafka.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.types import ResourceType

NOT_FOUND_SINCE_VERSION = 6
"""Older clients expect an unknown group in the state Dead, without an error."""

DEAD = "Dead"
DELETION_REFUSED = {
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "the group still has members",
}
ROWS_PER_DELETION = 10
"""Deleting a group takes as long as so many rows of a response."""


async def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    node, rows = context.node, ResponseRows(context)
    response = ListGroupsResponse(error_code=ErrorCode.NONE, groups=[])
    for row in node.groups.list(states=request.states_filter, types=request.types_filter):
        await rows.pause()
        if node.resources.visible(context.caller, ResourceType.GROUP, (row.group_id,), context.api.on_group):
            response.groups.append(
                ListedGroup(
                    group_id=row.group_id,
                    protocol_type=row.protocol_type,
                    group_state=row.state.value,
                    group_type=row.group_type,
                )
            )
    if not node.groups.cores.all_online:
        response.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return response


async def describe_groups(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    groups = await describe_each(
        context, request.groups, _describe, operations=request.include_authorized_operations
    )
    return DescribeGroupsResponse(groups=groups)


async def _describe(context: RequestContext, group_id: str, rows: ResponseRows) -> DescribedGroup:
    await rows.pause()
    try:
        context.check_group(group_id)
        group = context.node.groups.describe(group_id)
        rows.reserve(1 + (len(group.members) if group is not None else 0))
        await rows.pause(len(group.members) if group is not None else 0)
    except KafkaError as mistake:
        return DescribedGroup(
            group_id=group_id, group_state=DEAD, error_code=mistake.code, error_message=mistake.message
        )
    if group is None:
        if context.api_version >= NOT_FOUND_SINCE_VERSION:
            code, message = ErrorCode.GROUP_ID_NOT_FOUND, _why_not_described(context, group_id)
            return DescribedGroup(group_id=group_id, group_state=DEAD, error_code=code, error_message=message)
        return DescribedGroup(group_id=group_id, group_state=DEAD)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )


def _why_not_described(context: RequestContext, group_id: str) -> str:
    if context.node.queues.share_groups.is_known(group_id):
        return f"{group_id!r:.200} is a share group: use ShareGroupDescribe"
    if context.node.groups.describe_consumer_group(group_id) is not None:
        return f"{group_id!r:.200} is a group of the consumer protocol: use ConsumerGroupDescribe"
    return f"there is no group {group_id!r:.200}"


async def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    results, rows = dict[str, DeletableGroupResult](), ResponseRows(context)
    for name in dict.fromkeys(request.groups_names):
        results[name] = await _delete(context, name)
        await rows.pause(ROWS_PER_DELETION)
    return DeleteGroupsResponse(results=[results[name] for name in request.groups_names])


async def _delete(context: RequestContext, group_id: str) -> DeletableGroupResult:
    try:
        context.check_group(group_id)
        code = await _delete_allowed(context, group_id)
    except KafkaError as refused:
        return DeletableGroupResult(group_id=group_id, error_code=refused.code, error_message=refused.message)
    reason = DELETION_REFUSED.get(code, code.name)
    message = None if code is ErrorCode.NONE else f"{group_id:.200}: {reason}"
    return DeletableGroupResult(group_id=group_id, error_code=code, error_message=message)


async def _delete_allowed(context: RequestContext, group_id: str) -> ErrorCode:
    node = context.node
    if node.queues.share_groups.is_known(group_id):
        return await node.queues.share_groups.delete(group_id, caller=context.caller)
    if not await node.subscriptions.wait_detached(group_id):
        return ErrorCode.NON_EMPTY_GROUP
    return (await node.groups.delete([group_id]))[group_id]
