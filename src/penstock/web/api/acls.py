"""Access rules: list, add, remove, and explain a decision. Rules go by Kafka's own APIs to the controller."""

from collections.abc import Iterable

from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.kafka.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.kafka.wire.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from penstock.node import Node
from penstock.security.acls import AclBinding, AclFilter, PatternType, Permission, binding_from_wire
from penstock.security.principals import parse_principal
from penstock.types import CLUSTER_NAME, Operation, ResourceType
from penstock.web.api.access_shapes import (
    AccessDecision,
    AclList,
    AclParams,
    AclRule,
    CheckParams,
    NewAcls,
    resource_name,
)
from penstock.web.api.problems import check, wrong
from penstock.web.api.routing import ROWS_IN_LOOP, Call, NoParams, in_thread_if

NO_FILTER = AclParams()


class Acls:
    """Operations on access rules."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def list_acls(self, call: Call[AclParams, None]) -> AclList:
        wanted = _filter(call.params)
        request = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )
        found = await call.client.ask(ApiKey.DESCRIBE_ACLS, request, DescribeAclsResponse)
        check(found.error_code, found.error_message)
        rows = sum(len(resource.acls) for resource in found.resources)
        return AclList(acls=await in_thread_if(rows > ROWS_IN_LOOP, _described, found.resources))

    async def add_acls(self, call: Call[NoParams, NewAcls]) -> AclList:
        bindings = [rule.binding(f"acls[{at}].name") for at, rule in enumerate(call.body.acls)]
        request = CreateAclsRequest(creations=[_creation(binding) for binding in bindings])
        made = await call.client.ask(ApiKey.CREATE_ACLS, request, CreateAclsResponse)
        for at, result in enumerate(made.results):
            check(result.error_code, result.error_message, f"acls[{at}]")
        await self._node.access_admin.applied(
            lambda state: all(state.access.has_acl(binding) for binding in bindings)
        )
        return AclList(acls=[AclRule.of(binding) for binding in bindings])

    async def remove_acls(self, call: Call[AclParams, None]) -> AclList:
        if call.params == NO_FILTER:
            raise wrong("principal", "this would remove every access rule: expected at least one filter")
        request = DeleteAclsRequest(filters=[_deletion(_filter(call.params))])
        [gone] = (await call.client.ask(ApiKey.DELETE_ACLS, request, DeleteAclsResponse)).filter_results
        check(gone.error_code, gone.error_message)
        many = len(gone.matching_acls) > ROWS_IN_LOOP
        bindings = await in_thread_if(many, _removed, gone.matching_acls)
        await self._node.access_admin.applied(
            lambda state: not any(state.access.has_acl(binding) for binding in bindings)
        )
        return AclList(acls=await in_thread_if(many, _rules, bindings))

    async def check_access(self, call: Call[CheckParams, None]) -> AccessDecision:
        params, node = call.params, self._node
        node.access_admin.check_required()
        host = call.caller.host if params.host is None else params.host
        groups = [group.strip() for group in params.groups.split(",") if group.strip()]
        who = [params.principal, *groups]
        for principal in who:
            parse_principal(principal)
        found = node.access.authorizer.explain(
            who,
            host,
            Operation[params.operation.upper()],
            ResourceType[params.resource_type.upper()],
            resource_name(params.resource_type, params.name),
        )
        return AccessDecision(
            allowed=found.allowed,
            reason=found.reason,
            rule=None if found.rule is None else AclRule.of(found.rule.binding),
            source=found.rule.source or None if found.rule is not None else None,
            host=host,
        )


def _filter(params: AclParams) -> AclFilter:
    name = params.name
    if name is None and params.resource_type == "cluster" and params.pattern_type != "any":
        name = CLUSTER_NAME
    return AclFilter(
        ResourceType[(params.resource_type or "any").upper()],
        name,
        PatternType[params.pattern_type.upper()],
        params.principal,
        params.host,
        Operation[(params.operation or "any").upper()],
        Permission[(params.permission or "any").upper()],
    )


def _creation(binding: AclBinding) -> AclCreation:
    return AclCreation(
        resource_type=binding.resource_type,
        resource_name=binding.name,
        resource_pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def _deletion(wanted: AclFilter) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def _described(resources: Iterable[DescribeAclsResource]) -> list[AclRule]:
    """May run in a thread, as `_removed` and `_rules`."""
    return [
        AclRule.of(
            binding_from_wire(
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                row.principal,
                row.host,
                row.operation,
                row.permission_type,
            )
        )
        for resource in resources
        for row in resource.acls
    ]


def _removed(rows: Iterable[DeleteAclsMatchingAcl]) -> list[AclBinding]:
    return [
        binding_from_wire(
            row.resource_type,
            row.resource_name,
            row.pattern_type,
            row.principal,
            row.host,
            row.operation,
            row.permission_type,
        )
        for row in rows
    ]


def _rules(bindings: Iterable[AclBinding]) -> list[AclRule]:
    return [AclRule.of(binding) for binding in bindings]
