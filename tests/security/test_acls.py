"""Access rules, filters, and hosts."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode, KafkaError
from penstock.security.acls import (
    MAX_NAME_CHARACTERS,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    binding_from_wire,
    check_binding,
    filter_from_wire,
)
from penstock.security.hosts import parse_address, parse_network
from penstock.types import CLUSTER_NAME, Operation, ResourceType

RULE = AclBinding(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)


def rule(**changes):
    return msgspec.structs.replace(RULE, **changes)


def test_the_numbers_are_kafkas() -> None:
    """AclOperation, ResourceType, PatternType and AclPermissionType of Kafka's clients."""
    assert [kind.value for kind in PatternType] == [0, 1, 2, 3, 4]
    assert (Permission.DENY, Permission.ALLOW) == (2, 3)
    assert (ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN, ResourceType.USER) == (5, 6, 7)
    assert binding_from_wire(2, "orders", 3, "User:alice", "*", 3, 3) == RULE


def test_a_rule_survives_its_stored_form() -> None:
    stored = msgspec.msgpack.encode(RULE)
    assert msgspec.msgpack.decode(stored) == [2, "orders", 3, "User:alice", "*", 3, 3]
    assert msgspec.msgpack.decode(stored, type=AclBinding) == RULE


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"resource_type": ResourceType.ANY}, "resource type ANY"),
        ({"resource_type": ResourceType.UNKNOWN}, "resource type UNKNOWN"),
        ({"pattern_type": PatternType.MATCH}, "pattern type MATCH"),
        ({"operation": Operation.ANY}, "operation ANY"),
        ({"permission": Permission.UNKNOWN}, "permission UNKNOWN"),
        ({"name": ""}, "needs the name"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": "x" * (MAX_NAME_CHARACTERS + 1)}, "at most"),
        ({"principal": "alice"}, "expected User:NAME"),
        ({"host": "example.com"}, "expected \\*, an address"),
        ({"host": ""}, "expected \\*, an address"),
        ({"host": "10.0.0.0/33"}, "expected \\*, an address"),
        ({"host": "fe80::1%eth0"}, "expected \\*, an address"),
        ({"resource_type": ResourceType.CLUSTER}, "kafka-cluster"),
    ],
)
def test_an_impossible_rule_is_refused_with_its_reason(changes, why) -> None:
    with pytest.raises(KafkaError, match=why) as caught:
        check_binding(rule(**changes))
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_numbers_that_kafka_does_not_define_are_refused() -> None:
    for position in (0, 2, 5, 6):
        numbers = [2, "orders", 3, "User:alice", "*", 3, 3]
        numbers[position] = 99
        with pytest.raises(KafkaError, match="UNKNOWN"):
            binding_from_wire(*numbers)
        with pytest.raises(KafkaError, match="unknown"):
            filter_from_wire(*numbers)


LITERAL, PREFIXED, ANY, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.ANY, PatternType.MATCH


@pytest.mark.parametrize(
    ("wanted", "name", "selected"),
    [
        (ANY, None, {"orders", "*", "ord*", "orders*", "o"}),
        (ANY, "orders", {"orders", "orders*"}),
        (LITERAL, "orders", {"orders"}),
        (LITERAL, "*", {"*"}),
        (LITERAL, None, {"orders", "*", "o"}),
        (PREFIXED, "ord", {"ord*"}),
        (PREFIXED, None, {"ord*", "orders*"}),
        (MATCH, "orders", {"orders", "*", "ord*", "orders*"}),
        (MATCH, "ordinary", {"*", "ord*"}),
        (MATCH, None, {"orders", "*", "ord*", "orders*", "o"}),
    ],
)
def test_a_filter_selects_names_as_kafka_does(wanted, name, selected) -> None:
    rules = {
        "orders": rule(),
        "*": rule(name="*"),
        "ord*": rule(name="ord", pattern_type=PREFIXED),
        "orders*": rule(name="orders", pattern_type=PREFIXED),
        "o": rule(name="o"),
    }
    chosen = AclFilter(pattern_type=wanted, name=name)
    assert {key for key, one in rules.items() if chosen.matches(one)} == selected


@pytest.mark.parametrize(
    ("field", "same", "other"),
    [
        ("resource_type", ResourceType.TOPIC, ResourceType.GROUP),
        ("principal", "User:alice", "User:*"),
        ("host", "*", "10.0.0.1"),
        ("operation", Operation.READ, Operation.ALL),
        ("permission", Permission.ALLOW, Permission.DENY),
    ],
)
def test_a_filter_selects_other_fields_by_equality(field, same, other) -> None:
    assert AclFilter(**{field: same}).matches(RULE)
    assert not AclFilter(**{field: other}).matches(RULE)
    assert AclFilter().matches(RULE)


def test_the_cluster_has_one_name() -> None:
    assert check_binding(rule(resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME))


@pytest.mark.parametrize(
    ("host", "caller", "matches"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.0.0/16", "10.1.2.3", True),
        ("10.1.2.3/16", "10.1.200.1", True),
        ("10.1.0.0/16", "10.2.0.1", False),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("2001:db8::/32", "10.1.2.3", False),
        ("0.0.0.0/0", "10.1.2.3", True),
        ("::ffff:10.1.2.3", "10.1.2.3", True),
        ("::ffff:10.1.2.3", "::ffff:10.1.2.3", True),
        ("::ffff:10.1.2.3", "10.1.2.4", False),
        ("::ffff:10.1.0.0/112", "10.1.2.3", True),
        ("::ffff:10.1.0.0/112", "10.2.0.1", False),
        ("::ffff:0:0/96", "10.1.2.3", True),
        ("::ffff:0:0/95", "::fffe:0:1", True),
        ("::/0", "::1", True),
    ],
)
def test_a_host_is_an_address_or_a_network(host, caller, matches) -> None:
    assert (parse_address(caller) in parse_network(host)) == matches


@pytest.mark.parametrize("host", ["", "localhost", "1.2.3", "x" * 100, "::" * 60])
def test_a_host_that_is_no_address_is_none(host) -> None:
    assert parse_address(host) is None


@given(st.text())
def test_any_host_is_parsed_or_refused(host) -> None:
    parse_address(host)
    with contextlib.suppress(KafkaError):
        parse_network(host)
