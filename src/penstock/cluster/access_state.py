"""Users, access rules and the secrets of logins, as metadata records have made them.

Every node decides by this state. It refuses nothing itself: whether a change is possible was decided before its record
was written (`access_decisions.py`).
"""

from collections.abc import Mapping

import msgspec

from penstock.security.acls import AclBinding
from penstock.security.authorizer import Authorizer
from penstock.security.credentials import ScramCredential, ScramMechanism

Passwords = dict[str, ScramCredential]
"""What is kept of a user's password, by the SASL name of the mechanism."""


class AccessSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The part of a metadata snapshot about users and access rules. Fields are added at the end only."""

    users: dict[str, Passwords] = {}
    acls: list[AclBinding] = []
    login_secret: bytes = b""


class AccessState:
    """Changes only by its methods, which the metadata state calls when it applies a record."""

    def __init__(self) -> None:
        self._users: dict[str, Passwords] = {}
        self._acls: set[AclBinding] = set()
        self.authorizer = Authorizer.of()
        """Another object after every change of access rules: a decision is right while this is the same one."""
        self.version = 0
        """Grows with every change."""
        self.login_secret = b""
        """Makes decoys for users that do not exist; empty until the first user is made."""

    @property
    def users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """Credentials by user, and by the SASL name of their mechanism. Every change of a user makes another object."""
        return self._users

    @property
    def acls(self) -> frozenset[AclBinding]:
        return frozenset(self._acls)

    @property
    def acl_count(self) -> int:
        return len(self._acls)

    def has_acl(self, binding: AclBinding) -> bool:
        return binding in self._acls

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """What is kept of the user's password for the mechanism."""
        return self._users.get(user, {}).get(mechanism.sasl_name)

    def put_user(self, user: str, passwords: Passwords) -> None:
        """A user without a password does not exist."""
        if passwords:
            self._users[user] = dict(passwords)
        else:
            self._users.pop(user, None)
        self.version += 1

    def change_acls(self, added: list[AclBinding], removed: list[AclBinding]) -> None:
        self._acls.difference_update(removed)
        self._acls.update(added)
        self.authorizer = self.authorizer.changed(added=added, removed=removed)
        self.version += 1

    def snapshot(self) -> AccessSnapshot:
        return AccessSnapshot(
            {user: dict(self._users[user]) for user in sorted(self._users)},
            sorted(self._acls),
            self.login_secret,
        )

    def restore(self, snapshot: AccessSnapshot) -> None:
        """In place: other parts of the node hold this object."""
        self._users = {user: dict(passwords) for user, passwords in snapshot.users.items()}
        self._acls = set()
        self.authorizer = Authorizer.of()
        self.change_acls(snapshot.acls, [])
        self.login_secret = snapshot.login_secret

    def copy(self) -> "AccessState":
        copy = AccessState()
        copy._users, copy._acls = dict(self._users), set(self._acls)
        copy.authorizer, copy.login_secret = self.authorizer, self.login_secret
        copy.version = self.version
        return copy
