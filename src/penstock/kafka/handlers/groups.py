"""FindCoordinator and the group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The `groups` package decides; this module translates requests and responses.
"""

from typing import Any
from uuid import uuid4

from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.groups import JoinRequest, JoinResult, LeavingMember, Protocol, SyncRequest
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.kafka.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from penstock.kafka.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from penstock.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.node.coordination.durable_cores import DurableCores

GROUP_KEY, TRANSACTION_KEY = 0, 1
NO_NODE = -1

MANY_COORDINATORS_SINCE_VERSION = 4
MANY_LEAVERS_SINCE_VERSION = 3
MEMBER_ID_REQUIRED_SINCE_VERSION = 4
NULL_PROTOCOL_NAME_SINCE_VERSION = 7
SKIP_ASSIGNMENT_SINCE_VERSION = 9


# --- FindCoordinator


async def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if context.api_version >= MANY_COORDINATORS_SINCE_VERSION:
        rows, found = ResponseRows(context), []
        for key in request.coordinator_keys:
            found.append(await _find(context, key, request.key_type))
            await rows.pause()
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(context, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(context: RequestContext, key: str, key_type: int) -> Coordinator:
    try:
        cores = _checked_cores(context, key, key_type)
        await cores.ensure_topic()
        coordinator = context.node.view.coordinator(key, context.connection.listener_name, cores.topic)
    except KafkaError as mistake:
        if context.node.is_cut_off:
            context.connection.send_away()
        return Coordinator(
            key=key, node_id=NO_NODE, port=-1, error_code=mistake.code, error_message=mistake.message
        )
    except StorageError as refused:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Coordinator(key=key, node_id=NO_NODE, port=-1, error_code=code, error_message=str(refused))
    return Coordinator(key=key, node_id=coordinator.node_id, host=coordinator.host, port=coordinator.port)


def _checked_cores(context: RequestContext, key: str, key_type: int) -> DurableCores[Any]:
    """The coordinators of this type. KafkaError if there are none, or if the caller may not know."""
    if key_type == GROUP_KEY:
        context.check_group(key)
        return context.node.groups.cores
    if key_type == TRANSACTION_KEY:
        context.check_transactional_id(key)
        return context.node.transactions.cores
    message = f"key_type {key_type}: expected {GROUP_KEY} (group) or {TRANSACTION_KEY} (transaction)"
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)


def _refusal(context: RequestContext, group_id: str) -> ErrorCode:
    try:
        context.check_group(group_id)
    except KafkaError as refused:
        return refused.code
    return ErrorCode.NONE


# --- JoinGroup


async def join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    if refused := _refusal(context, request.group_id):
        return JoinGroupResponse(error_code=refused, generation_id=-1, protocol_name="", members=[])
    # As in Kafka, the id of a static member begins with its instance, of a dynamic one with its client: tools show it.
    caller = context.caller
    prefix = request.group_instance_id or caller.client_id
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=f"{prefix}-{uuid4()}",
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host="/" + caller.host,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(row.name, bytes(row.metadata)) for row in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        requires_known_member_id=context.api_version >= MEMBER_ID_REQUIRED_SINCE_VERSION,
        supports_skip_assignment=context.api_version >= SKIP_ASSIGNMENT_SINCE_VERSION,
    )
    result = await context.node.groups.join(join)
    return _joined(result, context.api_version)


def _joined(result: JoinResult, api_version: int) -> JoinGroupResponse:
    no_protocol = None if api_version >= NULL_PROTOCOL_NAME_SINCE_VERSION else ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name if result.protocol_name is not None else no_protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )


# --- SyncGroup, Heartbeat, LeaveGroup


async def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    if refused := _refusal(context, request.group_id):
        return SyncGroupResponse(error_code=refused, assignment=b"")
    sync = SyncRequest(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={row.member_id: bytes(row.assignment) for row in request.assignments},
    )
    result = await context.node.groups.sync(sync)
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


async def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    if refused := _refusal(context, request.group_id):
        return HeartbeatResponse(error_code=refused)
    code = await context.node.groups.heartbeat(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id
    )
    return HeartbeatResponse(error_code=code)


async def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if refused := _refusal(context, request.group_id):
        return LeaveGroupResponse(error_code=refused, members=[])
    if context.api_version >= MANY_LEAVERS_SINCE_VERSION:
        leaving = [
            LeavingMember(member_id=row.member_id, instance_id=row.group_instance_id)
            for row in request.members
        ]
    else:
        leaving = [LeavingMember(member_id=request.member_id)]
    result = await context.node.groups.leave(request.group_id, leaving)
    if context.api_version < MANY_LEAVERS_SINCE_VERSION:
        member_error = result.members[0].error if result.members else ErrorCode.NONE
        return LeaveGroupResponse(error_code=result.error or member_error)
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            MemberResponse(member_id=row.member_id, group_instance_id=row.instance_id, error_code=row.error)
            for row in result.members
        ],
    )
