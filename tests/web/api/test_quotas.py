"""Quotas over HTTP."""

from collections.abc import Iterator

import httpx
import pytest

from penstock import Broker
from penstock.config import Limits
from tests.kafka.quota_requests import set_quotas
from tests.kafka.raw import RawClient
from tests.web.api.secured import PASSWORDS, REFUSED, Login, code, logins, message

MOST = 4


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users=PASSWORDS, limits=Limits(max_quotas=MOST)) as broker:
        yield broker


@pytest.fixture
def login(secured: Broker) -> Iterator[Login]:
    with logins(secured) as login:
        yield login


@pytest.fixture
def admin(login: Login) -> Iterator[httpx.Client]:
    """Leaves no quotas behind."""
    admin = login("admin")
    yield admin
    for row in listed(admin):
        entity = {name: row[name] for name in ("user", "client_id", "ip") if row[name] is not None}
        admin.delete("/v1/quotas", params=entity).raise_for_status()


def listed(client: httpx.Client, **wanted: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (
        client.get("/v1/quotas", params=wanted).raise_for_status().json()["quotas"]
    )
    return rows


def put(client: httpx.Client, quotas: dict[str, float | None], **entity: str) -> httpx.Response:
    return client.patch("/v1/quotas", json={**entity, "quotas": quotas})


def row(
    user: str | None = None, client_id: str | None = None, ip: str | None = None, **quotas: float
) -> object:
    return {"user": user, "client_id": client_id, "ip": ip, "quotas": quotas}


def test_quotas_are_set_listed_and_removed(admin: httpx.Client) -> None:
    assert listed(admin) == []
    made = put(admin, {"producer_byte_rate": 1_000_000, "request_percentage": 12.5}, user="alice")
    alice = row(user="alice", producer_byte_rate=1_000_000, request_percentage=12.5)
    assert (made.status_code, made.json()) == (200, alice)
    assert put(admin, {"request_percentage": None}, user="alice").json() == row(
        "alice", producer_byte_rate=1_000_000
    )
    put(admin, {"connection_creation_rate": 10}, ip="10.0.0.7").raise_for_status()
    assert listed(admin) == [
        row(ip="10.0.0.7", connection_creation_rate=10),
        row(user="alice", producer_byte_rate=1_000_000),
    ]
    gone = admin.delete("/v1/quotas", params={"user": "alice"})
    assert (gone.status_code, gone.json()) == (200, row("alice", producer_byte_rate=1_000_000))
    assert code(admin.delete("/v1/quotas", params={"user": "alice"})) == (404, "resource_not_found")
    assert listed(admin) == [row(ip="10.0.0.7", connection_creation_rate=10)]


def test_entities_are_selected_by_their_parts_and_removed_exactly(admin: httpx.Client) -> None:
    rate = {"producer_byte_rate": 1000.0}
    for entity in ({"user": "alice"}, {"user": "alice", "client_id": "app"}, {"user": "<default>"}):
        put(admin, dict(rate), **entity).raise_for_status()
    assert listed(admin, user="alice") == [row("alice", **rate), row("alice", "app", **rate)]
    assert listed(admin, client_id="app") == [row("alice", "app", **rate)]
    assert listed(admin, user="<default>") == [row("<default>", **rate)]
    admin.delete("/v1/quotas", params={"user": "alice"}).raise_for_status()
    assert listed(admin, user="alice") == [row("alice", "app", **rate)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"quotas": {"producer_byte_rate": 1}}, "for a user, a client-id, both, or an ip"),
        ({"user": "alice", "ip": "10.0.0.7", "quotas": {}}, "for a user, a client-id, both, or an ip"),
        (
            {"user": "alice", "quotas": {"bytes": 1}},
            "there is no quota 'bytes': expected one of producer_byte_rate",
        ),
        ({"user": "alice", "quotas": {"producer_byte_rate": 0}}, "expected more than 0"),
        ({"user": "alice", "quotas": {"producer_byte_rate": 1.5}}, "expected a whole number"),
        ({"user": "alice", "quotas": {"connection_creation_rate": 1}}, "is not a quota for user alice"),
        ({"ip": "somewhere", "quotas": {"connection_creation_rate": 1}}, "expected an address"),
    ],
)
def test_a_mistake_is_told(admin: httpx.Client, body: dict[str, object], said: str) -> None:
    refused = admin.patch("/v1/quotas", json=body)
    assert refused.status_code == 400
    assert said in message(refused)
    assert listed(admin) == []


def test_the_number_of_entities_is_limited(admin: httpx.Client) -> None:
    for number in range(MOST):
        put(admin, {"producer_byte_rate": 1}, user=f"user-{number}").raise_for_status()
    refused = put(admin, {"producer_byte_rate": 1}, user="one-more")
    assert code(refused) == (409, "policy_violation")
    assert "limits.max_quotas" in message(refused)


def test_quotas_need_their_permissions(admin: httpx.Client, login: Login) -> None:
    put(admin, {"producer_byte_rate": 1}, user="bob").raise_for_status()
    bob = login("bob")
    assert code(bob.get("/v1/quotas")) == REFUSED
    assert code(put(bob, {"producer_byte_rate": None}, user="bob")) == REFUSED
    assert code(bob.delete("/v1/quotas", params={"user": "bob"})) == REFUSED
    assert len(listed(admin)) == 1


def test_they_work_without_logins_and_are_those_of_kafka() -> None:
    with Broker() as broker, httpx.Client(base_url=broker.http_url, timeout=30) as client:
        put(client, {"request_percentage": 50}, client_id="<default>").raise_for_status()
        with RawClient(broker) as kafka:
            set_quotas(kafka, {"client_id": None}, consumer_byte_rate=2000.0)
        assert listed(client) == [row(client_id="<default>", consumer_byte_rate=2000, request_percentage=50)]
