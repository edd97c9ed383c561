"""Tells what somebody may do: the operations of the caller on one resource, and all rules of a principal with their
source.

`/v1/acls/check` decides about one operation; `/v1/acls/effective` shows everything that such a decision looks at."""

import msgspec

from penstock.node import Node
from penstock.security.acl_words import OperationName, ResourceKind
from penstock.security.acls import ANY_NAME
from penstock.security.principals import EVERYBODY, parse_principal
from penstock.security.rule_index import Rule
from penstock.types import CLUSTER_NAME, Operation, ResourceType
from penstock.web.api.access_shapes import AclRule, PrincipalText, ResourceName
from penstock.web.api.problems import wrong
from penstock.web.api.routing import ROWS_IN_LOOP, Call, in_thread_if

REAL_OPERATIONS = tuple(operation for operation in Operation if operation > Operation.ALL)
"""Without those that stand for several."""


class CallerOperationsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `name`: on all resources of the type; with `some`, on at least one that could exist."""

    resource_type: ResourceKind
    name: ResourceName | None = None
    some: bool = False


class CallerOperations(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that the access rules allow. The resource need not exist."""

    resource_type: ResourceKind
    name: str
    operations: list[OperationName]


class EffectiveParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`groups`: other principals of the same caller, with commas."""

    principal: PrincipalText
    groups: PrincipalText = ""


class EffectiveRule(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is the role that has made the rule; null for one that was made by itself."""

    rule: AclRule
    source: str | None


class EffectiveRules(msgspec.Struct, frozen=True, kw_only=True):
    """All rules that are looked at for a principal, those for everybody included. A super user may do everything, and
    no rule is looked at. An operation that no rule allows is denied, and a rule that denies wins."""

    principal: str
    super_user: bool
    rules: list[EffectiveRule]


class Permissions:
    """Operations that explain permissions."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def show_caller_operations(self, call: Call[CallerOperationsParams, None]) -> CallerOperations:
        kind = call.params.resource_type
        if call.params.some and call.params.name is not None:
            raise wrong("some", "expected name or some, not both")
        name = call.params.name or (CLUSTER_NAME if kind == "cluster" else ANY_NAME)
        resource_type, resources = ResourceType[kind.upper()], self._node.resources
        words = [
            operation.name.lower()
            for operation in REAL_OPERATIONS
            if resources.visible(call.caller, resource_type, (name,), operation)
            or (call.params.some and resources.allows_any(call.caller, resource_type, operation))
        ]
        return CallerOperations(
            resource_type=kind, name=name, operations=msgspec.convert(words, list[OperationName])
        )

    async def list_effective_rules(self, call: Call[EffectiveParams, None]) -> EffectiveRules:
        self._node.access_admin.check_required()
        params, authorizer = call.params, self._node.access.authorizer
        groups = [group.strip() for group in params.groups.split(",") if group.strip()]
        who = [params.principal, *groups]
        for principal in who:
            parse_principal(principal)
        found = sorted(rule for rule in authorizer.rules() if rule.binding.principal in (*who, EVERYBODY))
        return EffectiveRules(
            principal=params.principal,
            super_user=authorizer.is_super_user(who),
            rules=await in_thread_if(len(found) > ROWS_IN_LOOP, _rows, found),
        )


def _rows(rules: list[Rule]) -> list[EffectiveRule]:
    return [EffectiveRule(rule=AclRule.of(rule.binding), source=rule.source or None) for rule in rules]
