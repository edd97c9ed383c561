"""Decisions on users and access rules: functions take the state and a request, and return records or raise
KafkaError."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.cluster.records import AclsChanged, LoginSecretSet, MetadataRecord, UserChanged
from penstock.cluster.state import ClusterState
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.security.acls import AclBinding
from penstock.security.credentials import ScramCredential, ScramMechanism
from penstock.security.principals import is_login_name
from penstock.security.scram_messages import MAX_USER_CHARACTERS


class CredentialChange(msgspec.Struct, frozen=True, kw_only=True):
    """One credential of a user that is to be set, or deleted (None)."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


def check_user_name(user: str) -> None:
    """Raises UNACCEPTABLE_CREDENTIAL unless a user may have this name."""
    if len(user) > MAX_USER_CHARACTERS or not is_login_name(user):
        expected = f"1 to {MAX_USER_CHARACTERS} characters that can be printed, and neither * nor ANONYMOUS"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"user {user[:100]!r}: expected {expected}")


def alter_credentials(
    state: ClusterState, changes: Sequence[CredentialChange], limits: Limits
) -> list[MetadataRecord]:
    """All changes of one user, together."""
    user = changes[0].user
    check_user_name(user)
    passwords = dict(state.access.users.get(user, {}))
    if not passwords and len(state.access.users) >= limits.max_users:
        message = f"the cluster has {len(state.access.users)} users, and limits.max_users allows no more"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    for change in changes:
        name = change.mechanism.sasl_name
        if change.credential is not None:
            passwords[name] = change.credential
        elif passwords.pop(name, None) is None:
            message = f"user {user!r} has no password for {name}"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return [UserChanged(user=user, passwords=passwords)]


def create_first_users(
    state: ClusterState, users: Mapping[str, dict[str, ScramCredential]], secret: bytes
) -> list[MetadataRecord]:
    """The first users of a cluster, and the secret of its logins; nothing if there are users."""
    if state.access.users:
        return []
    for user in users:
        check_user_name(user)
    changed = [UserChanged(user=user, passwords=passwords) for user, passwords in users.items()]
    return [LoginSecretSet(secret=secret), *changed]


def create_acls(state: ClusterState, bindings: Iterable[AclBinding], limits: Limits) -> list[MetadataRecord]:
    """Rules that exist stay as they are."""
    added = [binding for binding in dict.fromkeys(bindings) if not state.access.has_acl(binding)]
    if state.access.acl_count + len(added) > limits.max_acls:
        message = (
            f"the cluster has {state.access.acl_count} access rules and would get {len(added)} more; "
            f"limits.max_acls is {limits.max_acls}: use prefixes, or roles"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return [AclsChanged(added=added, removed=[])] if added else []


def delete_acls(state: ClusterState, bindings: Iterable[AclBinding]) -> list[MetadataRecord]:
    """Rules that do not exist any more are no error."""
    removed = [binding for binding in bindings if state.access.has_acl(binding)]
    return [AclsChanged(added=[], removed=removed)] if removed else []
