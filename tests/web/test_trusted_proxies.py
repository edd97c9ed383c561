"""Clients behind proxies: whose headers count, and which address in them is the client's."""

import asyncio
from typing import Any

import httpx
import pytest

from penstock.config import Address, NodeConfig
from penstock.embedded import _BrokerThread
from penstock.web.trusted_proxies import TrustedProxies

TRUSTED = ("10.0.0.0/8", "2001:db8::/32")


def seen(peer: str, *forwarded: str, kind: str = "http", proto: str | None = None) -> tuple[str, str]:
    """Address and scheme as the application sees them."""
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    if proto is not None:
        headers.append((b"x-forwarded-proto", proto.encode()))
    found: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.update(scope)

    async def never(*_: Any) -> Any:
        raise AssertionError

    scope = {"type": kind, "client": (peer, 4711), "scheme": "plain", "headers": headers}
    asyncio.run(TrustedProxies(app, TRUSTED)(scope, never, never))
    return found["client"][0], found["scheme"]


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ((), "10.0.0.1"),
        (("192.0.2.7",), "192.0.2.7"),
        (("198.51.100.1, 192.0.2.7",), "192.0.2.7"),
        (("198.51.100.1", "192.0.2.7"), "192.0.2.7"),
        (("192.0.2.7, 10.9.9.9",), "192.0.2.7"),
        (("10.1.1.1, 10.9.9.9",), "10.1.1.1"),
        (("192.0.2.7:1234",), "192.0.2.7"),
        (("[2001:db9::7]:1234",), "2001:db9::7"),
        (("2001:DB9:0::7",), "2001:db9::7"),
        (("::ffff:192.0.2.7",), "192.0.2.7"),
        (("192.0.2.7, ::ffff:10.9.9.9",), "192.0.2.7"),
        (("",), "10.0.0.1"),
        (("unknown",), "10.0.0.1"),
        (("192.0.2.7, \r\nadmin logged in",), "10.0.0.1"),
        (("192.0.2.7, unknown, 10.9.9.9",), "10.9.9.9"),
        (("fe80::1%any text",), "10.0.0.1"),
        (("192.0.2.7" * 1_000,), "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(
    forwarded: tuple[str, ...], client: str
) -> None:
    assert seen("10.0.0.1", *forwarded)[0] == client


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("::ffff:10.0.0.1", "192.0.2.7"),
        ("2001:db8::1", "192.0.2.7"),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ("", ""),
    ],
)
def test_only_proxies_of_these_networks_are_trusted(peer: str, client: str) -> None:
    assert seen(peer, "192.0.2.7")[0] == client


@pytest.mark.parametrize(
    ("peer", "proto", "kind", "scheme"),
    [
        ("10.0.0.1", "https", "http", "https"),
        ("10.0.0.1", "https", "websocket", "wss"),
        ("10.0.0.1", "javascript", "http", "plain"),
        ("192.0.2.1", "https", "http", "plain"),
    ],
)
def test_a_trusted_proxy_says_the_scheme(peer: str, proto: str, kind: str, scheme: str) -> None:
    assert seen(peer, proto=proto, kind=kind)[1] == scheme


@pytest.mark.parametrize(("trusted", "scheme"), [((), "http"), (("127.0.0.1",), "https")])
def test_redirects_have_the_scheme_that_a_trusted_proxy_says(trusted: tuple[str, ...], scheme: str) -> None:
    anywhere = Address("127.0.0.1", 0)
    config = NodeConfig(memory=True, kafka=anywhere, http=anywhere, http_trusted_proxies=trusted)
    thread = _BrokerThread(config, None)
    thread.start_and_wait()
    try:
        where = thread.service.http_address
        answer = httpx.get(f"http://{where}/health/", headers={"X-Forwarded-Proto": "https"})
        assert (answer.status_code, answer.headers["location"]) == (307, f"{scheme}://{where}/health")
    finally:
        thread.stop_and_wait()
