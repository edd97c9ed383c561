"""Decisions on users, API tokens and access rules: functions take the state and a request, and return records or raise
KafkaError."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.cluster.records import AclsChanged, LoginSecretSet, MetadataRecord, TokensChanged, UserChanged
from penstock.cluster.state import ClusterState
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.security.acls import AclBinding
from penstock.security.credentials import ScramCredential, ScramMechanism
from penstock.security.passwords import check_user_name
from penstock.security.tokens import ApiToken


class CredentialChange(msgspec.Struct, frozen=True, kw_only=True):
    """One credential of a user that is to be set, or deleted (None)."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


def unknown_user(user: str) -> KafkaError:
    return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {user[:100]!r}")


# --- users


def alter_credentials(
    state: ClusterState, changes: Sequence[CredentialChange], limits: Limits
) -> list[MetadataRecord]:
    """All changes of one user, together."""
    user = changes[0].user
    check_user_name(user)
    passwords = dict(state.access.users.get(user, {}))
    if not passwords:
        _check_room_for_user(state, limits)
    for change in changes:
        name = change.mechanism.sasl_name
        if change.credential is not None:
            passwords[name] = change.credential
        elif passwords.pop(name, None) is None:
            message = f"user {user!r} has no password for {name}"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return [UserChanged(user=user, passwords=passwords)]


def create_user(
    state: ClusterState, user: str, passwords: dict[str, ScramCredential], limits: Limits
) -> list[MetadataRecord]:
    """A user that does not exist."""
    check_user_name(user)
    if user in state.access.users:
        raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"there is a user {user!r} already")
    _check_room_for_user(state, limits)
    return [UserChanged(user=user, passwords=passwords)]


def _check_room_for_user(state: ClusterState, limits: Limits) -> None:
    if len(state.access.users) >= limits.max_users:
        message = f"the cluster has {len(state.access.users)} users, and limits.max_users allows no more"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)


def set_passwords(
    state: ClusterState, user: str, passwords: dict[str, ScramCredential]
) -> list[MetadataRecord]:
    """Other passwords for a user that exists. Its tokens stay, unless it has no password any more: it is deleted."""
    if user not in state.access.users:
        raise unknown_user(user)
    return [UserChanged(user=user, passwords=passwords)]


def delete_user(state: ClusterState, user: str) -> list[MetadataRecord]:
    """Deletes its tokens, too. Rules and grants that name it stay: a principal need not be a user of this cluster."""
    return set_passwords(state, user, {})


def create_first_users(
    state: ClusterState, users: Mapping[str, dict[str, ScramCredential]], secret: bytes
) -> list[MetadataRecord]:
    """The first users of a cluster, and the secret of its logins, when login is required for the first time. Users that
    exist stay as they are. The secret marks that this has happened: an administrator that is deleted later does not
    come back."""
    if state.access.login_secret:
        return []
    for user in users:
        check_user_name(user)
    changed = [
        UserChanged(user=user, passwords=passwords)
        for user, passwords in users.items()
        if user not in state.access.users
    ]
    return [LoginSecretSet(secret=secret), *changed]


# --- tokens


def create_token(state: ClusterState, token: ApiToken, limits: Limits) -> list[MetadataRecord]:
    """A token of a user that exists. Those of its tokens that have expired make room."""
    if token.user not in state.access.users:
        raise unknown_user(token.user)
    if state.access.tokens.get(token.token_id) == token:
        return []  # the request was repeated
    mine = state.access.tokens_of(token.user)
    expired = [old.token_id for old in mine if old.has_expired(token.created_ms)]
    if len(mine) - len(expired) >= limits.max_tokens_per_user:
        message = (
            f"{token.user!r} has {len(mine)} API tokens, and limits.max_tokens_per_user allows no more: "
            "revoke one that is not used"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    if len(state.access.tokens) - len(expired) >= limits.max_tokens:
        message = (
            f"the cluster has {len(state.access.tokens)} API tokens, and limits.max_tokens allows no more"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return [TokensChanged(added=[token], removed=expired)]


def revoke_token(state: ClusterState, user: str, token_id: str) -> list[MetadataRecord]:
    """One token of the user."""
    token = state.access.tokens.get(token_id)
    if token is None or token.user != user:
        message = f"{user[:100]!r} has no API token {token_id[:100]!r}"
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return [TokensChanged(added=[], removed=[token_id])]


# --- access rules


def create_acls(state: ClusterState, bindings: Iterable[AclBinding], limits: Limits) -> list[MetadataRecord]:
    """Rules that exist stay as they are."""
    added = [binding for binding in dict.fromkeys(bindings) if not state.access.has_acl(binding)]
    check_rule_count(state, len(added), limits)
    return [AclsChanged(added=added, removed=[])] if added else []


def check_rule_count(state: ClusterState, added: int, limits: Limits) -> None:
    """Raises unless the cluster may have so many rules more, also those that grants of roles make."""
    if added > 0 and state.access.rule_count + added > limits.max_acls:
        message = (
            f"the cluster has {state.access.rule_count} access rules and would get {added} more; "
            f"limits.max_acls is {limits.max_acls}: use prefixes, or roles for groups"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)


def delete_acls(state: ClusterState, bindings: Iterable[AclBinding]) -> list[MetadataRecord]:
    """Rules that do not exist any more are no error."""
    removed = [binding for binding in bindings if state.access.has_acl(binding)]
    return [AclsChanged(added=[], removed=removed)] if removed else []
