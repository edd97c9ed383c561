"""WebSockets that were opened with an API token end with it."""

from collections.abc import Iterator

import httpx
import pytest

from penstock import Broker
from tests.web.api.secured import PASSWORDS, caller
from tests.web.pushing import Subscriber, subscriber


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users=PASSWORDS) as broker:
        yield broker


@pytest.fixture
def admin(secured: Broker) -> Iterator[httpx.Client]:
    with caller(secured, "admin", PASSWORDS["admin"]) as client:
        client.post("/v1/topics", json={"name": "news"})
        client.post("/v1/grants", json={"role": "reader", "principal": "User:alice"}).raise_for_status()
        yield client


def subscribed(one: Subscriber, name: str) -> None:
    assert one.subscribe(name, "news")["type"] == "subscribed"


def bearer(token: str) -> dict[str, dict[str, str]]:
    return {"additional_headers": {"Authorization": f"Bearer {token}"}}


def test_a_revoked_token_closes_its_websocket(secured: Broker, admin: httpx.Client) -> None:
    made = admin.post("/v1/users/alice/tokens", json={}).json()
    with subscriber(secured.http_url, **bearer(made["token"])) as one:
        subscribed(one, "revoked")
        assert admin.delete(f"/v1/users/alice/tokens/{made['token_id']}").status_code == 204
        error = one.hear_of("error")
        assert one.closed()[1] == "login_failed"
    assert made["token_id"] in error["message"]
    assert made["token"] not in str(error)


def test_a_token_that_expires_closes_its_websocket(secured: Broker, admin: httpx.Client) -> None:
    made = admin.post("/v1/users/alice/tokens", json={"lifetime_ms": 2_000}).json()
    with subscriber(secured.http_url, **bearer(made["token"])) as one:
        subscribed(one, "expired")
        assert made["token_id"] in one.hear_of("error")["message"]
        assert one.closed()[1] == "login_failed"


def test_other_tokens_of_the_user_go_on(secured: Broker, admin: httpx.Client) -> None:
    first, second = (admin.post("/v1/users/alice/tokens", json={}).json() for _ in range(2))
    with subscriber(secured.http_url, **bearer(second["token"])) as one:
        subscribed(one, "going-on")
        assert admin.delete(f"/v1/users/alice/tokens/{first['token_id']}").status_code == 204
        assert one.nothing_more()
