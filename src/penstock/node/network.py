"""The node's side of the network seam: who makes it, and the one for a node that is alone."""

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from penstock.config import Address
from penstock.node.peers import Body, PeerHello, PeerNetwork, Transport, TransportEvents
from penstock.types import NodeId


class Network(Transport, Protocol):
    """A transport that can be started and stopped."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


MakeNetwork = Callable[[PeerHello, TransportEvents], Network]


class NoNetwork:
    """Nobody is there, and nobody ever will be."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def send(self, to: NodeId, kind: int, body: Body) -> bool:
        return False

    def connected(self) -> Mapping[NodeId, PeerHello]:
        return {}

    def introduce(self, me: PeerHello) -> None: ...

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None: ...

    def dial_seeds(self, addresses: Iterable[Address]) -> None: ...


class BoundNetwork:
    """TCP, on a socket that listens already."""

    def __init__(self, network: PeerNetwork, listening: socket.socket) -> None:
        self._network = network
        self._listening = listening
        self.send = network.send
        self.connected = network.connected
        self.introduce = network.introduce
        self.set_peers = network.set_peers
        self.dial_seeds = network.dial_seeds
        self.stop = network.stop

    async def start(self) -> None:
        await self._network.start(self._listening)
