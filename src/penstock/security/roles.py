"""Roles: access rules for people, who think of jobs and not of operations.

    viewer      sees everything and changes nothing: topics with their records, groups, queues, users, the cluster
    reader      reads records, in groups of its choice, whose offsets and jobs it may settle
    writer      writes records, also in transactions
    operator    creates, changes and deletes topics, looks after groups and settings; reads no record and gives no
                permission
    admin       everything, access rules and users included

A role is a set of permissions. A *grant* gives a role to a principal, either for everything or for names that a pattern
selects (`orders.` PREFIXED). With a pattern, a permission without a name is for those names. A permission with a name
of its own (an own role may have some, and the cluster has one) counts only in grants for everything: a grant for
`orders.` must not allow to change the cluster. A DENY always counts, since leaving it out would allow more.

Grants become access rules and nothing else: the authorizer decides on those, and names the role when it explains.
Kafka's right to change access rules is ALTER on the cluster, which is why operators do not have it.
"""

from collections.abc import Iterator, Mapping

import msgspec

from penstock.errors import ErrorCode, KafkaError
from penstock.security.acls import ANY_NAME, AclBinding, PatternType, Permission, check_binding
from penstock.security.hosts import ANY_HOST
from penstock.security.rule_index import Rule
from penstock.types import CLUSTER_NAME, Operation, ResourceType

MAX_ROLE_NAME_CHARACTERS = 100
MAX_ROLE_PERMISSIONS = 1_000
"""Each grant of the role makes as many rules, or more."""


class RolePermission(msgspec.Struct, frozen=True, array_like=True):
    """Operations on resources of one type."""

    resource_type: ResourceType
    operations: tuple[Operation, ...]
    name: str = ANY_NAME
    pattern_type: PatternType = PatternType.LITERAL
    permission: Permission = Permission.ALLOW


class Role(msgspec.Struct, frozen=True, array_like=True):
    """A named set of permissions."""

    name: str
    permissions: tuple[RolePermission, ...]


