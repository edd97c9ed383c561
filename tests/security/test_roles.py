"""Roles and their grants, decided by the authorizer."""

import msgspec
import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.security.acls import AclFilter, PatternType, Permission, check_binding
from penstock.security.authorizer import Authorizer
from penstock.security.roles import (
    BUILT_IN_ROLES,
    MAX_ROLE_NAME_CHARACTERS,
    MAX_ROLE_PERMISSIONS,
    Role,
    RoleGrant,
    RolePermission,
    check_grant,
    check_role,
    find_role,
    rules_of,
)
from penstock.types import CLUSTER_NAME, Operation, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
EVERY = [operation for operation in Operation if operation > Operation.ALL]


def granted(role, **grant):
    rules = rules_of(BUILT_IN_ROLES[role], RoleGrant(role, "Group:ops", **grant))
    authorizer = Authorizer.of(rules)

    def may(kind, name="orders.eu"):
        allowed = authorizer.allowed_operations(("User:alice", "Group:ops"), "", kind, name)
        return {operation.name for operation in EVERY if allowed >> operation & 1}

    return may


def test_there_are_five_roles() -> None:
    assert list(BUILT_IN_ROLES) == ["viewer", "reader", "writer", "operator", "admin"]


@pytest.mark.parametrize("role", BUILT_IN_ROLES)
def test_every_rule_of_a_role_is_a_valid_access_rule(role) -> None:
    for rule in rules_of(BUILT_IN_ROLES[role], RoleGrant(role, "User:alice")):
        assert check_binding(rule.binding)
        assert rule.source == f"role {role}"


def test_a_viewer_sees_everything_and_changes_nothing() -> None:
    may = granted("viewer")
    assert may(TOPIC) == {"READ", "DESCRIBE", "DESCRIBE_CONFIGS"}
    assert may(GROUP) == {"DESCRIBE", "DESCRIBE_CONFIGS"}, "READ on a group commits offsets and settles jobs"
    assert may(ResourceType.TRANSACTIONAL_ID) == {"DESCRIBE"}
    assert may(CLUSTER, CLUSTER_NAME) == {"DESCRIBE", "DESCRIBE_CONFIGS"}


def test_a_reader_reads_and_does_not_write() -> None:
    may = granted("reader")
    assert may(TOPIC) == {"READ", "DESCRIBE", "DESCRIBE_CONFIGS"}
    assert may(GROUP) == {"READ", "DESCRIBE"}
    assert may(CLUSTER, CLUSTER_NAME) == set()


def test_a_writer_writes_and_does_not_read() -> None:
    may = granted("writer")
    assert may(TOPIC) == {"WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"}
    assert may(ResourceType.TRANSACTIONAL_ID) == {"WRITE", "DESCRIBE"}
    assert may(CLUSTER, CLUSTER_NAME) == {"IDEMPOTENT_WRITE"}


def test_an_operator_sees_no_records_and_gives_no_rights() -> None:
    may = granted("operator")
    assert {"READ", "WRITE"}.isdisjoint(may(TOPIC))
    assert "READ" not in may(GROUP)
    assert {"ALTER", "CLUSTER_ACTION"}.isdisjoint(may(CLUSTER, CLUSTER_NAME)), (
        "ALTER is Kafka's right to change ACLs"
    )
    assert may(ResourceType.USER, "alice") == set()
    assert {"CREATE", "DELETE", "ALTER", "ALTER_CONFIGS"} <= may(TOPIC)


def test_an_admin_may_do_everything() -> None:
    may = granted("admin")
    everything = {operation.name for operation in EVERY}
    for kind in (TOPIC, GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.USER):
        assert may(kind) == everything
    assert may(CLUSTER, CLUSTER_NAME) == everything


@pytest.mark.parametrize("role", BUILT_IN_ROLES)
def test_a_grant_for_a_prefix_ends_there_and_says_nothing_about_the_cluster(role) -> None:
    may = granted(role, name="orders.", pattern_type=PatternType.PREFIXED)
    assert may(TOPIC, "orders.eu") == granted(role)(TOPIC)
    assert may(TOPIC, "payments") == set()
    assert may(CLUSTER, CLUSTER_NAME) == set()
    assert may(ResourceType.USER, "orders.x") == set()


def test_a_grant_for_a_host_counts_there_only() -> None:
    rules = rules_of(BUILT_IN_ROLES["reader"], RoleGrant("reader", "User:alice", host="10.0.0.0/8"))
    authorizer = Authorizer.of(rules)
    for host, allowed in (("10.1.1.1", True), ("11.1.1.1", False)):
        assert authorizer.allows(("User:alice",), host, Operation.READ, TOPIC, "x") is allowed


