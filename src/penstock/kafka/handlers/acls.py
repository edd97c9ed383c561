"""DescribeAcls, CreateAcls and DeleteAcls: the access rules.

Where no login is required there is no authorizer, and all three answer SECURITY_DISABLED, as Kafka does.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from penstock.cluster import access_decisions
from penstock.cluster.access_state import AccessState
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from penstock.kafka.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.kafka.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from penstock.security.acls import AclBinding, AclFilter, binding_from_wire, filter_from_wire

MAX_FILTERS = 1_000
"""In one DeleteAcls: each is compared with every rule."""
COMPARED_IN_TURN = 5_000
"""Rules that are compared with filters before others get their turn: some milliseconds."""


def _check(context: RequestContext) -> AccessState:
    """The rules. KafkaError unless there is an authorizer, and the caller may do this."""
    access = context.cluster().access
    if not context.node.access.is_required:
        message = "no login is required on this cluster, so there are no access rules (--require-login)"
        raise KafkaError(ErrorCode.SECURITY_DISABLED, message)
    return access


async def describe_acls(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        access = _check(context)
        wanted = filter_from_wire(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
        selected = await _selected(context, access, wanted)
    except KafkaError as refused:
        return DescribeAclsResponse(error_code=refused.code, error_message=refused.message)
    pattern = attrgetter("resource_type", "name", "pattern_type")
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern_type,
                acls=[_description(binding) for binding in bindings],
            )
            for (kind, name, pattern_type), bindings in groupby(selected, pattern)
        ]
    )


def _description(binding: AclBinding) -> AclDescription:
    return AclDescription(
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


async def _selected(context: RequestContext, access: AccessState, wanted: AclFilter) -> list[AclBinding]:
    """The rules that a filter selects, in order. Others get their turn while very many are compared."""
    rows = ResponseRows(context)
    found = []
    for number, binding in enumerate(access.acls):
        if wanted.matches(binding):
            found.append(binding)
        if number % COMPARED_IN_TURN == COMPARED_IN_TURN - 1:
            await rows.pause()
    return sorted(found)


async def create_acls(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    try:
        _check(context)
    except KafkaError as refused:
        return CreateAclsResponse(results=[_failed(refused) for _ in request.creations])
    results: list[AclCreationResult] = []
    valid: list[tuple[AclCreationResult, AclBinding]] = []
    rows = ResponseRows(context)
    for creation in request.creations:
        await rows.pause()
        try:
            result = AclCreationResult()
            valid.append((result, _binding(creation)))
        except KafkaError as wrong:
            result = _failed(wrong)
        results.append(result)
    trouble = await _store(context, [binding for _, binding in valid])
    if trouble is not None:
        for result, _ in valid:
            result.error_code, result.error_message = trouble.code, trouble.message
    return CreateAclsResponse(results=results)


def _failed(refused: KafkaError) -> AclCreationResult:
    return AclCreationResult(error_code=refused.code, error_message=refused.message)


def _binding(creation: AclCreation) -> AclBinding:
    return binding_from_wire(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


async def _store(context: RequestContext, bindings: Iterable[AclBinding]) -> KafkaError | None:
    limits = context.node.config.limits
    try:
        await context.node.metadata.change(
            lambda state: access_decisions.create_acls(state, bindings, limits)
        )
    except KafkaError as refused:
        return refused
    except StorageError as trouble:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble))
    return None


async def delete_acls(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    try:
        access = _check(context)
        if len(request.filters) > MAX_FILTERS:
            message = f"{len(request.filters)} filters in one request: expected {MAX_FILTERS} at most"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    except KafkaError as refused:
        return DeleteAclsResponse(filter_results=[_no_filter(refused) for _ in request.filters])
    results = [await _delete(context, access, wanted) for wanted in request.filters]
    return DeleteAclsResponse(filter_results=results)


async def _delete(
    context: RequestContext, access: AccessState, wanted: DeleteAclsFilter
) -> DeleteAclsFilterResult:
    try:
        selecting = filter_from_wire(
            wanted.resource_type_filter,
            wanted.resource_name_filter,
            wanted.pattern_type_filter,
            wanted.principal_filter,
            wanted.host_filter,
            wanted.operation,
            wanted.permission_type,
        )
        selected = await _selected(context, access, selecting)
        if selected:
            await context.node.metadata.change(lambda state: access_decisions.delete_acls(state, selected))
    except KafkaError as refused:
        return _no_filter(refused)
    except StorageError as trouble:
        return _no_filter(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)))
    return DeleteAclsFilterResult(matching_acls=[_deleted(binding) for binding in selected])


def _no_filter(refused: KafkaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=refused.code, error_message=refused.message, matching_acls=[])


def _deleted(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )
