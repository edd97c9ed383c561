"""Credentials over HTTP go to nodes only, and not in clear beyond this machine."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from penstock.client import Denied, LoginFailed
from penstock.client.http_api import HttpApi
from penstock.client.http_nodes import HttpNodes
from penstock.client.security_arguments import client_security

LOGIN = client_security({"user": "alice", "password": "pässword:1"}, {})
NO_LOGIN = client_security({}, {})


def nodes(*urls: str, security=LOGIN, named=()) -> HttpNodes:
    found = HttpNodes(lambda: list(urls), security, named)
    found.find_urls()
    return found


def test_a_password_and_a_token_become_headers() -> None:
    sent = nodes().headers("https://node:1")["Authorization"]
    scheme, _, pair = sent.partition(" ")
    assert (scheme, base64.b64decode(pair).decode()) == ("Basic", "alice:pässword:1")
    with_token = client_security({"user": "alice", "password": "x", "token": "pst_abc"}, {})
    assert nodes(security=with_token).headers("wss://node:1") == {"Authorization": "Bearer pst_abc"}
    assert nodes(security=NO_LOGIN).headers("http://node:1") == {}


@pytest.mark.parametrize(
    "url", ["https://node:1", "wss://node:1", "http://127.0.0.1:1", "ws://localhost:1", "ws://[::1]:1"]
)
def test_credentials_go_to_encrypted_addresses_and_within_this_machine(url: str) -> None:
    assert nodes().headers(url)


@pytest.mark.parametrize(
    "url", ["http://node:1", "ws://10.0.0.1:1", "node:1", "http://127.0.0.1.example.org:1"]
)
def test_credentials_do_not_go_in_clear_to_another_machine(url: str) -> None:
    with pytest.raises(LoginFailed, match=r"is not encrypted, so the login was not sent.*http=") as refused:
        nodes(url).headers(url)
    assert "pässword" not in str(refused.value)


def test_the_caller_may_name_an_address_without_encryption() -> None:
    assert nodes(named=["http://10.0.0.1:1"]).headers("ws://10.0.0.2:1")
    with pytest.raises(LoginFailed):
        nodes(named=["https://10.0.0.1:1"]).headers("ws://10.0.0.2:1")


def test_redirects_are_followed_to_addresses_of_nodes_only() -> None:
    found = nodes("https://a:1", "http://b")
    assert found.may_redirect_to("wss://A:1/v1/push?subscription=x")
    assert found.may_redirect_to("http://b:80/")
    assert not found.may_redirect_to("https://a:2/")
    assert not found.may_redirect_to("https://login.example.org/")
    assert nodes(security=NO_LOGIN).may_redirect_to("https://login.example.org/")


@contextmanager
def server(location: str | None) -> Iterator[tuple[str, list[str | None]]]:
    """Redirects to the location, or answers; notes the Authorization of each request."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200 if location is None else 302)
            if location is not None:
                self.send_header("Location", location)
            self.end_headers()
            if location is None:
                self.wfile.write(b'{"queues": []}')

        def log_message(self, *_: object) -> None: ...

    served = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}", seen
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def test_a_redirect_to_a_stranger_does_not_get_the_login() -> None:
    with server(None) as (stranger, heard), server(f"{stranger}/") as (node, asked):
        with pytest.raises(Denied, match="http_302"):
            HttpApi(nodes(node)).ask("GET", "/v1/queues")
        assert asked[0] is not None
        assert heard == []


def test_a_redirect_to_another_node_gets_the_login() -> None:
    with server(None) as (other, heard), server(f"{other}/") as (node, asked):
        assert HttpApi(nodes(node, other)).ask("GET", "/v1/queues") == {"queues": []}
        assert heard == asked
