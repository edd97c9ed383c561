"""The interface between the node and the network. `PeerNetwork` is the real one, over TCP; the simulator has its own.

A transport's promises, and their limits:

1. Frames between two nodes that are *up* arrive whole, unchanged and in the order they were sent, or not at all. Only
   kinds that the transport was told are urgent may overtake others.
2. Between `on_up` and `on_down` of a node there may be a gap only where `send` returned False. Across a down and an up
   frames may be missing, never repeated. Senders must be ready to send again.
3. `send` never waits. It drops the frame and returns False when there is no connection or its queue is full.
4. All callbacks come on the event loop's thread, one after another, and `on_down` follows each `on_up` before the next.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.config import Address
from penstock.node.peers.handshake import PeerRefused
from penstock.node.peers.hello import PeerHello
from penstock.types import NodeId

Buffer = bytes | bytearray | memoryview
Body = Buffer | list[Buffer]
"""Given to `send`, it must not change any more: it is not copied until the socket takes it."""

FIRST_FREE_KIND = 16
"""Kinds below are the transport's own."""
LAST_KIND = 255


class TransportEvents(Protocol):
    """The events that a transport reports."""

    def on_frame(self, sender: NodeId, kind: int, body: memoryview) -> None:
        """A frame has come. The body is the receiver's to keep. ProtocolViolation closes the sender's connection."""
        ...

    def on_up(self, node: NodeId) -> None: ...

    def on_down(self, node: NodeId) -> None: ...

    def on_hello(self, hello: PeerHello, dialled: Address | None) -> None:
        """A node has told its facts: always before its `on_up`, and again whenever they change. `dialled` is the
        address under which it was found, when this node called. Also called without an `on_up`, when a second address
        turns out to be a node that is connected already, or this node itself."""
        ...

    def on_refused(self, address: Address, refused: PeerRefused) -> None:
        """An address that this node dialled answered, and either side said no. Not for what is normal."""
        ...


class Transport(Protocol):
    """One per node."""

    def send(self, to: NodeId, kind: int, body: Body) -> bool: ...

    def connected(self) -> Mapping[NodeId, PeerHello]: ...

    def version_of(self, node: NodeId) -> int:
        """The version of the protocol that was negotiated with a connected node; 0 if it is not connected."""
        ...

    def introduce(self, me: PeerHello) -> None:
        """Sets this node's facts (it founded or joined a cluster, say) and sends them to all peers."""
        ...

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """The nodes to be connected with, and their addresses. An address that changed is dialled at once."""
        ...

    def dial_seeds(self, addresses: Iterable[Address]) -> None:
        """Addresses to be dialled until it is known which node is there, and whenever that node is not connected."""
        ...
