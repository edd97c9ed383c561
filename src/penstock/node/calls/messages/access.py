"""Requests to the controller about users, API tokens, roles and grants. Passwords stay on the node that got them: only
what is kept of them travels."""

import msgspec

from penstock.security.credentials import ScramCredential
from penstock.security.roles import RoleGrant, RolePermission
from penstock.security.tokens import ApiToken


class SetPasswords(msgspec.Struct, frozen=True, array_like=True):
    """All credentials of a user, by the SASL names of their mechanisms."""

    user: str
    passwords: dict[str, ScramCredential]


class DeleteUser(msgspec.Struct, frozen=True, array_like=True):
    user: str


class CreateToken(msgspec.Struct, frozen=True, array_like=True):
    token: ApiToken


class RevokeToken(msgspec.Struct, frozen=True, array_like=True):
    user: str
    token_id: str


class PutRole(msgspec.Struct, frozen=True, array_like=True):
    name: str
    permissions: tuple[RolePermission, ...]


class DeleteRole(msgspec.Struct, frozen=True, array_like=True):
    name: str


class GrantRole(msgspec.Struct, frozen=True, array_like=True):
    grant: RoleGrant


class RevokeRole(msgspec.Struct, frozen=True, array_like=True):
    grant: RoleGrant
