"""API tokens, roles, grants, and users with them, as part of the cluster's metadata."""

from collections.abc import Sequence

import pytest

from penstock.cluster import ClusterState, MetadataRecord, access_decisions, decode_record, encode_record
from penstock.cluster.role_decisions import delete_role, grant_role, put_role, revoke_role
from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.security.acls import AclBinding, PatternType, Permission
from penstock.security.credentials import SCRAM_MECHANISMS, ScramCredential, make_credential
from penstock.security.roles import BUILT_IN_ROLES, Role, RoleGrant, RolePermission
from penstock.security.tokens import TOKEN_RANDOM_BYTES, ApiToken, make_token
from penstock.types import Operation, ResourceType
from tests.cluster.clusters import apply, refused

LIMITS = Limits(max_users=2, max_acls=10, max_tokens=3, max_tokens_per_user=2, max_roles=2, max_role_grants=3)
TOPIC, READ, WRITE = ResourceType.TOPIC, Operation.READ, Operation.WRITE
PASSWORDS = {
    mechanism.sasl_name: make_credential("correct horse", b"0123456789abcdef", 4096, mechanism)
    for mechanism in SCRAM_MECHANISMS
}
READER = RoleGrant("reader", "User:alice")
PURGER = Role("purger", (RolePermission(TOPIC, (Operation.DELETE,)),))


@pytest.fixture
def state() -> ClusterState:
    """Alice and Bob exist."""
    state = ClusterState(node_id=1)
    for user in ("alice", "bob"):
        change(state, access_decisions.create_user(state, user, PASSWORDS, LIMITS))
    return state


def change(state: ClusterState, records: Sequence[MetadataRecord]) -> None:
    """As nodes do it: the records come from the log, and may be applied twice."""
    read = [decode_record(encode_record(record)) for record in records]
    assert apply(state, read + read) == set(), "no topic is touched"


def token(number: int, user: str = "alice", *, now: int = 1000, expires: int | None = None) -> ApiToken:
    return make_token(bytes([number]) * TOKEN_RANDOM_BYTES, user, now, expires)[1]


def add_token(state: ClusterState, added: ApiToken) -> None:
    change(state, access_decisions.create_token(state, added, LIMITS))


def rule(name: str, principal: str = "User:alice") -> AclBinding:
    return AclBinding(TOPIC, name, PatternType.LITERAL, principal, "*", READ, Permission.ALLOW)


def allows(state: ClusterState, operation: Operation, topic: str = "orders", user: str = "alice") -> bool:
    return state.access.authorizer.allows([f"User:{user}"], "127.0.0.1", operation, TOPIC, topic)


def reason(state: ClusterState, operation: Operation, topic: str = "orders") -> str:
    return state.access.authorizer.explain(["User:alice"], "127.0.0.1", operation, TOPIC, topic).reason


def give(state: ClusterState, *grants: RoleGrant) -> None:
    for grant in grants:
        change(state, grant_role(state, grant, LIMITS))


# --- users


def test_a_user_is_created_once(state: ClusterState) -> None:
    with refused(ErrorCode.DUPLICATE_RESOURCE, "a user 'alice' already"):
        access_decisions.create_user(state, "alice", PASSWORDS, Limits())


def test_users_are_limited(state: ClusterState) -> None:
    with refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "limits.max_users"):
        access_decisions.create_user(state, "carol", PASSWORDS, LIMITS)


@pytest.mark.parametrize("name", ["", "*", "ANONYMOUS", "a:b", " alice", "x" * 257])
def test_a_name_that_could_not_log_in_is_refused(state: ClusterState, name: str) -> None:
    with refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "name"):
        access_decisions.create_user(state, name, PASSWORDS, Limits())


def test_a_password_is_set_for_users_that_exist(state: ClusterState) -> None:
    other: dict[str, ScramCredential] = {"SCRAM-SHA-256": PASSWORDS["SCRAM-SHA-256"]}
    change(state, access_decisions.set_passwords(state, "alice", other))
    assert state.access.users["alice"] == other
    with refused(ErrorCode.RESOURCE_NOT_FOUND, "no user 'carol'"):
        access_decisions.set_passwords(state, "carol", other)


