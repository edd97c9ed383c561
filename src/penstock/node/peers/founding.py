"""How empty nodes form one cluster: the decision of a node without a cluster, given the nodes that it has met.

Theory. Nodes are started with a list of seeds. Those in the list found the cluster together; all others join it. A
cluster is identified by its founders: its id is a hash of their ids and incarnations, so all founders compute the same
id without exchanging messages, in any order, and again after a crash.

1. A peer that is in a cluster always comes first: adopt its cluster when this node is among the founders, else join.
2. A node founds only when every seed has answered, is empty and was started with the same list, and when this node is
   one of them. So all founders, whenever they decide, decide on the same set: a set of all the seeds' nodes.
3. The decision is on disk before any other node learns of it (the caller of this module ensures that).

Why this ends in one cluster. Let two nodes decide to found, on sets F and G. Both lists are equal, or neither would
have decided (rule 2), so F and G hold the nodes of the same addresses. They differ only if a node was emptied (another
incarnation) in between, that is if a data folder is deleted during the seconds of founding. A crash keeps the
incarnation, so F = G. In the excepted case the two clusters refuse each other; every node is in one of them only, so at
most one has the majority of its founders that it needs to acknowledge anything, unless the emptied node had already
acknowledged something with the first one.

A list of one, or none at all, makes a cluster of one node, which others may join.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from penstock.config import Address
from penstock.node.peers.hello import PeerHello
from penstock.types import NodeId, Replica

_PERSON = b"penstock cluster"
_ID_BYTES = 16


class Wait(msgspec.Struct, frozen=True):
    """The node must wait; `reason` says why, for people."""

    reason: str


class Found(msgspec.Struct, frozen=True):
    """All seeds are here: found this cluster."""

    cluster_id: str
    founders: tuple[Replica, ...]


class Adopt(msgspec.Struct, frozen=True):
    """The other founders have founded the cluster already, and this node is one of the founders."""

    cluster_id: str
    founders: tuple[Replica, ...]


class Join(msgspec.Struct, frozen=True):
    """There is a cluster: ask it for admission. This node keeps the founders, to tell other nodes."""

    cluster_id: str
    founders: tuple[Replica, ...]


Decision = Wait | Found | Adopt | Join


def cluster_id_of(founders: Iterable[Replica]) -> str:
    """The same for the same founders on every node; in the form of Kafka's cluster ids (22 characters)."""
    hashed = blake2b(digest_size=_ID_BYTES, person=_PERSON)
    for node, incarnation in sorted(founders):
        hashed.update(node.to_bytes(8, "big") + incarnation.to_bytes(8, "big"))
    return urlsafe_b64encode(hashed.digest()).rstrip(b"=").decode()


class Founding:
    """A node without a cluster, and the facts that it has learned of others. Call `decide` after every change."""

    def __init__(self, me: PeerHello) -> None:
        assert me.cluster_id is None
        self._me = me
        self._hellos: dict[NodeId, PeerHello] = {}
        self._found_at: dict[Address, NodeId] = {}
        """The node that answered at each address. Ids are enough: two nodes of one id are never connected at once."""
        self._refused_at: dict[Address, str] = {}
        """Why there is no connection with the node that answered at an address."""

    def heard(self, hello: PeerHello, dialled: Address | None) -> None:
        """A node has told its facts, at the address that was dialled."""
        if hello.node != self._me.node:
            self._hellos[hello.node] = hello
        if dialled is not None:
            self._found_at[dialled] = hello.node
            self._refused_at.pop(dialled, None)

    def refused(self, address: Address, reason: str) -> None:
        """A node answered there, and one of the two nodes refused the other."""
        self._refused_at[address] = reason

    def lost(self, node: NodeId) -> None:
        """It is no longer connected: its facts may have changed."""
        self._hellos.pop(node, None)

    def decide(self) -> Decision:
        settled = [self._hellos[node] for node in sorted(self._hellos) if self._hellos[node].cluster_id]
        if settled:
            return self._follow(settled)
        if not self._me.seeds:
            return _found([self._me])
        return self._gather()

    def _follow(self, settled: list[PeerHello]) -> Decision:
        """Rule 1."""
        first = settled[0]
        for other in settled[1:]:
            if other.cluster_id != first.cluster_id:
                return Wait(
                    f"{first} is of cluster {first.cluster_id} and {other} of cluster {other.cluster_id}: list seeds "
                    "of one cluster only"
                )
        # A node of a later version may not know the founders; then another node's list counts.
        founders = next((hello.founders for hello in settled if hello.founders), ())
        assert first.cluster_id is not None
        if self._me.replica in founders:
            return Adopt(first.cluster_id, founders)
        return Join(first.cluster_id, founders)

    def _gather(self) -> Decision:
        """Rule 2."""
        members: dict[NodeId, tuple[PeerHello, Address]] = {}
        missing = [seed for seed in self._me.seeds if self._at(seed) is None]
        if missing:
            return Wait(self._why_missing(missing))
        for seed in self._me.seeds:
            hello = self._at(seed)
            assert hello is not None
            if hello.node in members:
                earlier = members[hello.node][1]
                return Wait(f"seeds {earlier} and {seed} are both node {hello.node}: list each node once")
            members[hello.node] = (hello, seed)
        for hello, seed in members.values():
            if frozenset(hello.seeds) != frozenset(self._me.seeds):
                return Wait(
                    f"seed {seed} (node {hello.node}) lists other seeds: {_shown(hello.seeds)}, this node lists "
                    f"{_shown(self._me.seeds)}; all seeds must be started with the same list"
                )
        if self._me.node not in members:
            return Wait(
                "waiting for the seeds to found a cluster, which this node (not one of them) will join"
            )
        return _found([hello for hello, _ in members.values()])

    def _why_missing(self, missing: list[Address]) -> str:
        """A seed that refuses is named first: the others may still start."""
        for seed in missing:
            if seed in self._refused_at:
                return f"seed {seed} answers, but {self._refused_at[seed]}"
        return f"waiting for seed {missing[0]}"

    def _at(self, seed: Address) -> PeerHello | None:
        """The connected node that is known to be at a seed's address."""
        node = self._found_at.get(seed)
        if node is None:
            return None
        return self._me if node == self._me.node else self._hellos.get(node)


def _found(members: list[PeerHello]) -> Found:
    founders = tuple(sorted(hello.replica for hello in members))
    return Found(cluster_id_of(founders), founders)


def _shown(seeds: tuple[Address, ...]) -> str:
    return "[" + ", ".join(sorted(str(seed) for seed in seeds)) + "]"
