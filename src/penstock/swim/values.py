"""The values of membership: metadata, states, and the effects that the core returns.

Two numbers are called incarnation elsewhere; here they have two names. `incarnation` is SWIM's: only the member itself
raises it, each time that it refutes a claim. `folder_incarnation` is created with the data folder and distinguishes a
wiped node from its earlier self.
"""

from enum import Enum, IntEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from penstock.errors import ConfigError
from penstock.types import NodeId, Replica

MAX_META_BYTES = 512
"""Encoded. A member's Alive must fit into one packet with an ack."""
MAX_INCARNATION = 2**48
"""Far above what one refutation per millisecond would use in a thousand years, far below 64 bits: a wrong number from a
peer can neither overflow nor be the last one."""

Port = Annotated[int, Meta(ge=0, le=65_535)]
Host = Annotated[str, Meta(min_length=1, max_length=253)]
Incarnation = Annotated[int, Meta(ge=0, lt=MAX_INCARNATION)]


class GossipEndpoint(NamedTuple):
    """A host and a port. Equal to the pair that sockets use."""

    host: Host
    port: Port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MemberMeta(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The metadata of a member, made by itself."""

    node: Annotated[int, Meta(ge=0, lt=2**31)]
    folder_incarnation: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    cluster_id: Annotated[str, Meta(max_length=64)] = ""
    """Empty while the node belongs to no cluster yet: then it exchanges gossip with any cluster."""
    cluster: GossipEndpoint
    """The inter-node port: gossip uses the same number over UDP."""
    kafka: GossipEndpoint | None = None
    http: GossipEndpoint | None = None
    rack: Annotated[str, Meta(max_length=128)] = ""
    version: Annotated[str, Meta(max_length=64)] = ""
    payload_version: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """The node raises it when it has new information to fetch."""

    @property
    def replica(self) -> Replica:
        return Replica(NodeId(self.node), self.folder_incarnation)

    def validate(self) -> "MemberMeta":
        """Itself, if it is valid; else ConfigError."""
        encoded = msgspec.msgpack.encode(self)
        try:
            msgspec.msgpack.decode(encoded, type=MemberMeta)
        except msgspec.ValidationError as problem:
            raise ConfigError("gossip metadata", self, str(problem)) from None
        if len(encoded) > MAX_META_BYTES:
            expected = f"at most {MAX_META_BYTES} bytes; shorten host names, rack or version"
            raise ConfigError("gossip metadata", f"{len(encoded)} bytes", expected)
        return self


def same_cluster(one: str, other: str) -> bool:
    """Whether two nodes may exchange gossip: a node without a cluster may with any."""
    return not one or not other or one == other


class State(IntEnum):
    """The state of a member. The order is the precedence of claims at equal incarnations."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3
    """It announced so itself, and is no longer searched for."""

    @property
    def is_present(self) -> bool:
        return self <= State.SUSPECT


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    meta: MemberMeta
    incarnation: int
    state: State

    @property
    def replica(self) -> Replica:
        return self.meta.replica

    @property
    def node(self) -> NodeId:
        return NodeId(self.meta.node)


class Session(NamedTuple):
    """One run of a node's process, as gossip knows it: each boot has a greater epoch than the one before."""

    replica: Replica
    epoch: int


class PacketRefusal(Enum):
    """Why a packet or claim of a peer was dropped. The values are for log lines and metrics."""

    MALFORMED = "not a gossip packet"
    VERSION = "another version of the gossip protocol"
    KEY = "a wrong or missing cluster key, or a key where none is set"
    REPLAYED = "a packet that was seen before, or is too old to tell"
    RIVAL = "another process of a node that is connected"
    MISDIRECTED = "meant for another node"
    FOREIGN_CLUSTER = "a node of another cluster"
    TOO_MANY_MEMBERS = "more members than gossip.max_members"


# The effects, which the caller carries out in their order.


class SendPacket(msgspec.Struct, frozen=True):
    """A datagram; it may get lost."""

    to: GossipEndpoint
    data: bytes


class SendReliable(msgspec.Struct, frozen=True):
    """Over a connection between nodes: a whole table, or a ping whose datagram was not answered. An endpoint is a seed
    whose node is not known; it is tried over UDP at the same time."""

    to: NodeId | GossipEndpoint
    data: bytes


class MemberChanged(msgspec.Struct, frozen=True):
    """A member appeared, changed its metadata, or is in another state."""

    member: Member
    state: State


class SaveIncarnation(msgspec.Struct, frozen=True):
    """Must be on the disk before the effects that follow: the next start begins above it."""

    incarnation: int


class PacketRefused(msgspec.Struct, frozen=True):
    """A packet or claim was dropped; `suppressed` is how many more since the last report of this reason."""

    reason: PacketRefusal
    source: str
    detail: str
    suppressed: int


class Conflict(msgspec.Struct, frozen=True):
    """Two processes use one node id at two addresses: a copied folder or setting."""

    first: MemberMeta
    second: MemberMeta


Effect = SendPacket | SendReliable | MemberChanged | SaveIncarnation | PacketRefused | Conflict
