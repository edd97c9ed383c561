"""The seam between the node and the network's datagrams: real UDP here, a simulated one elsewhere.

What an implementation promises, and no more: a datagram arrives whole or not at all, perhaps late, twice or out of
order. `send` never waits and never raises for what the network does.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from typing import Protocol

from penstock.swim import Endpoint

log = logging.getLogger("penstock.gossip")

Receive = Callable[[Endpoint, bytes], None]

MAX_NAMES = 1000
"""Host names with a known address: as many as there may be members."""
NAME_LIFETIME_S = 30.0
"""How long an address that a name had is used before it is looked up again: names move with their containers."""


class Datagrams(Protocol):
    """An open endpoint."""

    local: Endpoint
    """Where it listens, with the port that it really has."""

    def send(self, to: Endpoint, data: bytes) -> None: ...

    def close(self) -> None: ...


class DatagramNetwork(Protocol):
    async def open(self, bind: Endpoint, receive: Receive) -> Datagrams:
        """Listens; OSError if it cannot. Port 0 asks for a free one."""
        ...


class UdpNetwork:
    """The machine's own network."""

    async def open(self, bind: Endpoint, receive: Receive) -> "UdpEndpoint":
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Receiver(receive), local_addr=(bind.host, bind.port)
        )
        return UdpEndpoint(transport)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._receive(Endpoint(addr[0], addr[1]), data)

    def error_received(self, exc: Exception) -> None:
        # Nobody listens there, or there is no route: gossip finds out by itself.
        log.debug("datagram: %s", exc)


class UdpEndpoint:
    """A UDP socket that looks names up by itself, without making anybody wait."""

    def __init__(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        name = transport.get_extra_info("sockname")
        self.local = Endpoint(name[0], name[1])
        self._is_v6 = ":" in name[0]
        self._names: dict[str, tuple[str, float]] = {}
        """Each name's address, and until when it is used."""
        self._lookups: dict[str, asyncio.Task[None]] = {}

    def send(self, to: Endpoint, data: bytes) -> None:
        address = self._address(to.host)
        if address is None:
            self._look_up(to, data)
        elif not self._transport.is_closing():
            self._transport.sendto(data, (address, to.port))

    def close(self) -> None:
        for lookup in self._lookups.values():
            lookup.cancel()
        self._transport.close()

    def _address(self, host: str) -> str | None:
        known = self._names.get(host)
        if known is not None and self._loop.time() < known[1]:
            return known[0]
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return None
        return host

    def _look_up(self, to: Endpoint, data: bytes) -> None:
        """This datagram goes out when the address is known; what else goes there meanwhile is lost, like any
        datagram."""
        if to.host in self._lookups:
            return
        lookup = self._loop.create_task(self._resolve_and_send(to, data))
        self._lookups[to.host] = lookup
        lookup.add_done_callback(lambda _: self._lookups.pop(to.host, None))

    async def _resolve_and_send(self, to: Endpoint, data: bytes) -> None:
        try:
            found = await self._loop.getaddrinfo(to.host, to.port)
        except OSError as problem:
            log.debug("gossip cannot resolve %s: %s", to.host, problem)
            return
        addresses = [str(row[4][0]) for row in found if (":" in str(row[4][0])) == self._is_v6]
        if not addresses:
            log.debug("gossip finds no address of %s for %s", to.host, self.local)
            return
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        self._names[to.host] = addresses[0], self._loop.time() + NAME_LIFETIME_S
        if not self._transport.is_closing():
            self._transport.sendto(data, (addresses[0], to.port))
