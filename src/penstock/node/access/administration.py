"""Users, API tokens, roles and grants, as administrators and users change them.

`AccessAdmin` has both sides, as the controller has: its methods ask the controller, wherever that is, and return when
this node has applied the change; its handlers answer on the node that has the role. Access rules of their own go by
Kafka's APIs (`kafka/handlers/acls.py`).

A user may set its own password and manage its own tokens; everything else needs ALTER on the cluster. The node that
talks to the user makes sure that it has logged in with its password for that (`web/api/routing.py`).
"""

import secrets
from collections.abc import Callable, Sequence

from penstock.cluster import ClusterState, MetadataRecord, access_decisions, role_decisions
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.node.access.access import Access
from penstock.node.access.first_user import FIRST_USER, PASSWORD_BYTES
from penstock.node.access.logins import Logins
from penstock.node.calls import BROKER, CONTROLLER, Calls, methods
from penstock.node.calls.messages.access import (
    CreateToken,
    DeleteRole,
    DeleteUser,
    GrantRole,
    PutRole,
    RevokeRole,
    RevokeToken,
    SetPasswords,
)
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.resources import Resources
from penstock.node.scheduling.clock import Clock
from penstock.security import principals
from penstock.security.passwords import check_new_password, check_user_name
from penstock.security.roles import Role, RoleGrant
from penstock.security.tokens import TOKEN_RANDOM_BYTES, ApiToken, make_token
from penstock.types import Caller, Operation

APPLIED_SECONDS = 5.0
"""How long a node waits until it has applied a change that the controller has committed."""

Decide = Callable[[ClusterState], Sequence[MetadataRecord]]


