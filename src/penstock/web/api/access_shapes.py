"""Requests about users, tokens, access rules and roles, and their answers.

Kafka's names, in small letters. No answer contains a password, or anything that was kept of one; a token is in the
answer that made it and in no other. Bodies with a password do not show it when they are printed.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.node.status.audit import MAX_NAMES
from penstock.security.acl_words import (
    FilterPattern,
    OperationName,
    PatternName,
    PermissionName,
    ResourceKind,
)
from penstock.security.acls import ANY_NAME, AclBinding, PatternType, Permission
from penstock.security.hosts import ANY_HOST
from penstock.security.plain import MAX_PASSWORD_BYTES
from penstock.security.principals import MAX_PRINCIPAL_CHARACTERS
from penstock.security.roles import (
    MAX_ROLE_NAME_CHARACTERS,
    MAX_ROLE_PERMISSIONS,
    Role,
    RoleGrant,
    RolePermission,
)
from penstock.security.scram_messages import MAX_USER_CHARACTERS
from penstock.security.tokens import MAX_DESCRIPTION_CHARACTERS, ApiToken
from penstock.types import CLUSTER_NAME, Operation, ResourceType
from penstock.web.api.problems import wrong

MAX_RULES = 1_000
"""In one request: they are one record of the metadata log."""
MAX_LIFETIME_MS = 10 * 365 * 24 * 3600 * 1000
MAX_NAME_CHARACTERS = 4_096

UserName = Annotated[str, Meta(min_length=1, max_length=MAX_USER_CHARACTERS, description="A user's name.")]
Password = Annotated[str, Meta(max_length=MAX_PASSWORD_BYTES)]
PrincipalText = Annotated[
    str, Meta(max_length=MAX_PRINCIPAL_CHARACTERS, description="User:NAME, Group:NAME, or User:* for all.")
]
ResourceName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
HostText = Annotated[str, Meta(max_length=100, description="*, an address, or a network: 10.1.0.0/16.")]
RoleName = Annotated[str, Meta(min_length=1, max_length=MAX_ROLE_NAME_CHARACTERS)]


class _Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    pass


# --- users


class UserParams(_Input, frozen=True, kw_only=True):
    user: UserName


class NewUser(_Input, frozen=True, kw_only=True):
    user: UserName
    password: Password

    def __repr__(self) -> str:
        return f"NewUser(user={self.user!r})"


class NewPassword(_Input, frozen=True, kw_only=True):
    password: Password

    def __repr__(self) -> str:
        return "NewPassword()"


class UserFacts(_Facts, frozen=True, kw_only=True):
    """`tokens` is the number of its API tokens."""

    user: str
    principal: str
    mechanisms: list[str]
    tokens: int
    super_user: bool


class UserList(_Facts, frozen=True, kw_only=True):
    users: list[UserFacts]


class DeletedUser(_Facts, frozen=True, kw_only=True):
    """Tokens are deleted with their user. Rules and grants stay: a user that gets the name later has them."""

    user: str
    tokens_deleted: int
    acls_left: int
    grants_left: int


# --- tokens


class TokenParams(_Input, frozen=True, kw_only=True):
    user: UserName
    token_id: Annotated[str, Meta(max_length=100)]


class NewToken(_Input, frozen=True, kw_only=True):
    """Without `lifetime_ms`, the token is good until it is revoked."""

    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARACTERS)] = ""
    lifetime_ms: Annotated[int, Meta(ge=1, le=MAX_LIFETIME_MS)] | None = None


class TokenFacts(_Facts, frozen=True, kw_only=True):
    token_id: str
    user: str
    description: str
    created_ms: int
    expires_ms: int | None

    @classmethod
    def of(cls, token: ApiToken) -> "TokenFacts":
        return cls(
            token_id=token.token_id,
            user=token.user,
            description=token.description,
            created_ms=token.created_ms,
            expires_ms=token.expires_ms,
        )


class TokenList(_Facts, frozen=True, kw_only=True):
    tokens: list[TokenFacts]


class MadeToken(_Facts, frozen=True, kw_only=True):
    """`token` is what clients send as `Authorization: Bearer`. It is not shown again."""

    token: str
    token_id: str
    user: str
    description: str
    created_ms: int
    expires_ms: int | None

    def __repr__(self) -> str:
        return f"MadeToken(token_id={self.token_id!r})"


# --- access rules


class AclRule(_Input, frozen=True, kw_only=True):
    """`name` may be left out for the cluster only."""

    principal: PrincipalText
    operation: OperationName
    resource_type: ResourceKind
    name: ResourceName | None = None
    pattern_type: PatternName = "literal"
    host: HostText = ANY_HOST
    permission: PermissionName = "allow"

    @classmethod
    def of(cls, binding: AclBinding) -> "AclRule":
        return msgspec.convert(
            {
                "principal": binding.principal,
                "operation": binding.operation.name.lower(),
                "resource_type": binding.resource_type.name.lower(),
                "name": binding.name,
                "pattern_type": binding.pattern_type.name.lower(),
                "host": binding.host,
                "permission": binding.permission.name.lower(),
            },
            cls,
        )

    def binding(self, field: str = "name") -> AclBinding:
        return AclBinding(
            ResourceType[self.resource_type.upper()],
            resource_name(self.resource_type, self.name, field),
            PatternType[self.pattern_type.upper()],
            self.principal,
            self.host,
            Operation[self.operation.upper()],
            Permission[self.permission.upper()],
        )


def resource_name(kind: ResourceKind, name: str | None, field: str = "name") -> str:
    """The name of a resource; the cluster's only one need not be given."""
    if name is None and kind == "cluster":
        return CLUSTER_NAME
    if name is None:
        raise wrong(field, f"expected the name of a {kind}, or * for all")
    return name


