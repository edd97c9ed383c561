"""Quotas by Kafka's APIs: matching, mistakes, limits and permissions."""

from collections.abc import Iterator

import pytest

from penstock import Broker
from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.kafka.handlers.quotas import MAX_ENTRIES
from tests.kafka.quota_requests import alter, describe, described, entry, set_quotas
from tests.kafka.raw import RawClient
from tests.kafka.server.test_logins import PASSWORDS, log_in
from tests.kafka.trio import Trio

EXACT, DEFAULT, ANY = 0, 1, 2


@pytest.fixture
def client() -> Iterator[RawClient]:
    with Broker(http=None, limits=Limits(max_quotas=5)) as broker, RawClient(broker) as client:
        yield client


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_that_were_set_are_described(client: RawClient, version: int) -> None:
    [result] = alter(client, entry({"user": "alice"}, producer_byte_rate=1000.0), version=version)
    assert (result.error_code, result.entity[0].entity_name) == (0, "alice")
    answer = describe(client, version=version)
    assert answer.entries is not None
    [found] = answer.entries
    assert [(part.entity_type, part.entity_name) for part in found.entity] == [("user", "alice")]
    assert [(value.key, value.value) for value in found.values] == [("producer_byte_rate", 1000.0)]


def test_filters_match_by_name_by_default_and_any(client: RawClient) -> None:
    for entity in (
        {"user": "alice"},
        {"user": None},
        {"user": "alice", "client_id": "app"},
        {"ip": "10.0.0.1"},
    ):
        quota = {"connection_creation_rate": 5.0} if "ip" in entity else {"request_percentage": 50.0}
        set_quotas(client, entity, **quota)  # type: ignore[arg-type]

    def entities(*components: tuple[str, int, str | None], strict: bool = False) -> list[object]:
        return [entity for entity, _ in described(client, *components, strict=strict)]

    alice, everyone, app = {"user": "alice"}, {"user": None}, {"user": "alice", "client-id": "app"}
    assert len(entities()) == 4
    assert entities(strict=True) == []
    assert entities(("user", EXACT, "alice")) == [alice, app]
    assert entities(("user", EXACT, "alice"), strict=True) == [alice]
    assert entities(("user", DEFAULT, None)) == [everyone]
    assert entities(("user", ANY, None), strict=True) == [everyone, alice]
    assert entities(("user", ANY, None), ("client-id", ANY, None), strict=True) == [app]
    assert entities(("ip", ANY, None)) == [{"ip": "10.0.0.1"}]


@pytest.mark.parametrize(
    "components",
    [
        [("user", EXACT, None)],
        [("user", DEFAULT, "alice")],
        [("user", 9, None)],
        [("user", ANY, None), ("user", ANY, None)],
        [("ip", ANY, None), ("user", ANY, None)],
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    client: RawClient, components: list[tuple[str, int, str | None]]
) -> None:
    answer = describe(client, *components)
    assert (answer.error_code, answer.entries) == (ErrorCode.INVALID_REQUEST, None)


def test_each_entity_of_a_request_succeeds_or_fails_by_itself(client: RawClient) -> None:
    results = alter(
        client,
        entry({"user": "alice"}, producer_byte_rate=1000.0),
        entry({"user": "bob"}, unknown_quota=1.0),
        entry({"ip": "not an address"}, connection_creation_rate=1.0),
        entry({"user": "bob", "ip": "10.0.0.1"}, connection_creation_rate=1.0),
        entry({}, producer_byte_rate=1.0),
    )
    assert [result.error_code for result in results] == [0] + [ErrorCode.INVALID_REQUEST] * 4
    assert described(client) == [({"user": "alice"}, {"producer_byte_rate": 1000.0})]


def test_one_quota_twice_for_an_entity_is_refused(client: RawClient) -> None:
    twice = entry({"user": "alice"}, producer_byte_rate=1.0)
    twice.ops = twice.ops * 2
    assert alter(client, twice)[0].error_code == ErrorCode.INVALID_REQUEST


def test_a_request_that_only_validates_changes_nothing(client: RawClient) -> None:
    results = alter(
        client,
        entry({"user": "alice"}, producer_byte_rate=1000.0),
        entry({"user": "alice"}, producer_byte_rate=-1.0),
        validate_only=True,
    )
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_REQUEST]
    assert described(client) == []


def test_entities_and_entries_of_a_request_are_limited(client: RawClient) -> None:
    entries = [entry({"user": f"user{number}"}, producer_byte_rate=1.0) for number in range(6)]
    results = alter(client, *entries)
    assert [result.error_code for result in results] == [0] * 5 + [ErrorCode.POLICY_VIOLATION]
    many = [entry({"user": "alice"}, producer_byte_rate=1.0)] * (MAX_ENTRIES + 1)
    results = alter(client, *many)
    assert {result.error_code for result in results} == {ErrorCode.INVALID_REQUEST}


def test_only_callers_with_permissions_on_configs_of_the_cluster_see_or_change_quotas() -> None:
    with Broker(http=None, users=PASSWORDS) as broker, RawClient(broker) as alice, RawClient(broker) as admin:
        log_in(alice, "alice")
        log_in(admin)
        assert describe(alice).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        [result] = alter(alice, entry({"user": "alice"}, producer_byte_rate=1.0))
        assert result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        set_quotas(admin, {"user": "alice"}, producer_byte_rate=1.0)
        assert len(described(admin)) == 1


def test_a_quota_that_is_set_on_one_node_is_known_on_all(trio: Trio) -> None:
    with trio.client(1) as client:
        set_quotas(client, {"user": "alice"}, producer_byte_rate=1000.0)
    for node_id in (1, 2, 3):
        trio.eventually(lambda node_id=node_id: trio.node(node_id).quotas.in_force)  # type: ignore[misc]
    with trio.client(1) as client:
        set_quotas(client, {"user": "alice"}, producer_byte_rate=None)
