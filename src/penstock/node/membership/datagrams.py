"""The seam between the node and the network's datagrams: real UDP here, a simulated one elsewhere.

An implementation promises this and no more: a datagram arrives whole or not at all, perhaps late, twice or out of
order. `send` never waits, and never raises for a failure of the network.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from penstock.swim import GossipEndpoint

log = logging.getLogger("penstock.gossip")

Receive = Callable[[GossipEndpoint, bytes], None]
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_NAMES = 1000
"""Host names with a known address: as many as there may be members."""
NAME_LIFETIME_S = 30.0
"""How long the address of a name is used before it is looked up again: names move with their containers."""


class Datagrams(Protocol):
    """An open endpoint."""

    local: GossipEndpoint
    """The address on which it listens, with the actual port."""

    def send(self, to: GossipEndpoint, data: bytes) -> None: ...

    def close(self) -> None: ...


class DatagramNetwork(Protocol):
    async def open(self, bind: GossipEndpoint, receive: Receive) -> Datagrams:
        """Listens; OSError if it cannot. Port 0 asks for a free one."""
        ...


class UdpNetwork:
    """The machine's own network."""

    async def open(self, bind: GossipEndpoint, receive: Receive) -> "UdpEndpoint":
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Receiver(receive), local_addr=(bind.host, bind.port)
        )
        return UdpEndpoint(transport)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._receive(GossipEndpoint(addr[0], addr[1]), data)

    def error_received(self, exc: Exception) -> None:
        # No process listens there, or there is no route: gossip detects that by itself.
        log.debug("datagram: %s", exc)


class UdpEndpoint:
    """A UDP socket that looks names up in the background."""

    def __init__(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        name = transport.get_extra_info("sockname")
        self.local = GossipEndpoint(name[0], name[1])
        self._is_v6 = ":" in name[0]
        self._names: dict[str, tuple[IpAddress, float]] = {}
        """Each name's address, and until when it is used."""
        self._lookups: dict[str, asyncio.Task[None]] = {}

    def send(self, to: GossipEndpoint, data: bytes) -> None:
        known = self._names.get(to.host)
        if known is not None and self._loop.time() < known[1]:
            self._emit(known[0], to.port, data)
            return
        try:
            literal = ipaddress.ip_address(to.host)
        except ValueError:
            self._look_up(to, data)
        else:
            self._emit(literal, to.port, data)

    def close(self) -> None:
        for lookup in self._lookups.values():
            lookup.cancel()
        self._transport.close()

    def _emit(self, address: IpAddress, port: int, data: bytes) -> None:
        if self._is_v6 and address.version == 4:
            address = ipaddress.IPv6Address(
                f"::ffff:{address}"
            )  # how a dual-stack socket addresses an IPv4 host
        if (address.version == 6) != self._is_v6 or self._transport.is_closing():
            return
        try:
            self._transport.sendto(data, (str(address), port))
        except (
            OSError,
            ValueError,
        ) as problem:  # errors that the event loops raise here instead of calling `error_received`
            log.debug("datagram to %s: %s", address, problem)

    def _look_up(self, to: GossipEndpoint, data: bytes) -> None:
        """Sends the datagram when the address is known. Other datagrams to that name are dropped meanwhile."""
        if to.host in self._lookups:
            return
        lookup = self._loop.create_task(self._resolve_and_send(to, data))
        self._lookups[to.host] = lookup
        lookup.add_done_callback(lambda _: self._lookups.pop(to.host, None))

    async def _resolve_and_send(self, to: GossipEndpoint, data: bytes) -> None:
        try:
            found = await self._loop.getaddrinfo(to.host, to.port, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as problem:  # UnicodeError: the text cannot be a host name
            log.debug("gossip cannot resolve %s: %s", to.host, problem)
            return
        addresses = [ipaddress.ip_address(row[4][0]) for row in found]
        # Both kinds of sockets can reach an IPv4 address, so it is the second choice of an IPv6 socket.
        fitting = [each for each in addresses if self._is_v6 or each.version == 4]
        fitting.sort(key=lambda each: (each.version == 6) != self._is_v6)
        if not fitting:
            log.debug("gossip finds no address of %s that %s can send to", to.host, self.local)
            return
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        self._names[to.host] = fitting[0], self._loop.time() + NAME_LIFETIME_S
        self._emit(fitting[0], to.port, data)
