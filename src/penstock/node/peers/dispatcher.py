"""Passes the events of one transport to many listeners: frames by their kind, connections to all listeners."""

import logging
from collections.abc import Callable

from penstock.config import Address
from penstock.node.peers.handshake import PeerRefused
from penstock.node.peers.hello import PeerHello
from penstock.node.peers.transport import FIRST_FREE_KIND, LAST_KIND
from penstock.types import NodeId

log = logging.getLogger("penstock.peers")

OnFrame = Callable[[NodeId, memoryview], None]
OnNode = Callable[[NodeId], None]
OnHello = Callable[[PeerHello, Address | None], None]
OnRefused = Callable[[Address, PeerRefused], None]


class FrameDispatcher:
    """The TransportEvents of a node. Register everything before the transport starts."""

    def __init__(self) -> None:
        self._by_kind: list[OnFrame | None] = [None] * (LAST_KIND + 1)
        self._unknown: list[int] = []
        """Kinds of a newer version, during a rolling update. Such frames are dropped, and each kind is logged once."""
        self._up: list[OnNode] = []
        self._down: list[OnNode] = []
        self._hello: list[OnHello] = []
        self._refused: list[OnRefused] = []

    def take(self, kind: int, handler: OnFrame) -> None:
        """All frames of this kind go to `handler`."""
        assert FIRST_FREE_KIND <= kind <= LAST_KIND
        assert self._by_kind[kind] is None, f"kind {kind} is taken"
        self._by_kind[kind] = handler

    def watch(
        self,
        *,
        up: OnNode | None = None,
        down: OnNode | None = None,
        hello: OnHello | None = None,
        refused: OnRefused | None = None,
    ) -> None:
        """Listeners are called in the order of their registration when a node connects, and in the reverse order when
        it disconnects."""
        if up is not None:
            self._up.append(up)
        if down is not None:
            self._down.insert(0, down)
        if hello is not None:
            self._hello.append(hello)
        if refused is not None:
            self._refused.append(refused)

    # --- TransportEvents

    def on_frame(self, sender: NodeId, kind: int, body: memoryview) -> None:
        handler = self._by_kind[kind]
        if handler is not None:
            handler(sender, body)
        elif kind not in self._unknown:
            self._unknown.append(kind)
            log.warning("node %d sends frames of kind %d, which this version does not know", sender, kind)

    def on_up(self, node: NodeId) -> None:
        for tell in self._up:
            tell(node)

    def on_down(self, node: NodeId) -> None:
        for tell in self._down:
            tell(node)

    def on_hello(self, hello: PeerHello, dialled: Address | None) -> None:
        for tell in self._hello:
            tell(hello, dialled)

    def on_refused(self, address: Address, refused: PeerRefused) -> None:
        for tell in self._refused:
            tell(address, refused)