class RoleGrant(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A role of a principal, for everything or for the names that a pattern selects."""

    role: str
    principal: str
    name: str = ANY_NAME
    pattern_type: PatternType = PatternType.LITERAL
    host: str = ANY_HOST

    @property
    def is_for_everything(self) -> bool:
        """Whether the grant has no pattern."""
        return self.name == ANY_NAME and self.pattern_type == PatternType.LITERAL


_O = Operation
_T = ResourceType

_WITHOUT_PATTERN = (_T.CLUSTER, _T.USER)
"""A grant's pattern is about names of topics, groups and transactions."""
_ADMIN_TYPES = (_T.TOPIC, _T.GROUP, _T.CLUSTER, _T.TRANSACTIONAL_ID, _T.USER)

BUILT_IN_ROLES: Mapping[str, Role] = {
    role.name: role
    for role in (
        Role(
            "viewer",
            (
                RolePermission(_T.TOPIC, (_O.READ, _O.DESCRIBE_CONFIGS)),
                RolePermission(_T.GROUP, (_O.DESCRIBE, _O.DESCRIBE_CONFIGS)),
                RolePermission(_T.TRANSACTIONAL_ID, (_O.DESCRIBE,)),
                RolePermission(_T.CLUSTER, (_O.DESCRIBE, _O.DESCRIBE_CONFIGS)),
            ),
        ),
        Role(
            "reader",
            (
                RolePermission(_T.TOPIC, (_O.READ, _O.DESCRIBE_CONFIGS)),
                RolePermission(_T.GROUP, (_O.READ,)),
            ),
        ),
        Role(
            "writer",
            (
                RolePermission(_T.TOPIC, (_O.WRITE, _O.DESCRIBE_CONFIGS)),
                RolePermission(_T.TRANSACTIONAL_ID, (_O.WRITE,)),
                RolePermission(_T.CLUSTER, (_O.IDEMPOTENT_WRITE,)),
            ),
        ),
        Role(
            "operator",
            (
                RolePermission(_T.TOPIC, (_O.CREATE, _O.DELETE, _O.ALTER, _O.ALTER_CONFIGS)),
                RolePermission(_T.GROUP, (_O.DESCRIBE, _O.DELETE, _O.ALTER_CONFIGS)),
                RolePermission(_T.TRANSACTIONAL_ID, (_O.DESCRIBE,)),
                RolePermission(_T.CLUSTER, (_O.CREATE, _O.DESCRIBE, _O.ALTER_CONFIGS)),
            ),
        ),
        Role("admin", tuple(RolePermission(kind, (_O.ALL,)) for kind in _ADMIN_TYPES)),
    )
}
"""The roles that every cluster has. They cannot be changed."""


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_role(role: Role) -> Role:
    """An own role, if it can be stored. KafkaError(INVALID_REQUEST) says what is wrong with it."""
    if not 0 < len(role.name) <= MAX_ROLE_NAME_CHARACTERS or not role.name.isprintable():
        raise _refused(f"the name of a role has 1 to {MAX_ROLE_NAME_CHARACTERS} printable characters")
    if role.name in BUILT_IN_ROLES:
        raise _refused(f"the role {role.name!r} is built in and cannot be changed")
    if not 0 < sum(len(some.operations) for some in role.permissions) <= MAX_ROLE_PERMISSIONS:
        raise _refused(f"a role has 1 to {MAX_ROLE_PERMISSIONS} permissions")
    for binding in _bindings(role, RoleGrant(role.name, "User:somebody")):
        check_binding(binding)
    return role


def check_grant(grant: RoleGrant, roles: Mapping[str, Role]) -> RoleGrant:
    """A grant, if there is the role and the grant gives any right."""
    role = find_role(grant.role, roles)
    bindings = tuple(_bindings(role, grant))
    if not bindings:
        raise _refused(f"the role {grant.role!r} has no permission that a pattern could select")
    for binding in bindings:
        check_binding(binding)
    return grant


def find_role(name: str, roles: Mapping[str, Role]) -> Role:
    """One of the cluster's own roles, or a built-in one. A cluster may have made a role before there was a built-in one
    of that name, and goes on with its own."""
    role = roles.get(name) or BUILT_IN_ROLES.get(name)
    if role is None:
        known = ", ".join([*BUILT_IN_ROLES, *sorted(roles)][:20])
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no role {name[:100]!r}; there are {known}")
    return role


def rules_of(role: Role, grant: RoleGrant) -> tuple[Rule, ...]:
    """The access rules that a grant of the role makes. Two grants never make the same rule, so that each can end
    without the other: the source names the grant's pattern."""
    prefix = "prefix " if grant.pattern_type == PatternType.PREFIXED else ""
    pattern = "" if grant.is_for_everything else f" for {prefix}{grant.name!r}"
    return tuple(Rule(binding, f"role {role.name}{pattern}") for binding in _bindings(role, grant))


def _bindings(role: Role, grant: RoleGrant) -> Iterator[AclBinding]:
    for permission in role.permissions:
        pattern = _pattern(permission, grant)
        if pattern is not None:
            for operation in permission.operations:
                yield AclBinding(
                    permission.resource_type,
                    *pattern,
                    grant.principal,
                    grant.host,
                    operation,
                    permission.permission,
                )


def _pattern(permission: RolePermission, grant: RoleGrant) -> tuple[str, PatternType] | None:
    """Which names a permission is for under a grant; None if it does not count under it."""
    named = permission.name != ANY_NAME or permission.pattern_type != PatternType.LITERAL
    if not named and permission.resource_type not in _WITHOUT_PATTERN:
        return grant.name, grant.pattern_type
    if not grant.is_for_everything and permission.permission != Permission.DENY:
        return None
    if permission.resource_type == ResourceType.CLUSTER:
        return CLUSTER_NAME, PatternType.LITERAL
    return permission.name, permission.pattern_type
