"""The network seam of a node, and the real network behind it."""

import socket
from collections.abc import Callable
from typing import Protocol

from penstock.node.peers import PeerHello, PeerNetwork, Transport, TransportEvents


class Network(Transport, Protocol):
    """A transport that can be started and stopped."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


MakeNetwork = Callable[[PeerHello, TransportEvents], Network]


class BoundNetwork:
    """TCP, on a socket that listens already."""

    def __init__(self, network: PeerNetwork, listening: socket.socket) -> None:
        self._network = network
        self._listening = listening
        self.send = network.send
        self.connected = network.connected
        self.version_of = network.version_of
        self.introduce = network.introduce
        self.set_peers = network.set_peers
        self.dial_seeds = network.dial_seeds
        self.stop = network.stop

    async def start(self) -> None:
        await self._network.start(self._listening)
