"""A registered node of the cluster."""

import msgspec

from penstock.cluster.records import Endpoint, NodeRegistered
from penstock.types import NodeId, Replica

Rack = tuple[str, int]
"""A failure domain: a rack's name, or the node itself if it has no rack."""
Machine = tuple[str, int]
"""Nodes that end together for certain: a machine's name, or the node itself if it names none."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One registered node.

    *Alive*: not fenced. *Usable*: may get replicas; that is alive and not being decommissioned.
    """

    node_id: int
    incarnation: int
    kafka: Endpoint
    cluster: Endpoint
    http: Endpoint | None = None
    rack: str | None = None
    version: str = ""
    listeners: dict[str, Endpoint] = {}
    """Of Kafka clients, by name."""
    https: bool = False
    machine: str | None = None
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
        """The identity of this node in a group that it joins now."""
        return Replica(NodeId(self.node_id), self.incarnation)

    def endpoint(self, listener: str) -> Endpoint:
        """The address for clients that came by a listener of this name. A node that has none is told with its first."""
        return self.listeners.get(listener, self.kafka)

    def as_record(self) -> NodeRegistered:
        return NodeRegistered(
            node_id=self.node_id,
            incarnation=self.incarnation,
            kafka=self.kafka,
            cluster=self.cluster,
            http=self.http,
            rack=self.rack,
            version=self.version,
            listeners=self.listeners,
            https=self.https,
            machine=self.machine,
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
        listeners=record.listeners,
        https=record.https,
        machine=record.machine,
        fenced=fenced,
        decommissioning=decommissioning,
    )


def rack_of(node_id: int, info: NodeInfo | None) -> Rack:
    """A node without a rack counts as its machine's, or its own: it is not known to share a failure domain."""
    name = None if info is None else info.rack or info.machine
    return (name, -1) if name else ("", node_id)


def machine_of(node_id: int, info: NodeInfo | None) -> Machine:
    return (info.machine, -1) if info is not None and info.machine else ("", node_id)
