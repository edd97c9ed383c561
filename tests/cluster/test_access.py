"""Users and access rules, as part of the cluster's metadata."""

import pytest

from penstock.cluster import ClusterState, access_decisions, decode_record, encode_record
from penstock.cluster.access_decisions import CredentialChange
from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.security.acls import AclBinding, PatternType, Permission
from penstock.security.credentials import ScramCredential, ScramMechanism, make_credential
from penstock.types import Operation, ResourceType
from tests.cluster.clusters import apply, refused

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
LIMITS = Limits(max_users=2, max_acls=3)
SALT = b"0123456789abcdef"


def credential(password: str = "secret", mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    return make_credential(password, SALT, 4096, mechanism)


def change(user: str, value: ScramCredential | None, mechanism: ScramMechanism = SHA_256) -> CredentialChange:
    return CredentialChange(user=user, mechanism=mechanism, credential=value)


def alter(state: ClusterState, *changes: CredentialChange) -> None:
    assert apply(state, access_decisions.alter_credentials(state, changes, LIMITS)) == set()


def rule(name: str, operation: Operation = Operation.READ) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW
    )


def may_read(state: ClusterState, topic: str) -> bool:
    return state.access.authorizer.allows(
        ("User:alice",), "127.0.0.1", Operation.READ, ResourceType.TOPIC, topic
    )


@pytest.fixture
def state() -> ClusterState:
    return ClusterState(node_id=1)


def test_a_user_has_one_credential_for_each_mechanism_until_the_last_is_deleted(state: ClusterState) -> None:
    alter(state, change("alice", credential()), change("alice", credential(mechanism=SHA_512), SHA_512))
    assert state.access.credential("alice", SHA_256) == credential()
    alter(state, change("alice", None))
    assert state.access.credential("alice", SHA_256) is None
    assert "alice" in state.access.users
    alter(state, change("alice", None, SHA_512))
    assert "alice" not in state.access.users


def test_a_password_that_does_not_exist_cannot_be_deleted(state: ClusterState) -> None:
    with refused(ErrorCode.RESOURCE_NOT_FOUND, "has no password"):
        access_decisions.alter_credentials(state, [change("alice", None)], LIMITS)


@pytest.mark.parametrize("name", ["", "*", "ANONYMOUS", "a\nb", "x" * 2000])
def test_names_that_mean_something_else_are_no_users(state: ClusterState, name: str) -> None:
    with refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "user's name"):
        access_decisions.alter_credentials(state, [change(name, credential())], LIMITS)


def test_there_are_at_most_so_many_users(state: ClusterState) -> None:
    alter(state, change("alice", credential()))
    alter(state, change("bob", credential()))
    with refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "limits.max_users"):
        access_decisions.alter_credentials(state, [change("carol", credential())], LIMITS)
    alter(state, change("bob", credential("another")))  # one that exists may change


def test_rules_apply_from_when_they_are_created_until_they_are_deleted(state: ClusterState) -> None:
    before = state.access.authorizer
    apply(state, access_decisions.create_acls(state, [rule("orders"), rule("orders")], LIMITS))
    assert state.access.authorizer is not before
    assert may_read(state, "orders")
    assert access_decisions.create_acls(state, [rule("orders")], LIMITS) == []
    apply(state, access_decisions.delete_acls(state, [rule("orders"), rule("others")]))
    assert not may_read(state, "orders")
    assert state.access.acls == frozenset()


def test_there_are_at_most_so_many_rules(state: ClusterState) -> None:
    apply(state, access_decisions.create_acls(state, map(rule, "abc"), LIMITS))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_acls is 3"):
        access_decisions.create_acls(state, [rule("d")], LIMITS)
    assert access_decisions.create_acls(state, [rule("a")], LIMITS) == []


def test_the_first_users_are_made_once(state: ClusterState) -> None:
    users = {"admin": {"SCRAM-SHA-256": credential()}}
    apply(state, access_decisions.create_first_users(state, users, b"secret"))
    assert state.access.login_secret == b"secret"
    assert access_decisions.create_first_users(state, users, b"another") == []
    alter(state, change("admin", None))
    assert access_decisions.create_first_users(state, users, b"another") == [], "it does not come back"


def test_users_that_were_made_before_login_was_required_do_not_shut_the_administrator_out(
    state: ClusterState,
) -> None:
    alter(state, change("alice", credential("hers")))
    users = {"admin": {"SCRAM-SHA-256": credential()}, "alice": {"SCRAM-SHA-256": credential()}}
    apply(state, access_decisions.create_first_users(state, users, b"secret"))
    assert state.access.users.keys() == {"admin", "alice"}
    assert state.access.credential("alice", SHA_256) == credential("hers")


def test_a_snapshot_has_all_of_it_and_other_parts_keep_their_reference(state: ClusterState) -> None:
    alter(state, change("alice", credential()))
    apply(state, access_decisions.create_acls(state, [rule("orders")], LIMITS))
    state.access.login_secret = b"secret"
    other = ClusterState(node_id=2)
    held, version = other.access, other.access.version
    other.apply(decode_record(encode_record(state.snapshot())))
    assert held is other.access
    assert held.version > version
    assert (held.users, held.acls, held.login_secret) == (
        state.access.users,
        state.access.acls,
        state.access.login_secret,
    )
    assert may_read(other, "orders")


def test_a_copy_changes_for_itself(state: ClusterState) -> None:
    copy = state.copy()
    alter(copy, change("alice", credential()))
    apply(copy, access_decisions.create_acls(copy, [rule("orders")], LIMITS))
    assert not state.access.users
    assert not may_read(state, "orders")


def test_no_text_of_a_user_shows_its_keys(state: ClusterState) -> None:
    alter(state, change("alice", credential()))
    shown = repr(state.access.users) + repr(state.snapshot())
    assert credential().stored_key.hex() not in shown
    assert repr(credential().stored_key) not in shown
