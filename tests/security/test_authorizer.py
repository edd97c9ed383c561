"""Decisions on access, compared with a model that reads every rule."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.security.acls import AclBinding, AclFilter, PatternType, Permission
from penstock.security.authorizer import Authorizer
from penstock.security.hosts import parse_address, parse_network
from penstock.security.rule_index import Rule
from penstock.types import Operation, ResourceType

ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALICE = ("User:alice", "Group:ops")
HOST = "10.0.0.1"


def rule(
    operation,
    name="orders",
    *,
    permission=ALLOW,
    principal="User:alice",
    host="*",
    pattern=LITERAL,
    kind=TOPIC,
):
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def may(rules, operation, name="orders", *, principals=ALICE, host=HOST, kind=TOPIC, super_users=()) -> bool:
    return Authorizer.of(rules, super_users).allows(principals, host, operation, kind, name)


def test_without_a_rule_everything_is_denied() -> None:
    assert not any(may([], operation) for operation in Operation)


def test_a_rule_allows_its_operation_on_its_resource_only() -> None:
    rules = [rule(Operation.WRITE)]
    assert may(rules, Operation.WRITE)
    assert not may(rules, Operation.READ)
    assert not may(rules, Operation.WRITE, "other")
    assert not may(rules, Operation.WRITE, kind=GROUP)
    assert not may(rules, Operation.WRITE, principals=("User:bob",))


@pytest.mark.parametrize(
    "principal", ["User:alice", "Group:ops", "User:*"], ids=["the user", "a group", "everybody"]
)
def test_a_rule_is_for_the_user_a_group_of_it_or_everybody(principal) -> None:
    assert may([rule(Operation.READ, principal=principal)], Operation.READ)


@pytest.mark.parametrize("allowed", [{}, {"name": "*"}, {"name": "ord", "pattern": PREFIXED}])
@pytest.mark.parametrize(
    "denied",
    [
        {},
        {"name": "*"},
        {"name": "o", "pattern": PREFIXED},
        {"principal": "User:*"},
        {"principal": "Group:ops"},
        {"host": "10.0.0.0/8"},
    ],
)
def test_a_denial_wins_over_every_allowance(allowed, denied) -> None:
    rules = [rule(Operation.READ, **allowed), rule(Operation.READ, permission=DENY, **denied)]
    assert not may(rules, Operation.READ)
    assert not may(reversed(rules), Operation.READ)


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_some_operations_imply_describe(operation) -> None:
    assert may([rule(operation)], Operation.DESCRIBE)
    assert not may([rule(operation)], Operation.DESCRIBE_CONFIGS)


def test_to_alter_configs_implies_to_describe_them() -> None:
    assert may([rule(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not may([rule(Operation.ALTER_CONFIGS)], Operation.DESCRIBE)


def test_a_denied_operation_denies_no_other() -> None:
    rules = [rule(Operation.ALL), rule(Operation.READ, permission=DENY)]
    assert may(rules, Operation.DESCRIBE)
    assert not may(rules, Operation.READ)
    rules = [rule(Operation.READ), rule(Operation.DESCRIBE, permission=DENY)]
    assert may(rules, Operation.READ)
    assert not may(rules, Operation.DESCRIBE)


def test_all_is_every_operation() -> None:
    rules = [rule(Operation.ALL)]
    assert all(may(rules, operation) for operation in Operation if operation > Operation.ANY)
    assert not any(may([*rules, rule(Operation.ALL, permission=DENY)], operation) for operation in Operation)


def test_a_prefix_matches_names_that_begin_with_it() -> None:
    rules = [rule(Operation.READ, "orders.", pattern=PREFIXED)]
    assert may(rules, Operation.READ, "orders.eu")
    assert may(rules, Operation.READ, "orders.")
    assert not may(rules, Operation.READ, "orders")


def test_a_rule_with_a_host_counts_for_callers_there_only() -> None:
    rules = [rule(Operation.READ, host="10.0.0.0/24")]
    assert may(rules, Operation.READ, host="10.0.0.7")
    assert not may(rules, Operation.READ, host="10.0.1.7")
    assert not may(rules, Operation.READ, host="")


def test_a_super_user_may_do_everything() -> None:
    denied = [rule(Operation.ALL, "*", permission=DENY)]
    assert may(denied, Operation.ALTER, super_users=["User:alice"])
    assert may(denied, Operation.ALTER, super_users=["Group:ops"])
    assert not may(denied, Operation.ALTER, super_users=["User:bob"])


# --- any resource of a type


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([rule(Operation.WRITE, "x")], True),
        ([rule(Operation.WRITE, "x", pattern=PREFIXED)], True),
        ([rule(Operation.WRITE, "*")], True),
        ([rule(Operation.ALL, "x")], True),
        ([rule(Operation.READ, "x")], False),
        ([rule(Operation.WRITE, "x", host="10.9.9.9")], False),
        ([rule(Operation.WRITE, "x", host="10.0.0.0/8")], True),
        ([rule(Operation.WRITE, "x"), rule(Operation.WRITE, "*", permission=DENY)], False),
        ([rule(Operation.WRITE, "x"), rule(Operation.WRITE, "x", permission=DENY)], False),
        ([rule(Operation.WRITE, "x"), rule(Operation.ALL, "x", permission=DENY)], False),
        ([rule(Operation.WRITE, "xy"), rule(Operation.WRITE, "x", permission=DENY, pattern=PREFIXED)], False),
        ([rule(Operation.WRITE, "x", pattern=PREFIXED), rule(Operation.WRITE, "xy", permission=DENY)], True),
        (
            [
                rule(Operation.WRITE, "x", pattern=PREFIXED),
                rule(Operation.WRITE, "x", permission=DENY, pattern=PREFIXED),
            ],
            False,
        ),
        ([rule(Operation.WRITE, "*"), rule(Operation.WRITE, "x", permission=DENY, pattern=PREFIXED)], True),
    ],
)
def test_some_resource_of_the_type_is_enough(rules, allowed) -> None:
    assert Authorizer.of(rules).allows_any(ALICE, HOST, Operation.WRITE, TOPIC) is allowed


def test_a_super_user_may_write_to_any_topic() -> None:
    assert Authorizer.of(super_users=["User:alice"]).allows_any(ALICE, HOST, Operation.WRITE, TOPIC)


# --- explanations


def test_an_explanation_names_the_rule_that_decides() -> None:
    allow = Rule(rule(Operation.READ, "ord", pattern=PREFIXED, principal="Group:ops"), "role reader")
    deny = rule(Operation.READ, host="10.0.0.0/8", permission=DENY)

    def explain(rules, operation=Operation.READ, super_users=()):
        return Authorizer.of(rules, super_users).explain(ALICE, HOST, operation, TOPIC, "orders")

    assert explain([]).reason == "no rule allows it"
    assert explain([], super_users=ALICE).reason == "User:alice is a super user"
    refused = explain([allow, deny])
    assert not refused.allowed
    assert refused.rule == Rule(deny)
    assert refused.reason == "denied by the rule: DENY User:alice from 10.0.0.0/8 READ on topic orders"
    implied = explain([allow, deny], Operation.DESCRIBE)
    assert implied.allowed
    assert implied.reason == (
        "allowed by the rule: ALLOW Group:ops READ on topic ord* (role reader); READ implies DESCRIBE"
    )


# --- changes


def test_a_change_makes_another_authorizer_and_leaves_the_first() -> None:
    first = Authorizer.of([rule(Operation.READ)])
    second = first.changed(added=[rule(Operation.WRITE)], removed=[rule(Operation.READ)])
    assert first.allows(ALICE, HOST, Operation.READ, TOPIC, "orders")
    assert not second.allows(ALICE, HOST, Operation.READ, TOPIC, "orders")
    assert second.allows(ALICE, HOST, Operation.WRITE, TOPIC, "orders")


def test_a_rule_of_a_role_stays_when_the_same_binding_is_removed() -> None:
    both = Authorizer.of([rule(Operation.READ), Rule(rule(Operation.READ), "role reader")])
    assert both.bindings(AclFilter()) == [rule(Operation.READ)]
    without = both.changed(removed=[rule(Operation.READ)])
    assert without.bindings(AclFilter()) == []
    assert without.allows(ALICE, HOST, Operation.READ, TOPIC, "orders")


def test_other_super_users_keep_the_rules() -> None:
    plain = Authorizer.of([rule(Operation.READ)])
    assert plain.with_super_users(["User:root"]).is_super_user(["User:root"])
    assert list(plain.with_super_users(["User:root"]).rules()) == list(plain.rules())


# --- against the model

NAMES = st.text(alphabet="ab", min_size=1, max_size=3)
PRINCIPALS = st.sampled_from(["User:alice", "User:bob", "User:*", "Group:ops"])
HOSTS = st.sampled_from(["*", "10.0.0.1", "10.0.0.0/8", "::/0", "11.0.0.0/8"])
OPERATIONS = st.sampled_from([operation for operation in Operation if operation > Operation.ANY])
BINDINGS = st.builds(
    AclBinding,
    st.sampled_from([TOPIC, GROUP]),
    NAMES | st.just("*"),
    st.sampled_from([LITERAL, PREFIXED]),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    st.sampled_from([ALLOW, DENY]),
)
IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def applies(binding, principals, host, kind, name) -> bool:
    network = parse_network(binding.host)
    named = name.startswith(binding.name) if binding.pattern_type == PREFIXED else binding.name in (name, "*")
    return (
        binding.principal in (*principals, "User:*")
        and (network is None or parse_address(host) in network)
        and binding.resource_type == kind
        and named
    )


def model(bindings, principals, host, operation, kind, name) -> bool:
    found = [one for one in bindings if applies(one, principals, host, kind, name)]
    if any(one.permission == DENY and one.operation in (operation, Operation.ALL) for one in found):
        return False
    enough = {operation, Operation.ALL} | IMPLIED_BY.get(operation, set())
    return any(one.permission == ALLOW and one.operation in enough for one in found)


@settings(max_examples=100)
@given(st.lists(BINDINGS, max_size=12), st.lists(BINDINGS, max_size=6), st.data())
def test_decisions_are_those_of_the_model_also_after_changes(bindings, more, data) -> None:
    gone = data.draw(st.lists(st.sampled_from(bindings), max_size=4)) if bindings else []
    authorizer = Authorizer.of(bindings).changed(removed=gone).changed(added=more)
    left = [one for one in bindings if one not in gone] + more
    assert {one.binding for one in authorizer.rules()} == set(left)
    principals = data.draw(st.sampled_from([("User:alice",), ("User:alice", "Group:ops"), ("User:bob",)]))
    for name in ("a", "ab", "b", "bb", "*"):
        for operation in Operation:
            if operation > Operation.ANY:
                case = (principals, HOST, operation, TOPIC, name)
                expected = model(left, *case)
                assert authorizer.allows(*case) == expected
                assert authorizer.explain(*case).allowed == expected


@settings(max_examples=70)
@given(
    st.lists(BINDINGS.filter(lambda b: (b.name, b.pattern_type) != ("*", PREFIXED)), max_size=8), OPERATIONS
)
@example([rule(Operation.READ, "a"), rule(Operation.READ, "a", permission=DENY)], Operation.READ)
def test_any_resource_is_allowed_if_the_model_allows_some_name(bindings, operation) -> None:
    """Names that no rule mentions stand for all others. A prefix that is denied letter by letter is found by neither
    Kafka nor Penstock, so the model may allow less."""
    names = {"a" * n + "b" * m + "c" for n in range(4) for m in range(4)} | {b.name for b in bindings}
    names |= {f"{b.name}c" for b in bindings} | {"c"}
    some = any(model(bindings, ALICE, HOST, operation, TOPIC, name) for name in names if name != "*")
    assert Authorizer.of(bindings).allows_any(ALICE, HOST, operation, TOPIC) == some


def test_a_decision_among_ten_thousand_rules_looks_at_a_few() -> None:
    """Rules on other names, and of other principals, are not looked at: counted, not timed."""
    rules = [rule(Operation.READ, f"topic-{n}") for n in range(5_000)]
    rules += [rule(Operation.READ, f"prefix-{n}", pattern=PREFIXED) for n in range(2_500)]
    rules += [rule(Operation.READ, "*", principal=f"User:user-{n}") for n in range(2_500)]
    authorizer = Authorizer.of(rules)
    looked_at = [one for entry in authorizer._entries(ALICE, TOPIC, "prefix-2499-x") for one in entry.rules]
    assert {one.binding.name for one in looked_at} == {"prefix-2", "prefix-24", "prefix-249", "prefix-2499"}
    assert authorizer.allows(ALICE, HOST, Operation.READ, TOPIC, "topic-4999")
    assert not authorizer.allows(ALICE, HOST, Operation.READ, TOPIC, "topic-5000")


def test_the_next_authorizer_shares_what_did_not_change() -> None:
    first = Authorizer.of([rule(Operation.READ, f"topic-{n}") for n in range(100)])
    second = first.changed(added=[rule(Operation.WRITE, "topic-7")])
    before, after = (one._indexes["User:alice", TOPIC].literal for one in (first, second))
    assert [name for name in after if after[name] is not before[name]] == ["topic-7"]