class AccessAdmin:
    """Asks the controller, and answers if this node has that role."""

    def __init__(
        self,
        *,
        metadata: MetadataLog,
        calls: Calls,
        resources: Resources,
        access: Access,
        logins: Logins,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._calls = calls
        self._resources = resources
        self._access = access
        self._logins = logins
        self._limits = limits
        calls.serve(methods.CREATE_USER, self._create_user)
        calls.serve(methods.SET_PASSWORDS, self._set_passwords)
        calls.serve(methods.DELETE_USER, self._delete_user)
        calls.serve(methods.CREATE_TOKEN, self._create_token)
        calls.serve(methods.REVOKE_TOKEN, self._revoke_token)
        calls.serve(methods.PUT_ROLE, self._put_role)
        calls.serve(methods.DELETE_ROLE, self._delete_role)
        calls.serve(methods.GRANT_ROLE, self._grant_role)
        calls.serve(methods.REVOKE_ROLE, self._revoke_role)

    # --- asking

    async def create_user(self, user: str, password: str, *, caller: Caller) -> None:
        """KafkaError says why not; it never quotes the password."""
        check_user_name(user)
        request = SetPasswords(user, await self._logins.make_credentials(check_new_password(password)))
        await self._calls.ask(CONTROLLER, methods.CREATE_USER, request, caller=caller)
        await self.applied(lambda state: user in state.access.users)

    async def set_password(self, user: str, password: str, *, caller: Caller) -> None:
        made = await self._logins.make_credentials(check_new_password(password))
        await self._calls.ask(CONTROLLER, methods.SET_PASSWORDS, SetPasswords(user, made), caller=caller)
        await self.applied(lambda state: state.access.users.get(user) == made)

    async def reset_first_user(self) -> tuple[str, str]:
        """The name and a new password of the first user, which is made again if it was deleted. For those who may start
        a node: that takes its data folder and the cluster key, with which they could change everything anyway."""
        user, password = FIRST_USER, secrets.token_urlsafe(PASSWORD_BYTES)
        try:
            await self.set_password(user, password, caller=BROKER)
        except KafkaError as refused:
            if refused.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise
            await self.create_user(user, password, caller=BROKER)
        return user, password

    async def delete_user(self, user: str, *, caller: Caller) -> None:
        await self._calls.ask(CONTROLLER, methods.DELETE_USER, DeleteUser(user), caller=caller)
        await self.applied(lambda state: user not in state.access.users)

    def tokens_of(self, user: str, *, caller: Caller) -> list[ApiToken] | None:
        """The API tokens of a user; None if there is no such user."""
        self._check_own(caller, user, Operation.DESCRIBE)
        access = self._metadata.state.access
        return list(access.tokens_of(user)) if user in access.users else None

    async def create_token(
        self, user: str, *, description: str, lifetime_ms: int | None, caller: Caller
    ) -> tuple[str, ApiToken]:
        """The token, which is nowhere else, and what is kept of it."""
        now_ms = self._clock.wall_ms()
        expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        text, token = make_token(
            secrets.token_bytes(TOKEN_RANDOM_BYTES), user, now_ms, expires_ms, description
        )
        await self._calls.ask(CONTROLLER, methods.CREATE_TOKEN, CreateToken(token), caller=caller)
        await self.applied(lambda state: token.token_id in state.access.tokens)
        return text, token

    async def revoke_token(self, user: str, token_id: str, *, caller: Caller) -> None:
        await self._calls.ask(CONTROLLER, methods.REVOKE_TOKEN, RevokeToken(user, token_id), caller=caller)
        await self.applied(lambda state: token_id not in state.access.tokens)

    async def put_role(self, role: Role, *, caller: Caller) -> None:
        self.check_required()
        request = PutRole(role.name, role.permissions)
        await self._calls.ask(CONTROLLER, methods.PUT_ROLE, request, caller=caller)
        await self.applied(lambda state: state.access.roles.get(role.name) == role)

    async def delete_role(self, name: str, *, caller: Caller) -> None:
        self.check_required()
        await self._calls.ask(CONTROLLER, methods.DELETE_ROLE, DeleteRole(name), caller=caller)
        await self.applied(lambda state: name not in state.access.roles)

    async def grant_role(self, grant: RoleGrant, *, caller: Caller) -> None:
        self.check_required()
        await self._calls.ask(CONTROLLER, methods.GRANT_ROLE, GrantRole(grant), caller=caller)
        await self.applied(lambda state: grant in state.access.grants)

    async def revoke_role(self, grant: RoleGrant, *, caller: Caller) -> None:
        self.check_required()
        await self._calls.ask(CONTROLLER, methods.REVOKE_ROLE, RevokeRole(grant), caller=caller)
        await self.applied(lambda state: grant not in state.access.grants)

    def check_required(self) -> None:
        """Raises SECURITY_DISABLED where no login is required: rules would have no effect."""
        if not self._access.is_required:
            message = "no login is required on this cluster, so there are no access rules (--require-login)"
            raise KafkaError(ErrorCode.SECURITY_DISABLED, message)

    async def applied(self, is_applied: Callable[[ClusterState], bool]) -> None:
        """Returns when this node has applied a change, so that the caller's next request to it sees it. A timeout is no
        failure: the change is committed."""
        await self._metadata.until(lambda: is_applied(self._metadata.state), APPLIED_SECONDS)

    # --- answering

    async def _create_user(self, caller: Caller, request: SetPasswords) -> None:
        user, passwords = request.user, request.passwords
        await self._change(lambda state: access_decisions.create_user(state, user, passwords, self._limits))

    async def _set_passwords(self, caller: Caller, request: SetPasswords) -> None:
        self._check_own(caller, request.user)
        await self._change(
            lambda state: access_decisions.set_passwords(state, request.user, request.passwords)
        )

    async def _delete_user(self, caller: Caller, request: DeleteUser) -> None:
        await self._change(lambda state: access_decisions.delete_user(state, request.user))

    async def _create_token(self, caller: Caller, request: CreateToken) -> None:
        self._check_own(caller, request.token.user)
        await self._change(lambda state: access_decisions.create_token(state, request.token, self._limits))

    async def _revoke_token(self, caller: Caller, request: RevokeToken) -> None:
        self._check_own(caller, request.user)
        await self._change(lambda state: access_decisions.revoke_token(state, request.user, request.token_id))

    async def _put_role(self, caller: Caller, request: PutRole) -> None:
        role = Role(request.name, request.permissions)
        await self._change(lambda state: role_decisions.put_role(state, role, self._limits))

    async def _delete_role(self, caller: Caller, request: DeleteRole) -> None:
        await self._change(lambda state: role_decisions.delete_role(state, request.name))

    async def _grant_role(self, caller: Caller, request: GrantRole) -> None:
        await self._change(lambda state: role_decisions.grant_role(state, request.grant, self._limits))

    async def _revoke_role(self, caller: Caller, request: RevokeRole) -> None:
        await self._change(lambda state: role_decisions.revoke_role(state, request.grant))

    async def _change(self, decide: Decide) -> None:
        await self._metadata.change(decide)

    def _check_own(self, caller: Caller, user: str, operation: Operation = Operation.ALTER) -> None:
        """Raises unless the caller is this user, or may do this with all users."""
        if caller.principal != principals.user(user):
            self._resources.check_cluster(caller, operation)
