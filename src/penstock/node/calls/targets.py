"""The nodes that a request may be addressed to, by the role that they have at this moment.

A role moves from node to node. `Directory` says which node has it now, as far as this node knows: from the metadata
that it has applied and the leaders that have announced themselves. It may be out of date; the node that is asked then
refuses, and the request goes to the next one (`retry`).
"""

from typing import NamedTuple

from penstock.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterState, offsets_partition
from penstock.errors import ErrorCode, KafkaError, NotExecuted
from penstock.node.metadata.cluster_view import METADATA_GROUP, ClusterView
from penstock.node.replication.leaders import NO_LEADER, LeaderTable
from penstock.types import GroupId, NodeId


class LeaderOf(NamedTuple):
    """The leader of a partition."""

    group: GroupId


class CoordinatorOf(NamedTuple):
    """The node that coordinates a group, a share group or a subscription of this name."""

    group_id: str


class TransactionCoordinatorOf(NamedTuple):
    """The node that coordinates the transactions of this id."""

    transactional_id: str


class ControllerRole(NamedTuple):
    """The leader of the metadata group."""


CONTROLLER = ControllerRole()


class AtNode(NamedTuple):
    """One given node. It is asked once: no other node can take its place."""

    node: NodeId


Target = LeaderOf | CoordinatorOf | TransactionCoordinatorOf | ControllerRole | AtNode


def absent_code(target: Target) -> ErrorCode:
    """The error code which tells a Kafka client that this target cannot be reached now."""
    match target:
        case LeaderOf():
            return ErrorCode.LEADER_NOT_AVAILABLE
        case CoordinatorOf() | TransactionCoordinatorOf():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ControllerRole():
            return ErrorCode.NOT_CONTROLLER
        case AtNode():
            return ErrorCode.BROKER_NOT_AVAILABLE


class Directory:
    """Finds the node that a target stands for."""

    def __init__(
        self, *, node_id: NodeId, state: ClusterState, view: ClusterView, leaders: LeaderTable, is_alone: bool
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._leaders = leaders
        self._is_alone = is_alone

    def find(self, target: Target) -> NodeId:
        """NotExecuted while no node is known to have the role. KafkaError if the topic was deleted: no node will have
        the role any more.

        A node that is alone has every role, whether or not the partition in question is online: its handler knows why
        it cannot serve."""
        if isinstance(target, AtNode):
            return target.node
        if isinstance(target, LeaderOf):
            self._check_exists(target.group)
        if self._is_alone and not self._lacks_topic(target):
            return self._node_id
        leader = self._leader(target)
        if leader == NO_LEADER:
            raise NotExecuted(absent_code(target), f"no node is known to be {self.describe(target)}")
        return NodeId(leader)

    def _lacks_topic(self, target: Target) -> bool:
        """Whether nothing has been coordinated yet, so that the topic of the coordinators does not exist."""
        match target:
            case CoordinatorOf():
                return OFFSETS_TOPIC not in self._state.topics
            case TransactionCoordinatorOf():
                return TRANSACTIONS_TOPIC not in self._state.topics
            case _:
                return False

    def describe(self, target: Target) -> str:
        match target:
            case LeaderOf(group):
                topic = self._state.topic_by_id(group.topic_id)
                return (
                    f"the leader of {topic.name if topic is not None else group.topic_id}-{group.partition}"
                )
            case CoordinatorOf(group_id):
                return f"the coordinator of {group_id!r}"
            case TransactionCoordinatorOf(transactional_id):
                return f"the coordinator of the transactions of {transactional_id!r}"
            case ControllerRole():
                return "the controller"
            case AtNode(node):
                return f"node {node}"

    def _leader(self, target: LeaderOf | CoordinatorOf | TransactionCoordinatorOf | ControllerRole) -> int:
        match target:
            case LeaderOf(group):
                topic = self._state.topic_by_id(group.topic_id)
                if topic is None or not 0 <= group.partition < topic.partitions:
                    return NO_LEADER
                return self._view.leader(group)
            case CoordinatorOf(group_id):
                return self._coordinator(OFFSETS_TOPIC, group_id)
            case TransactionCoordinatorOf(transactional_id):
                return self._coordinator(TRANSACTIONS_TOPIC, transactional_id)
            case ControllerRole():
                return self._leaders.get(METADATA_GROUP).leader

    def _coordinator(self, topic_name: str, key: str) -> int:
        topic = self._state.topics.get(topic_name)
        if topic is None:
            return NO_LEADER
        return self._view.partition(topic, offsets_partition(key, topic.partitions)).leader

    def _check_exists(self, group: GroupId) -> None:
        """A topic id comes from metadata that this node has applied. If it is unknown now, the topic was deleted."""
        if self._state.topic_by_id(group.topic_id) is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"the topic with the id {group.topic_id} was deleted"
            )
