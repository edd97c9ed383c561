"""Users and their API tokens.

Passwords come as text, over a connection that should be TLS, and are turned into credentials in a thread. They are in
no log, event, error or answer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from penstock.node import Node
from penstock.security import principals
from penstock.types import Operation
from penstock.web.api.access_shapes import (
    DeletedUser,
    MadeToken,
    NewPassword,
    NewToken,
    NewUser,
    TokenFacts,
    TokenList,
    TokenParams,
    UserFacts,
    UserList,
    UserParams,
)
from penstock.web.api.problems import Problem
from penstock.web.api.routing import ROWS_IN_LOOP, Call, NoParams, in_thread_if


class Users:
    """Operations on users and tokens."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # --- users

    async def list_users(self, call: Call[NoParams, None]) -> UserList:
        access = self._node.resources.cluster(call.caller, Operation.DESCRIBE).access
        users = {user: list(passwords) for user, passwords in access.users.items()}
        tokens = Counter(token.user for token in access.tokens.values())
        rows = await in_thread_if(len(users) > ROWS_IN_LOOP, self._rows, users, tokens)
        return UserList(users=rows)

    def _rows(self, users: Mapping[str, Iterable[str]], tokens: Mapping[str, int]) -> list[UserFacts]:
        return [self._facts(user, users[user], tokens.get(user, 0)) for user in sorted(users)]

    def _facts(self, user: str, mechanisms: Iterable[str], tokens: int) -> UserFacts:
        principal = principals.user(user)
        return UserFacts(
            user=user,
            principal=principal,
            mechanisms=sorted(mechanisms),
            tokens=tokens,
            super_user=self._node.access.authorizer.is_super_user([principal]),
        )

    async def create_user(self, call: Call[NoParams, NewUser]) -> UserFacts:
        user, state = call.body.user, self._node.resources.cluster(call.caller, Operation.ALTER)
        await self._node.access_admin.create_user(user, call.body.password, caller=call.caller)
        return self._facts(user, state.access.users.get(user, ()), 0)

    async def set_password(self, call: Call[UserParams, NewPassword]) -> None:
        await self._node.access_admin.set_password(call.params.user, call.body.password, caller=call.caller)

    async def delete_user(self, call: Call[UserParams, None]) -> DeletedUser:
        user, access = call.params.user, self._node.resources.cluster(call.caller, Operation.ALTER).access
        tokens = len(access.tokens_of(user))
        await self._node.access_admin.delete_user(user, caller=call.caller)
        principal = principals.user(user)
        return DeletedUser(
            user=user,
            tokens_deleted=tokens,
            acls_left=sum(binding.principal == principal for binding in access.acls),
            grants_left=sum(grant.principal == principal for grant in access.grants),
        )

    # --- tokens

    async def list_tokens(self, call: Call[UserParams, None]) -> TokenList:
        user = call.params.user
        tokens = self._node.access_admin.tokens_of(user, caller=call.caller)
        if tokens is None:
            raise Problem(404, "resource_not_found", f"there is no user {user!r}", "user")
        return TokenList(tokens=[TokenFacts.of(token) for token in tokens])

    async def create_token(self, call: Call[UserParams, NewToken]) -> MadeToken:
        text, token = await self._node.access_admin.create_token(
            call.params.user,
            description=call.body.description,
            lifetime_ms=call.body.lifetime_ms,
            caller=call.caller,
        )
        return MadeToken(
            token=text,
            token_id=token.token_id,
            user=token.user,
            description=token.description,
            created_ms=token.created_ms,
            expires_ms=token.expires_ms,
        )

    async def revoke_token(self, call: Call[TokenParams, None]) -> None:
        await self._node.access_admin.revoke_token(call.params.user, call.params.token_id, caller=call.caller)
