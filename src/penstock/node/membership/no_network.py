"""The network of a node without a cluster."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.config import Address
    from penstock.node.peers import Body, PeerHello


class NoNetwork:
    """A transport without peers."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def send(self, to: NodeId, kind: int, body: "Body") -> bool:
        return False

    def connected(self) -> "Mapping[NodeId, PeerHello]":
        return {}

    def version_of(self, node: NodeId) -> int:
        return 0

    def introduce(self, me: "PeerHello") -> None: ...

    def set_peers(self, peers: "Mapping[NodeId, Address]") -> None: ...

    def dial_seeds(self, addresses: "Iterable[Address]") -> None: ...
