"""A node as the cluster knows it."""

import msgspec

from penstock.cluster.records import Endpoint, NodeRegistered
from penstock.types import NodeId, Replica

Rack = tuple[str, int]
"""What fails together: a rack's name, or for a node that names none the node itself."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One registered node.

    *Alive* is one that is not fenced; *usable*, one that may get replicas: alive, and not about to leave.
    """

    node_id: int
    incarnation: int
    kafka: Endpoint
    cluster: Endpoint
    http: Endpoint | None = None
    rack: str | None = None
    version: str = ""
    fenced: bool = False
    decommissioning: bool = False

    @property
    def alive(self) -> bool:
        return not self.fenced

    @property
    def usable(self) -> bool:
        return not self.fenced and not self.decommissioning

    @property
    def replica(self) -> Replica:
        """This node as a member of a group that it joins now."""
        return Replica(NodeId(self.node_id), self.incarnation)

    def as_record(self) -> NodeRegistered:
        return NodeRegistered(
            node_id=self.node_id,
            incarnation=self.incarnation,
            kafka=self.kafka,
            cluster=self.cluster,
            http=self.http,
            rack=self.rack,
            version=self.version,
        )


def node_from(record: NodeRegistered, *, fenced: bool = False, decommissioning: bool = False) -> NodeInfo:
    return NodeInfo(
        node_id=record.node_id,
        incarnation=record.incarnation,
        kafka=record.kafka,
        cluster=record.cluster,
        http=record.http,
        rack=record.rack,
        version=record.version,
        fenced=fenced,
        decommissioning=decommissioning,
    )


def rack_of(node_id: int, info: NodeInfo | None) -> Rack:
    """A node without a rack shares nothing with anybody, as far as is known: it is a rack of its own."""
    return ("", node_id) if info is None or not info.rack else (info.rack, -1)
