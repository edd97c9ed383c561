"""The cluster as this node shows it to clients: its nodes, the leaders of partitions, the coordinators of groups.

It is built from the metadata that this node has applied and the leaders that it has heard of, and may be out of date. A
client that acts on old information reaches a node that refuses, and asks again.
"""

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple
from uuid import UUID

from penstock.cluster import OFFSETS_TOPIC, ClusterState, NodeInfo, Topic, offsets_partition
from penstock.config import DEFAULT_LISTENER, Address
from penstock.errors import ErrorCode, KafkaError
from penstock.node.replication.leaders import NO_LEADER, LeaderTable
from penstock.types import GroupId, NodeId

METADATA_GROUP = GroupId(UUID(int=1), 0)
"""Kafka's metadata topic has the same id."""


class BrokerEndpoint(NamedTuple):
    """A node as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionFacts(NamedTuple):
    """A partition as clients see it. `leader` is -1 while no leader is known."""

    leader: int
    term: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


class ClusterView:
    """This node's answers to questions about the cluster."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        listeners: Mapping[str, Address],
        rack: str | None,
        state: ClusterState,
        leaders: LeaderTable,
        connected: Callable[[], Container[NodeId]] | None = None,
    ) -> None:
        """`listeners` are the advertised addresses of this node by the listeners' names, the first one first.
        `connected` returns the nodes that this one is connected with; None for a node without a cluster."""
        self._node_id = node_id
        self._listeners = listeners
        self._rack = rack
        self._state = state
        self._leaders = leaders
        self._connected = connected

    def brokers(self, listener: str = DEFAULT_LISTENER) -> list[BrokerEndpoint]:
        """Nodes that clients may connect to, with their addresses for clients of that listener. This node is always
        among them: the client has reached it."""
        found = {node.node_id: _broker(node, listener) for node in self._state.nodes.values() if node.alive}
        found[self._node_id] = self._me(listener)
        return [found[node_id] for node_id in sorted(found)]

    def broker(self, node_id: int, listener: str = DEFAULT_LISTENER) -> BrokerEndpoint | None:
        if node_id == self._node_id:
            return self._me(listener)
        node = self._state.nodes.get(node_id)
        return _broker(node, listener) if node is not None else None

    def _me(self, listener: str) -> BrokerEndpoint:
        address = self._listeners.get(listener) or next(iter(self._listeners.values()))
        return BrokerEndpoint(self._node_id, address.host, address.port, self._rack)

    @property
    def controller_id(self) -> int:
        return self._leaders.get(METADATA_GROUP).leader

    @property
    def controller_for_clients(self) -> int:
        """The node that clients should send changes to. While the controller cannot be reached, which lasts until the
        next one is elected, that is this node: it forwards such requests as soon as there is a controller again. A
        client that was sent to a dead node would wait for that node to answer."""
        known = self.controller_id
        return known if known == NO_LEADER or self._is_reached(known) else self._node_id

    def _is_reached(self, node_id: int) -> bool:
        """Whether this node is connected with that one. A connection breaks at once when its process is killed; the
        election of other leaders takes seconds more."""
        return node_id == self._node_id or self._connected is None or NodeId(node_id) in self._connected()

    def partition(self, topic: Topic, index: int) -> PartitionFacts:
        known = self._leaders.get(GroupId(topic.topic_id, index))
        replicas = topic.assignments[index].shown
        there = self._there()
        leader = known.leader if known.leader in there else NO_LEADER
        in_sync = tuple(node for node in known.in_sync if node in replicas)
        offline = tuple(node for node in replicas if node not in there)
        if leader == NO_LEADER and len(there) == 1:
            offline = replicas
        return PartitionFacts(leader, known.term, replicas, in_sync if leader != NO_LEADER else (), offline)

    def leader(self, group: GroupId) -> int:
        """The leader alone: cheaper than `partition`."""
        leader = self._leaders.get(group).leader
        info = self._state.nodes.get(leader)
        is_there = info.alive if info is not None else not self._state.nodes and leader == self._node_id
        return leader if is_there else NO_LEADER

    def coordinator(
        self, key: str, listener: str = DEFAULT_LISTENER, topic_name: str = OFFSETS_TOPIC
    ) -> BrokerEndpoint:
        """The node that coordinates a group, or by another topic a transactional id. KafkaError while that is not
        known, or while it cannot be reached from here: it was probably killed. A client that was sent there would try
        to connect with it until there is another coordinator; with this error it asks again, this node or another."""
        topic = self._state.topics.get(topic_name)
        if topic is not None:
            index = offsets_partition(key, topic.partitions)
            leader = self.broker(self.partition(topic, index).leader, listener)
            if leader is not None and self._is_reached(leader.node_id):
                return leader
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of {key!r} is not known yet")

    def _there(self) -> Mapping[int, object]:
        nodes = {node.node_id: node for node in self._state.nodes.values() if node.alive}
        return nodes or {self._node_id: self}


def _broker(node: NodeInfo, listener: str) -> BrokerEndpoint:
    endpoint = node.endpoint(listener)
    return BrokerEndpoint(node.node_id, endpoint.host, endpoint.port, node.rack)
