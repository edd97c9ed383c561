"""Users, API tokens, access rules, roles and the secrets of logins, as metadata records have made them.

Every node decides by this state. It refuses nothing itself: whether a change is possible was decided before its record
was written (`access_decisions.py`, `role_decisions.py`).

The authorizer has two kinds of rules: those that were made by themselves, and those that grants of roles make, which
name the role as their source. Tokens belong to users: a user that is deleted takes its tokens with it. Rules and grants
name principals, which need not be users of this cluster, so they stay.
"""

from collections.abc import Mapping

import msgspec

from penstock.security.acls import AclBinding
from penstock.security.authorizer import Authorizer
from penstock.security.credentials import ScramCredential, ScramMechanism
from penstock.security.roles import BUILT_IN_ROLES, Role, RoleGrant, RolePermission, rules_of
from penstock.security.rule_index import Rule
from penstock.security.tokens import ApiToken

Passwords = dict[str, ScramCredential]
"""What is kept of a user's password, by the SASL name of the mechanism."""


class AccessSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The part of a metadata snapshot about users and access rules. Fields are added at the end only."""

    users: dict[str, Passwords] = {}
    acls: list[AclBinding] = []
    login_secret: bytes = b""
    tokens: list[ApiToken] = []
    roles: list[Role] = []
    grants: list[RoleGrant] = []


class AccessState:
    """Changes only by its methods, which the metadata state calls when it applies a record."""

    def __init__(self) -> None:
        self._users: dict[str, Passwords] = {}
        self._tokens: dict[str, ApiToken] = {}
        self._acls: set[AclBinding] = set()
        self._roles: dict[str, Role] = {}
        self._grants: dict[RoleGrant, tuple[Rule, ...]] = {}
        self.authorizer = Authorizer.of()
        """Another object after every change of access rules: a decision is right while this is the same one."""
        self.version = 0
        """Grows with every change."""
        self.login_secret = b""
        """Makes decoys for users that do not exist; empty until the first user is made."""

    # --- users and tokens

    @property
    def users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """Credentials by user, and by the SASL name of their mechanism. Every change of a user makes another object."""
        return self._users

    @property
    def tokens(self) -> Mapping[str, ApiToken]:
        """API tokens by their id."""
        return self._tokens

    def tokens_of(self, user: str) -> list[ApiToken]:
        """The tokens of a user, the oldest first."""
        found = (token for token in self._tokens.values() if token.user == user)
        return sorted(found, key=lambda token: (token.created_ms, token.token_id))

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """What is kept of the user's password for the mechanism."""
        return self._users.get(user, {}).get(mechanism.sasl_name)

    def put_user(self, user: str, passwords: Passwords) -> None:
        """A user without a password does not exist, and has no tokens."""
        if passwords:
            self._users[user] = dict(passwords)
        else:
            self._users.pop(user, None)
            self._tokens = {key: token for key, token in self._tokens.items() if token.user != user}
        self.version += 1

    def change_tokens(self, added: list[ApiToken], removed: list[str]) -> None:
        for token_id in removed:
            self._tokens.pop(token_id, None)
        self._tokens.update({token.token_id: token for token in added})
        self.version += 1

    # --- access rules

    @property
    def acls(self) -> frozenset[AclBinding]:
        return frozenset(self._acls)

    @property
    def rule_count(self) -> int:
        """The rules that were made by themselves, and those that grants make."""
        return len(self._acls) + sum(map(len, self._grants.values()))

    def has_acl(self, binding: AclBinding) -> bool:
        return binding in self._acls

    def change_acls(self, added: list[AclBinding], removed: list[AclBinding]) -> None:
        self._acls.difference_update(removed)
        self._acls.update(added)
        self.authorizer = self.authorizer.changed(added=added, removed=removed)
        self.version += 1

    # --- roles

    @property
    def roles(self) -> Mapping[str, Role]:
        """The cluster's own roles by name; `BUILT_IN_ROLES` are not among them."""
        return self._roles

    @property
    def grants(self) -> Mapping[RoleGrant, tuple[Rule, ...]]:
        """All grants of roles, each with the rules that it makes."""
        return self._grants

    def put_role(self, name: str, permissions: tuple[RolePermission, ...]) -> None:
        """A role without permissions does not exist. Its grants change with it."""
        if permissions:
            self._roles[name] = Role(name, permissions)
        else:
            self._roles.pop(name, None)
        changed = [grant for grant in self._grants if grant.role == name]
        self.change_grants(changed, [])

    def change_grants(self, added: list[RoleGrant], removed: list[RoleGrant]) -> None:
        before = [rule for grant in (*added, *removed) for rule in self._grants.get(grant, ())]
        for grant in removed:
            self._grants.pop(grant, None)
        self._grants.update({grant: self._rules(grant) for grant in added})
        after = [rule for grant in added for rule in self._grants[grant]]
        self.authorizer = self.authorizer.changed(added=after, removed=before)
        self.version += 1

    def _rules(self, grant: RoleGrant) -> tuple[Rule, ...]:
        role = self._roles.get(grant.role) or BUILT_IN_ROLES.get(grant.role)
        return () if role is None else rules_of(role, grant)

    # --- copies

    def snapshot(self) -> AccessSnapshot:
        return AccessSnapshot(
            {user: dict(self._users[user]) for user in sorted(self._users)},
            sorted(self._acls),
            self.login_secret,
            [self._tokens[token_id] for token_id in sorted(self._tokens)],
            [self._roles[name] for name in sorted(self._roles)],
            sorted(self._grants),
        )

    def restore(self, snapshot: AccessSnapshot) -> None:
        """In place: other parts of the node hold this object."""
        self._users = {user: dict(passwords) for user, passwords in snapshot.users.items()}
        self._tokens = {token.token_id: token for token in snapshot.tokens}
        self._roles = {role.name: role for role in snapshot.roles}
        self._acls, self._grants = set(), {}
        self.authorizer = Authorizer.of()
        self.change_acls(snapshot.acls, [])
        self.change_grants(snapshot.grants, [])
        self.login_secret = snapshot.login_secret

    def copy(self) -> "AccessState":
        copy = AccessState()
        copy._users, copy._tokens, copy._acls = dict(self._users), dict(self._tokens), set(self._acls)
        copy._roles, copy._grants = dict(self._roles), dict(self._grants)
        copy.authorizer, copy.login_secret = self.authorizer, self.login_secret
        copy.version = self.version
        return copy