def test_a_deleted_user_takes_its_tokens_along_and_leaves_rules_and_grants(state: ClusterState) -> None:
    add_token(state, token(1))
    add_token(state, token(2, "bob"))
    change(state, access_decisions.create_acls(state, [rule("orders")], LIMITS))
    give(state, READER)
    change(state, access_decisions.delete_user(state, "alice"))
    assert list(state.access.users) == ["bob"]
    assert [left.user for left in state.access.tokens.values()] == ["bob"]
    assert state.access.has_acl(rule("orders"))
    assert list(state.access.grants) == [READER]
    with refused(ErrorCode.RESOURCE_NOT_FOUND, "no user 'alice'"):
        access_decisions.delete_user(state, "alice")


# --- tokens


def test_tokens_belong_to_users_that_exist(state: ClusterState) -> None:
    with refused(ErrorCode.RESOURCE_NOT_FOUND, "no user 'carol'"):
        add_token(state, token(1, "carol"))


def test_a_token_is_revoked_by_its_user_and_its_id(state: ClusterState) -> None:
    mine = token(1)
    add_token(state, mine)
    with refused(ErrorCode.RESOURCE_NOT_FOUND, "'bob' has no API token"):
        access_decisions.revoke_token(state, "bob", mine.token_id)
    change(state, access_decisions.revoke_token(state, "alice", mine.token_id))
    assert state.access.tokens == {}
    with refused(ErrorCode.RESOURCE_NOT_FOUND, "'alice' has no API token"):
        access_decisions.revoke_token(state, "alice", mine.token_id)


def test_the_tokens_of_a_user_are_limited_and_expired_ones_make_room(state: ClusterState) -> None:
    add_token(state, token(1, expires=2000))
    add_token(state, token(2))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_tokens_per_user"):
        add_token(state, token(3, now=1999))
    add_token(state, token(3, now=2000))
    assert [left.token_id for left in state.access.tokens_of("alice")] == [
        token(number).token_id for number in (2, 3)
    ]


def test_the_tokens_of_the_cluster_are_limited(state: ClusterState) -> None:
    for number, user in enumerate(["alice", "alice", "bob"]):
        add_token(state, token(number, user))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_tokens allows"):
        add_token(state, token(3, "bob"))


# --- roles


def test_a_grant_allows_what_its_role_does_and_the_explanation_names_the_role(state: ClusterState) -> None:
    assert not allows(state, READ)
    give(state, READER)
    assert allows(state, READ)
    assert not allows(state, WRITE)
    assert not allows(state, READ, user="bob")
    assert "(role reader)" in reason(state, READ)
    change(state, revoke_role(state, READER))
    assert not allows(state, READ)
    assert state.access.authorizer.explain(["User:alice"], "", READ, TOPIC, "orders").rule is None


def test_grants_for_patterns_are_separate_from_those_for_everything(state: ClusterState) -> None:
    orders = RoleGrant("reader", "User:alice", "orders.", PatternType.PREFIXED)
    give(state, READER, orders)
    change(state, revoke_role(state, READER))
    assert allows(state, READ, "orders.eu")
    assert not allows(state, READ, "payments")
    assert "role reader for prefix 'orders.'" in reason(state, READ, "orders.eu")
    with refused(ErrorCode.RESOURCE_NOT_FOUND, "no such grant"):
        revoke_role(state, READER)


def test_a_rule_of_its_own_and_the_same_rule_of_a_role_end_one_by_one(state: ClusterState) -> None:
    change(state, access_decisions.create_acls(state, [rule("*")], LIMITS))
    give(state, READER)
    change(state, access_decisions.delete_acls(state, [rule("*")]))
    assert allows(state, READ)
    change(state, revoke_role(state, READER))
    assert not allows(state, READ)


def test_a_grant_that_exists_is_not_written_again(state: ClusterState) -> None:
    give(state, READER)
    assert grant_role(state, READER, LIMITS) == []


