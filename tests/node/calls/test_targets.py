"""Targets: each role is found at the node that has it now."""

from uuid import UUID, uuid4

import pytest

from penstock.cluster import OFFSETS_TOPIC, ClusterState
from penstock.cluster.records import Endpoint, NodeRegistered, TopicCreated, TopicDeleted
from penstock.config import Address
from penstock.errors import ErrorCode, KafkaError, NotExecuted
from penstock.node.calls import CONTROLLER, AtNode, CoordinatorOf, Directory, LeaderOf, Target
from penstock.node.metadata.cluster_view import METADATA_GROUP, ClusterView
from penstock.node.replication.leaders import Leadership, LeaderTable
from penstock.types import GroupId, NodeId

ME = NodeId(1)


class Cluster:
    """Three nodes, a topic with one partition, and the offsets topic with one partition, as node 1 knows them."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.state = ClusterState(ME, {})
        self.leaders = LeaderTable()
        for node in (1, 2, 3):
            address = Endpoint("127.0.0.1", 9000 + node)
            self.state.apply(NodeRegistered(node_id=node, incarnation=node, kafka=address, cluster=address))
        self.topic_id = self._create("orders")
        self.offsets_id = self._create(OFFSETS_TOPIC)
        view = ClusterView(
            node_id=ME,
            listeners={"default": Address("h", 1)},
            rack=None,
            state=self.state,
            leaders=self.leaders,
        )
        self.directory = Directory(
            node_id=ME, state=self.state, view=view, leaders=self.leaders, is_alone=is_alone
        )

    def _create(self, name: str) -> UUID:
        topic_id = uuid4()
        self.state.apply(TopicCreated(name=name, topic_id=topic_id, assignments=[[1, 2, 3]], configs={}))
        return topic_id

    def targets(self) -> list[Target]:
        return [LeaderOf(GroupId(self.topic_id, 0)), CoordinatorOf("workers"), CONTROLLER]

    def elect(self, node: int) -> None:
        for group in (GroupId(self.topic_id, 0), GroupId(self.offsets_id, 0), METADATA_GROUP):
            self.leaders.learn(group, Leadership(node, 5, (node,)))


def test_a_role_is_found_at_the_node_that_leads_its_partition() -> None:
    cluster = Cluster()
    cluster.elect(2)
    assert [cluster.directory.find(target) for target in cluster.targets()] == [2, 2, 2]
    assert cluster.directory.find(AtNode(NodeId(3))) == 3


def test_a_role_without_a_node_raises_the_error_code_that_clients_expect() -> None:
    cluster = Cluster()
    told = []
    for target in cluster.targets():
        with pytest.raises(NotExecuted) as caught:
            cluster.directory.find(target)
        told.append((caught.value.code, caught.value.message))
    assert told == [
        (ErrorCode.LEADER_NOT_AVAILABLE, "no node is known to be the leader of orders-0"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "no node is known to be the coordinator of 'workers'"),
        (ErrorCode.NOT_CONTROLLER, "no node is known to be the controller"),
    ]


def test_a_partition_that_this_node_does_not_know_yet_is_waited_for() -> None:
    cluster = Cluster()
    cluster.elect(2)
    with pytest.raises(NotExecuted):
        cluster.directory.find(LeaderOf(GroupId(cluster.topic_id, 1)))


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_deleted_topic_is_not_waited_for(is_alone: bool) -> None:
    cluster = Cluster(is_alone=is_alone)
    cluster.elect(2)
    cluster.state.apply(TopicDeleted(name="orders", topic_id=cluster.topic_id))
    with pytest.raises(KafkaError, match="was deleted") as caught:
        cluster.directory.find(LeaderOf(GroupId(cluster.topic_id, 0)))
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert not isinstance(caught.value, NotExecuted)


def test_a_lone_node_has_every_role() -> None:
    cluster = Cluster(is_alone=True)
    assert {cluster.directory.find(target) for target in cluster.targets()} == {ME}
