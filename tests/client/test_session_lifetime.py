"""Logins that end after `max_session_ms`: WebSockets are closed, and clients log in again by themselves."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.sync.client import connect

from penstock.client import Client, LeaseLost, LoginFailed
from tests.secured import (
    GROUP,
    PASSWORDS,
    PATIENCE_SECONDS,
    READ,
    TOPIC,
    WRITE,
    SecuredNode,
    secured_node,
    token,
)
from tests.web.pushing import Subscriber

Unique = Callable[[str], str]
SESSION_MS = 1_000
FIRST_FRAMES = {
    "/v1/push": {"type": "subscribe", "subscription": "NAME.readers", "topics": ["NAME"]},
    "/v1/work": {"type": "work", "queue": "NAME", "topics": ["NAME"], "credit": 1},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node"), max_session_ms=SESSION_MS, clock_skew_ms=0) as running:
        yield running


@pytest.fixture
def topic(node: SecuredNode, unique: Unique) -> str:
    """A topic with a queue of the same name and a subscription, which alice may use."""
    name = unique("orders")
    with Client(node.address("tls"), **node.arguments("admin")) as admin:
        admin.admin.create_queue(name)
    node.allow("alice", TOPIC, name, READ, WRITE)
    for group in (name, f"{name}.readers"):
        node.allow("alice", GROUP, group, READ)
    return name


@pytest.mark.parametrize("path", FIRST_FRAMES)
def test_a_websocket_that_was_opened_with_a_password_ends(node: SecuredNode, topic: str, path: str) -> None:
    url = node.http_url.replace("https://", "wss://") + path
    login = base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()
    headers = {"Authorization": f"Basic {login}"}
    with connect(url, ssl=node.certificates.client_context(), additional_headers=headers) as socket:
        socket.send(json.dumps(FIRST_FRAMES[path]).replace("NAME", topic))
        one = Subscriber(socket)
        assert "log in again" in one.hear_of("error")["message"]
        assert one.closed() == (4401, "login_expired")


def arguments(node: SecuredNode, by: str) -> dict[str, Any]:
    if by == "password":
        return node.arguments("alice")
    return {"token": lambda: token("alice", lifetime_s=600), "tls_ca": node.certificates.ca}


def wait_for_reconnect(stream: Any) -> None:
    """Until the broker has ended the login, and the client has come back."""
    before, deadline = stream._session.reconnects, time.monotonic() + PATIENCE_SECONDS
    while stream._session.reconnects == before:
        assert stream.receive(0.1) is None
        assert time.monotonic() < deadline


@pytest.mark.parametrize("by", ["password", "token"])
def test_a_subscriber_logs_in_again_and_goes_on(node: SecuredNode, topic: str, by: str) -> None:
    with (
        Client(node.address("tls"), **arguments(node, by)) as client,
        client.subscribe(topic, name=f"{topic}.readers", read_old=True) as subscription,
    ):
        for value in (b"one", b"two"):
            wait_for_reconnect(subscription)
            client.publish(topic, value)
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            assert message.value == value
            with suppress(LeaseLost):  # if the login ends meanwhile, the session acks it again by itself
                message.ack().wait(PATIENCE_SECONDS)
            assert subscription._driver.wait_for(lambda: subscription._session.is_settled, PATIENCE_SECONDS)


def test_a_worker_logs_in_again_and_goes_on(node: SecuredNode, topic: str) -> None:
    with Client(node.address("tls"), **node.arguments("alice")) as client, client.queue(topic) as queue:
        wait_for_reconnect(queue)
        client.publish(topic, b"one")
        job = queue.receive(PATIENCE_SECONDS)
        assert job is not None
        assert job.value == b"one"
        job.ack()


def test_a_client_whose_token_has_expired_is_told(node: SecuredNode, topic: str) -> None:
    short = {"token": token("alice", lifetime_s=2), "tls_ca": node.certificates.ca}
    with (
        Client(node.address("tls"), http=node.http_url, **short) as client,
        client.subscribe(topic, name=f"{topic}.readers") as subscription,
        pytest.raises(LoginFailed, match="get a new token"),
    ):
        subscription.receive(PATIENCE_SECONDS)
