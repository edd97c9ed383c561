"""Quotas: which one holds, and whom it is shared with."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode, KafkaError
from penstock.security.quotas import (
    DEFAULT_ENTITY,
    MAX_ENTITY_CHARACTERS,
    NO_QUOTAS,
    Quota,
    QuotaEntity,
    QuotaKind,
    QuotaTable,
    check_quota,
    entity_from_wire,
    filter_from_components,
)

PRODUCE, FETCH = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
CONNECTIONS = QuotaKind.CONNECTION_CREATION_RATE
D = DEFAULT_ENTITY

PRECEDENCE = [
    (QuotaEntity("alice", "app"), ("alice", "app")),
    (QuotaEntity("alice", D), ("alice", "app")),
    (QuotaEntity("alice", None), ("alice", None)),
    (QuotaEntity(D, "app"), ("alice", "app")),
    (QuotaEntity(D, D), ("alice", "app")),
    (QuotaEntity(D, None), ("alice", None)),
    (QuotaEntity(None, "app"), (None, "app")),
    (QuotaEntity(None, D), (None, "app")),
]
"""Kafka's order (ClientQuotaManager), and the tags of the metric that the clients share there."""


def test_of_all_quotas_the_first_in_kafkas_order_holds() -> None:
    """All 256 sets of quotas that can be there."""
    for present in itertools.product([False, True], repeat=len(PRECEDENCE)):
        there = [row for row, on in zip(PRECEDENCE, present, strict=True) if on]
        table = QuotaTable({entity: {PRODUCE: 100.0 + n} for n, (entity, _) in enumerate(there)})
        expected = Quota(100.0, *there[0][1]) if there else None
        assert table.find(PRODUCE, "alice", "app") == expected


def test_a_quota_for_another_user_or_client_does_not_hold() -> None:
    table = QuotaTable(
        {
            QuotaEntity("bob", None): {PRODUCE: 1},
            QuotaEntity("alice", "x"): {PRODUCE: 1},
            QuotaEntity(None, "y"): {PRODUCE: 1},
        }
    )
    assert table.find(PRODUCE, "alice", "app") is None


def test_each_kind_of_quota_is_decided_for_itself() -> None:
    table = QuotaTable({QuotaEntity("alice"): {FETCH: 5}, QuotaEntity(None, "app"): {PRODUCE: 7}})
    assert table.find(PRODUCE, "alice", "app") == Quota(7, None, "app")
    assert table.find(FETCH, "alice", "app") == Quota(5, "alice", None)
    assert NO_QUOTAS.find(FETCH, "alice", "app") is None


def test_connections_are_limited_by_address_or_by_the_default() -> None:
    table = QuotaTable({QuotaEntity(ip="10.0.0.1"): {CONNECTIONS: 5}})
    assert table.connection_rate("10.0.0.1") == 5
    assert table.connection_rate("::ffff:10.0.0.1") == 5
    assert table.connection_rate("10.0.0.2") is None
    assert table.changed(QuotaEntity(ip=D), {CONNECTIONS: 9}).connection_rate("10.0.0.2") == 9
    assert NO_QUOTAS.connection_rate("10.0.0.1") is None


def test_a_change_makes_another_table_and_leaves_the_first() -> None:
    first = NO_QUOTAS.changed(QuotaEntity("alice"), {PRODUCE: 5.0, FETCH: 6.0})
    second = first.changed(QuotaEntity("alice"), {PRODUCE: None})
    third = second.changed(QuotaEntity("alice"), {FETCH: None})
    assert first.entries == {QuotaEntity("alice"): {PRODUCE: 5.0, FETCH: 6.0}}
    assert second.entries == {QuotaEntity("alice"): {FETCH: 6.0}}
    assert third.entries == NO_QUOTAS.entries == {}


# --- entities and values


