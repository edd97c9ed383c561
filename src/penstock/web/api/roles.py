"""Roles, and who has them."""

from collections import Counter

from penstock.cluster.access_state import AccessState
from penstock.node import Node
from penstock.security.roles import BUILT_IN_ROLES, Role
from penstock.types import Caller, Operation
from penstock.web.api.access_shapes import (
    Grant,
    GrantList,
    GrantParams,
    OneGrant,
    RoleFacts,
    RoleList,
    RoleParams,
    RolePermissions,
)
from penstock.web.api.routing import Call, NoParams


class Roles:
    """Operations on roles and grants."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def _access(self, caller: Caller, operation: Operation) -> AccessState:
        return self._node.resources.cluster(caller, operation).access

    async def list_roles(self, call: Call[NoParams, None]) -> RoleList:
        self._node.access_admin.check_required()
        access = self._access(call.caller, Operation.DESCRIBE)
        grants = Counter(grant.role for grant in access.grants)
        own = {name: access.roles[name] for name in sorted(access.roles)}
        return RoleList(
            roles=[
                RoleFacts.of(role, built_in=role.name not in own, grants=grants[role.name])
                for role in {**BUILT_IN_ROLES, **own}.values()
            ]
        )

    async def put_role(self, call: Call[RoleParams, RolePermissions]) -> RoleFacts:
        permissions = tuple(row.permission_of_role() for row in call.body.permissions)
        role = Role(call.params.role, permissions)
        access = self._access(call.caller, Operation.ALTER)  # the change may take this right from the caller
        await self._node.access_admin.put_role(role, caller=call.caller)
        grants = sum(grant.role == role.name for grant in access.grants)
        return RoleFacts.of(role, built_in=False, grants=grants)

    async def delete_role(self, call: Call[RoleParams, None]) -> None:
        await self._node.access_admin.delete_role(call.params.role, caller=call.caller)

    async def list_grants(self, call: Call[GrantParams, None]) -> GrantList:
        self._node.access_admin.check_required()
        access = self._access(call.caller, Operation.DESCRIBE)
        role, principal = call.params.role, call.params.principal
        return GrantList(
            grants=[
                Grant.of(grant)
                for grant in sorted(access.grants)
                if role in (None, grant.role) and principal in (None, grant.principal)
            ]
        )

    async def grant_role(self, call: Call[NoParams, Grant]) -> Grant:
        await self._node.access_admin.grant_role(call.body.grant(), caller=call.caller)
        return call.body

    async def revoke_role(self, call: Call[OneGrant, None]) -> None:
        await self._node.access_admin.revoke_role(call.params.grant(), caller=call.caller)