def test_the_grants_of_a_role_change_with_it(state: ClusterState) -> None:
    change(state, put_role(state, PURGER, LIMITS))
    give(state, RoleGrant("purger", "User:alice"))
    assert allows(state, Operation.DELETE)
    change(state, put_role(state, Role("purger", (RolePermission(TOPIC, (WRITE,)),)), LIMITS))
    assert allows(state, WRITE)
    assert not allows(state, Operation.DELETE)


def test_a_role_that_somebody_has_is_not_deleted(state: ClusterState) -> None:
    change(state, put_role(state, PURGER, LIMITS))
    mine = RoleGrant("purger", "User:alice")
    give(state, mine)
    with refused(ErrorCode.POLICY_VIOLATION, "1 grants: revoke them first"):
        delete_role(state, "purger")
    change(state, revoke_role(state, mine))
    change(state, delete_role(state, "purger"))
    assert state.access.roles == {}


@pytest.mark.parametrize("name", sorted(BUILT_IN_ROLES))
def test_built_in_roles_stay_as_they_are(state: ClusterState, name: str) -> None:
    with refused(ErrorCode.INVALID_REQUEST, "built in"):
        put_role(state, Role(name, PURGER.permissions), LIMITS)
    with refused(ErrorCode.INVALID_REQUEST, "built in"):
        delete_role(state, name)


def test_a_role_that_does_not_exist_is_neither_granted_nor_deleted(state: ClusterState) -> None:
    for ask in (
        lambda: grant_role(state, RoleGrant("boss", "User:alice"), LIMITS),
        lambda: delete_role(state, "boss"),
    ):
        with refused(ErrorCode.RESOURCE_NOT_FOUND, "no role 'boss'"):
            ask()


def test_roles_are_limited_and_those_that_exist_can_change(state: ClusterState) -> None:
    for name in ("one", "two"):
        change(state, put_role(state, Role(name, PURGER.permissions), LIMITS))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_roles"):
        put_role(state, Role("three", PURGER.permissions), LIMITS)
    assert put_role(state, Role("two", PURGER.permissions), LIMITS)


def test_grants_are_limited(state: ClusterState) -> None:
    change(state, put_role(state, PURGER, LIMITS))
    give(state, *(RoleGrant("purger", f"User:u{number}") for number in range(3)))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_role_grants"):
        grant_role(state, READER, LIMITS)


def test_rules_that_grants_make_count_for_the_limit_of_rules(state: ClusterState) -> None:
    give(state, READER)
    assert state.access.rule_count == 3
    change(state, access_decisions.create_acls(state, map(rule, "abcdefg"), LIMITS))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_acls is 10"):
        access_decisions.create_acls(state, [rule("h")], LIMITS)
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_acls is 10"):
        grant_role(state, RoleGrant("writer", "User:alice"), LIMITS)


def test_a_role_does_not_grow_past_the_limit_of_rules(state: ClusterState) -> None:
    change(state, put_role(state, PURGER, LIMITS))
    give(state, *(RoleGrant("purger", f"User:u{number}") for number in range(3)))
    operations = (READ, WRITE, Operation.ALTER, Operation.DELETE)
    with refused(ErrorCode.POLICY_VIOLATION, "would get 9 more"):
        put_role(state, Role("purger", (RolePermission(TOPIC, operations),)), LIMITS)


# --- snapshots


def test_a_snapshot_restores_tokens_roles_and_grants(state: ClusterState) -> None:
    add_token(state, token(1))
    change(state, put_role(state, PURGER, LIMITS))
    give(state, READER, RoleGrant("purger", "User:alice", "tmp.", PatternType.PREFIXED))
    other = ClusterState(node_id=2)
    other.access.change_grants([RoleGrant("admin", "User:mallory")], [])
    other.apply(decode_record(encode_record(state.snapshot())))
    assert other.access.snapshot() == state.access.snapshot()
    assert allows(other, READ)
    assert allows(other, Operation.DELETE, "tmp.1")
    assert not allows(other, READ, user="mallory")


def test_a_copy_changes_alone(state: ClusterState) -> None:
    copy = state.copy()
    add_token(copy, token(1))
    give(copy, READER)
    assert state.access.tokens == {}
    assert not allows(state, READ)
    assert allows(copy, READ)
