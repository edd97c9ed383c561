"""The address and the scheme of a client behind a proxy that `http_trusted_proxies` names.

Each proxy appends to X-Forwarded-For the address from which it got the request. So the client is the last one that is
no trusted proxy; all before it is what the client says of itself. A value that is no address ends the search, because
it may come from the client: then the client is the last proxy that is known. From anybody else, the headers count for
nothing."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

FORWARDED_FOR, FORWARDED_PROTO = b"x-forwarded-for", b"x-forwarded-proto"
SOCKET_SCHEMES = {"http": "ws", "https": "wss"}
NO_PORT = 0

Ip = IPv4Address | IPv6Address


class TrustedProxies:
    """Changes `client` and `scheme` in the scope of requests and WebSockets that come from these networks."""

    def __init__(self, app: ASGIApp, networks: Iterable[str]) -> None:
        self._app = app
        self._networks = [ip_network(one) for one in networks]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: tuple[str, int] | None = scope.get("client")
        peer = read_address(client[0]) if client is not None else None
        if peer is not None and self._trusts(peer):
            self._apply(scope, peer)
        await self._app(scope, receive, send)

    def _trusts(self, address: Ip) -> bool:
        return any(address in network for network in self._networks)

    def _apply(self, scope: Scope, peer: Ip) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        given = [value.decode("latin-1") for name, value in headers if name == FORWARDED_FOR]
        if given:
            found = self.client_of(",".join(given), peer)
            if found != peer:
                scope["client"] = str(found), NO_PORT
        for name, value in headers:
            scheme = value.decode("latin-1").strip().lower()
            if name == FORWARDED_PROTO and scheme in SOCKET_SCHEMES:
                scope["scheme"] = SOCKET_SCHEMES[scheme] if scope["type"] == "websocket" else scheme

    def client_of(self, forwarded_for: str, peer: Ip) -> Ip:
        """The client by this header; `peer` is the proxy that has sent it."""
        found = peer
        for value in reversed(forwarded_for.split(",")):
            address = read_address(_without_port(value.strip()))
            if address is None:
                return found
            found = address
            if not self._trusts(address):
                return found
        return found


def read_address(text: str) -> Ip | None:
    """An IPv4 address that is written as IPv6 (::ffff:192.0.2.7), as sockets for both do it, is IPv4. A zone (%eth0)
    may be any text, and means nothing on another machine."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    return None if address.scope_id is not None else address.ipv4_mapped or address


def _without_port(value: str) -> str:
    """192.0.2.7:80 and [2001:db8::7]:80, as some proxies write it."""
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0] if value.count(":") == 1 else value
