"""WebSockets that were opened with a token end with it: an API token, or one of an identity provider."""

from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka.admin import NewTopic
from websockets.sync.client import connect

from penstock import Broker
from tests.secured import GROUP, PATIENCE_SECONDS, READ, TOPIC, SecuredNode, secured_node, token
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
    made = admin.post("/v1/users/alice/tokens", json={"lifetime_ms": 10_000}).json()
    with subscriber(secured.http_url, **bearer(made["token"])) as one:
        subscribed(one, "expired")
        assert made["token_id"] in one.hear_of("error")["message"]
        assert one.closed() == (4401, "login_expired")


def test_other_tokens_of_the_user_go_on(secured: Broker, admin: httpx.Client) -> None:
    first, second = (admin.post("/v1/users/alice/tokens", json={}).json() for _ in range(2))
    with subscriber(secured.http_url, **bearer(second["token"])) as one:
        subscribed(one, "going-on")
        assert admin.delete(f"/v1/users/alice/tokens/{first['token_id']}").status_code == 204
        assert one.nothing_more()


# --- tokens of an identity provider


@pytest.fixture(scope="module")
def provided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node")) as node:
        node.allow("alice", TOPIC, "news", READ)
        for name in ("readers", "jobs"):
            node.allow("alice", GROUP, name, READ)
        admin = node.admin()
        admin.create_topics([NewTopic("news", 1)])["news"].result(PATIENCE_SECONDS)
        yield node


FIRST_FRAMES = {
    "/v1/push": {"type": "subscribe", "subscription": "readers", "topics": ["news"]},
    "/v1/work": {"type": "work", "queue": "jobs", "topics": ["news"], "credit": 1},
}


@pytest.mark.parametrize("path", FIRST_FRAMES)
def test_a_websocket_ends_when_the_token_of_an_identity_provider_expires(
    provided: SecuredNode, path: str
) -> None:
    url = provided.http_url.replace("https://", "wss://") + path
    context = provided.certificates.client_context()
    with connect(url, ssl=context, **bearer(token("alice", lifetime_s=10))) as socket:
        one = Subscriber(socket)
        one.say(**FIRST_FRAMES[path])
        assert one.hear()["type"] in ("subscribed", "working")
        error = one.hear_of("error")
        assert one.closed() == (4401, "login_expired")
    assert error["message"] == "the login has expired: log in again, by opening another WebSocket"


def test_a_token_that_lasts_longer_does_not_end_a_websocket(provided: SecuredNode) -> None:
    url = provided.http_url.replace("https://", "wss://") + "/v1/push"
    context = provided.certificates.client_context()
    with connect(url, ssl=context, **bearer(token("alice", lifetime_s=600))) as socket:
        one = Subscriber(socket)
        one.say(**FIRST_FRAMES["/v1/push"])
        assert one.hear()["type"] == "subscribed"
        assert one.nothing_more()