class NewAcls(_Input, frozen=True, kw_only=True):
    acls: Annotated[list[AclRule], Meta(min_length=1, max_length=MAX_RULES)]

    @property
    def audit_name(self) -> str:
        more = [f"{len(self.acls) - MAX_NAMES} more"] if len(self.acls) > MAX_NAMES else []
        return "; ".join([*(_rule_words(rule) for rule in self.acls[:MAX_NAMES]), *more])


class AclParams(_Input, frozen=True, kw_only=True):
    """Selects rules; fields that are left out select all. With `match`, a name selects the rules that apply to it."""

    resource_type: ResourceKind | None = None
    name: ResourceName | None = None
    pattern_type: FilterPattern = "any"
    principal: PrincipalText | None = None
    host: HostText | None = None
    operation: OperationName | None = None
    permission: PermissionName | None = None

    @property
    def audit_name(self) -> str:
        return _rule_words(self)


def _rule_words(rule: AclRule | AclParams) -> str:
    """As the audit log has the rules that Kafka's APIs change (`kafka/handlers/audited.py`)."""
    parts = (rule.permission, rule.principal, rule.operation, rule.resource_type)
    name = CLUSTER_NAME if rule.name is None and rule.resource_type == "cluster" else rule.name
    return " ".join(part or "any" for part in (*parts, name))


class AclList(_Facts, frozen=True, kw_only=True):
    acls: list[AclRule]


class CheckParams(_Input, frozen=True, kw_only=True):
    """`groups`: principals of the caller beside `principal`, with commas. `host`: the caller's, by default yours."""

    principal: PrincipalText
    operation: OperationName
    resource_type: ResourceKind
    name: ResourceName | None = None
    host: HostText | None = None
    groups: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] = ""


class AccessDecision(_Facts, frozen=True, kw_only=True):
    """`rule` decides; it is null for a super user, and if no rule says anything. `source` is the role that made it."""

    allowed: bool
    reason: str
    rule: AclRule | None
    source: str | None
    host: str


# --- roles


class RoleParams(_Input, frozen=True, kw_only=True):
    role: RoleName


class PermissionRow(_Input, frozen=True, kw_only=True):
    """Operations on resources of one type: on all of them, or on those that a name selects."""

    resource_type: ResourceKind
    operations: Annotated[list[OperationName], Meta(min_length=1, max_length=20)]
    name: ResourceName = ANY_NAME
    pattern_type: PatternName = "literal"
    permission: PermissionName = "allow"

    @classmethod
    def of(cls, permission: RolePermission) -> "PermissionRow":
        return msgspec.convert(
            {
                "resource_type": permission.resource_type.name.lower(),
                "operations": [operation.name.lower() for operation in permission.operations],
                "name": permission.name,
                "pattern_type": permission.pattern_type.name.lower(),
                "permission": permission.permission.name.lower(),
            },
            cls,
        )

    def permission_of_role(self) -> RolePermission:
        return RolePermission(
            ResourceType[self.resource_type.upper()],
            tuple(Operation[operation.upper()] for operation in self.operations),
            self.name,
            PatternType[self.pattern_type.upper()],
            Permission[self.permission.upper()],
        )


class RolePermissions(_Input, frozen=True, kw_only=True):
    permissions: Annotated[list[PermissionRow], Meta(min_length=1, max_length=MAX_ROLE_PERMISSIONS)]


class RoleFacts(_Facts, frozen=True, kw_only=True):
    """`grants` is how many grants there are of it."""

    role: str
    built_in: bool
    permissions: list[PermissionRow]
    grants: int

    @classmethod
    def of(cls, role: Role, *, built_in: bool, grants: int) -> "RoleFacts":
        rows = [PermissionRow.of(permission) for permission in role.permissions]
        return cls(role=role.name, built_in=built_in, permissions=rows, grants=grants)


class RoleList(_Facts, frozen=True, kw_only=True):
    roles: list[RoleFacts]


class Grant(_Input, frozen=True, kw_only=True):
    """A role for a principal: for everything, or for the names that a pattern selects."""

    role: RoleName
    principal: PrincipalText
    name: ResourceName = ANY_NAME
    pattern_type: PatternName = "literal"
    host: HostText = ANY_HOST

    @classmethod
    def of(cls, grant: RoleGrant) -> "Grant":
        pattern: PatternName = "prefixed" if grant.pattern_type == PatternType.PREFIXED else "literal"
        return cls(
            role=grant.role,
            principal=grant.principal,
            name=grant.name,
            pattern_type=pattern,
            host=grant.host,
        )

    @property
    def audit_name(self) -> str:
        names = "" if self.name == ANY_NAME else f" on {self.name}{'*' * (self.pattern_type == 'prefixed')}"
        return f"{self.role} for {self.principal}{names}"

    def grant(self) -> RoleGrant:
        pattern = PatternType[self.pattern_type.upper()]
        return RoleGrant(self.role, self.principal, self.name, pattern, self.host)


class OneGrant(Grant, frozen=True, kw_only=True):
    """The grant that is to end, in a query."""


class GrantParams(_Input, frozen=True, kw_only=True):
    """Selects grants; fields that are left out select all."""

    role: RoleName | None = None
    principal: PrincipalText | None = None


class GrantList(_Facts, frozen=True, kw_only=True):
    grants: list[Grant]