OWN = Role(
    "billing",
    (
        RolePermission(TOPIC, (Operation.READ, Operation.WRITE)),
        RolePermission(TOPIC, (Operation.ALL,), "secrets", PatternType.PREFIXED, Permission.DENY),
        RolePermission(GROUP, (Operation.READ,), "billing-app"),
    ),
)


def test_an_own_role_may_name_resources_and_deny() -> None:
    assert check_role(OWN) is OWN
    authorizer = Authorizer.of(rules_of(OWN, RoleGrant("billing", "User:alice")))
    alice = (("User:alice",), "")
    assert authorizer.allows(*alice, Operation.WRITE, TOPIC, "invoices")
    assert not authorizer.allows(*alice, Operation.WRITE, TOPIC, "secrets.1")
    assert authorizer.allows(*alice, Operation.READ, GROUP, "billing-app")
    assert not authorizer.allows(*alice, Operation.READ, GROUP, "other")


def test_a_pattern_does_not_remove_the_denials_of_a_role() -> None:
    """Else a grant for `secrets.` would allow what the role denies."""
    authorizer = Authorizer.of(
        rules_of(OWN, RoleGrant("billing", "User:alice", "secrets.", PatternType.PREFIXED))
    )
    assert not authorizer.allows(("User:alice",), "", Operation.READ, TOPIC, "secrets.1")
    assert not authorizer.allows(("User:alice",), "", Operation.READ, GROUP, "billing-app")


def test_one_of_two_grants_of_a_role_ends_without_the_other() -> None:
    first = rules_of(OWN, RoleGrant("billing", "User:alice", "a", PatternType.PREFIXED))
    second = rules_of(OWN, RoleGrant("billing", "User:alice", "s", PatternType.PREFIXED))
    left = Authorizer.of([*first, *second]).changed(removed=first)
    assert set(left.rules()) == set(second)
    assert {rule.source for rule in second} == {"role billing for prefix 's'"}
    assert not left.allows(("User:alice",), "", Operation.READ, TOPIC, "secrets.1")


def test_rules_of_a_role_are_not_listed_as_access_rules_and_go_with_the_grant() -> None:
    rules = rules_of(OWN, RoleGrant("billing", "User:alice"))
    authorizer = Authorizer.of(rules)
    assert authorizer.bindings(AclFilter()) == []
    assert list(authorizer.changed(removed=rules).rules()) == []


@pytest.mark.parametrize(
    ("role", "why"),
    [
        (Role("admin", OWN.permissions), "built in"),
        (Role("", OWN.permissions), "name of a role"),
        (Role("x" * (MAX_ROLE_NAME_CHARACTERS + 1), OWN.permissions), "name of a role"),
        (Role("empty", ()), "permissions"),
        (
            Role("many", (RolePermission(TOPIC, (Operation.READ,) * (MAX_ROLE_PERMISSIONS + 1)),)),
            "permissions",
        ),
        (Role("any", (RolePermission(TOPIC, (Operation.ANY,)),)), "operation ANY"),
        (Role("any", (RolePermission(ResourceType.ANY, (Operation.READ,)),)), "resource type ANY"),
    ],
)
def test_an_impossible_role_is_refused(role, why) -> None:
    with pytest.raises(KafkaError, match=why):
        check_role(role)


@pytest.mark.parametrize(
    ("grant", "code"),
    [
        (RoleGrant("nobody", "User:alice"), ErrorCode.RESOURCE_NOT_FOUND),
        (RoleGrant("reader", "alice"), ErrorCode.INVALID_REQUEST),
        (RoleGrant("reader", "User:alice", host="example.com"), ErrorCode.INVALID_REQUEST),
        (RoleGrant("reader", "User:alice", "", PatternType.PREFIXED), ErrorCode.INVALID_REQUEST),
        (RoleGrant("reader", "User:alice", "x", PatternType.MATCH), ErrorCode.INVALID_REQUEST),
        (RoleGrant("fixed", "User:alice", "x", PatternType.PREFIXED), ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_impossible_grant_is_refused(grant, code) -> None:
    fixed = Role("fixed", (RolePermission(GROUP, (Operation.READ,), "g"),))
    with pytest.raises(KafkaError) as caught:
        check_grant(grant, {"fixed": fixed})
    assert caught.value.code == code


def test_a_role_of_the_cluster_is_found_before_a_built_in_one_that_is_newer() -> None:
    assert find_role("billing", {"billing": OWN}) is OWN
    assert find_role("viewer", {"viewer": OWN}) is OWN
    assert find_role("admin", {"billing": OWN}) is BUILT_IN_ROLES["admin"]
    assert check_grant(RoleGrant("billing", "Group:ops"), {"billing": OWN})


def test_roles_and_grants_survive_their_stored_form() -> None:
    for value in (OWN, RoleGrant("billing", "User:alice", "x", PatternType.PREFIXED)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value)) == value