def test_an_entity_without_a_name_is_the_default() -> None:
    assert entity_from_wire([("user", "alice"), ("client-id", None)]) == QuotaEntity("alice", D)
    assert entity_from_wire([("ip", None)]) == QuotaEntity(ip=D)
    assert str(QuotaEntity("alice", D)) == "user alice, client-id <default>"


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("ip", "10.0.0.1"), ("user", "alice")],
        [("ip", "example.com")],
        [("user", "")],
        [("user", "a\n")],
        [("user", "x" * (MAX_ENTITY_CHARACTERS + 1))],
        [("user", "a"), ("user", "b")],
        [("group", "a")],
    ],
)
def test_an_impossible_entity_is_refused(parts) -> None:
    with pytest.raises(KafkaError) as caught:
        entity_from_wire(parts)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (QuotaEntity("a"), "unknown_rate", 1),
        (QuotaEntity("a"), "connection_creation_rate", 1),
        (QuotaEntity(ip=D), "producer_byte_rate", 1),
        (QuotaEntity("a"), "producer_byte_rate", 0),
        (QuotaEntity("a"), "producer_byte_rate", -1),
        (QuotaEntity("a"), "producer_byte_rate", 1.5),
        (QuotaEntity("a"), "request_percentage", float("nan")),
        (QuotaEntity("a"), "request_percentage", float("inf")),
    ],
)
def test_an_impossible_value_is_refused(entity, key, value) -> None:
    with pytest.raises(KafkaError) as caught:
        check_quota(entity, key, value)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_possible_values_pass() -> None:
    assert check_quota(QuotaEntity("a"), "producer_byte_rate", 1024.0) == PRODUCE
    assert check_quota(QuotaEntity("a", "b"), "request_percentage", 0.5) == QuotaKind.REQUEST_PERCENTAGE
    assert check_quota(QuotaEntity(ip=D), "connection_creation_rate", None) == CONNECTIONS


# --- filters

ENTITIES = [
    *(entity for entity, _ in PRECEDENCE),
    QuotaEntity(ip="10.0.0.1"),
    QuotaEntity(ip=D),
]


@pytest.mark.parametrize(
    ("components", "strict", "selected"),
    [
        ([], False, ENTITIES),
        ([], True, []),
        ([("user", 0, "alice")], False, ENTITIES[:3]),
        ([("user", 0, "alice")], True, [ENTITIES[2]]),
        ([("user", 1, None)], True, [QuotaEntity(D)]),
        ([("user", 2, None)], True, [QuotaEntity("alice"), QuotaEntity(D)]),
        ([("user", 2, None)], False, ENTITIES[:6]),
        ([("user", 0, "alice"), ("client-id", 1, None)], True, [QuotaEntity("alice", D)]),
        ([("client-id", 2, None)], True, ENTITIES[6:8]),
        ([("ip", 2, None)], True, ENTITIES[8:]),
        ([("ip", 1, None)], False, [QuotaEntity(ip=D)]),
    ],
)
def test_a_filter_selects_as_kafka_does(components, strict, selected) -> None:
    wanted = filter_from_components(components, strict)
    assert [entity for entity in ENTITIES if wanted.selects(entity)] == selected


@pytest.mark.parametrize(
    "components",
    [
        [("group", 2, None)],
        [("user", 3, None)],
        [("user", 0, None)],
        [("user", 1, "alice")],
        [("user", 2, None), ("user", 2, None)],
        [("ip", 2, None), ("user", 2, None)],
    ],
)
def test_an_impossible_filter_is_refused(components) -> None:
    with pytest.raises(KafkaError):
        filter_from_components(components, strict=False)


@given(
    st.lists(
        st.tuples(st.text(max_size=3) | st.sampled_from(["user", "ip"]), st.none() | st.text(max_size=3)),
        max_size=3,
    )
)
def test_any_entity_is_valid_or_refused(parts) -> None:
    with contextlib.suppress(KafkaError):
        entity_from_wire(parts).validate()
