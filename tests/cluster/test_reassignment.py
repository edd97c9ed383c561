"""Reassignments with Kafka's tools get Kafka's responses."""

import pytest

from penstock.cluster import (
    ClusterState,
    NewTopic,
    NodeDecommissioning,
    NodeFenced,
    decisions,
    next_moves,
    start_moves,
)
from penstock.cluster.placement import PlacementRules
from penstock.cluster.reassignment import Reassignment, list_reassignments, reassign
from penstock.errors import ErrorCode
from tests.cluster.clusters import (
    apply,
    assign,
    assignment,
    cluster_of,
    finish,
    group,
    moving,
    refused,
    registration,
    topic_id,
)


@pytest.fixture
def state() -> ClusterState:
    state = cluster_of(1, 2, 3, 4, 5)
    assign(state, "orders", [1, 2, 3], [2, 3, 4])
    return state


def test_a_reassignment_is_listed_until_it_is_done(state: ClusterState) -> None:
    assert list_reassignments(state) == []
    apply(state, reassign(state, "orders", 0, [5, 4, 3]))
    row = Reassignment(topic="orders", partition=0, replicas=(5, 4, 3, 1, 2), adding=(5, 4), removing=(1, 2))
    assert list_reassignments(state) == [row]
    assert list_reassignments(state, {"orders": [0, 7], "nothing": [0]}) == [row]
    assert list_reassignments(state, {"orders": [1]}) == []
    finish(state, group("orders"))
    assert list_reassignments(state) == []
    assert assignment(state, "orders").replicas == (5, 4, 3)


def test_cancelling_needs_an_ongoing_reassignment(state: ClusterState) -> None:
    with refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "orders-0 is not being moved"):
        reassign(state, "orders", 0, None)
    apply(state, reassign(state, "orders", 0, [1, 2, 5]))
    apply(state, reassign(state, "orders", 0, None))
    assert list_reassignments(state) == []
    with refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
        reassign(state, "orders", 0, None)


def test_a_reassignment_replaces_the_one_before(state: ClusterState) -> None:
    apply(state, reassign(state, "orders", 0, [1, 2, 5]))
    apply(state, reassign(state, "orders", 0, [1, 2, 4]))
    assert assignment(state, "orders").adding == (4,)
    apply(state, reassign(state, "orders", 0, [1, 2, 3]))
    assert list_reassignments(state) == []
    assert assignment(state, "orders").target == (1, 2, 3)


def test_reassigning_a_partition_to_its_replicas_succeeds_and_does_nothing(state: ClusterState) -> None:
    assert reassign(state, "orders", 0, [1, 2, 3]) == []


def test_the_replication_factor_can_change_if_the_request_allows_it(state: ClusterState) -> None:
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR, "orders-0 has 3 replicas"):
        reassign(state, "orders", 0, [1, 2], may_change_factor=False)
    apply(state, reassign(state, "orders", 0, [1, 2]))
    finish(state, group("orders"))
    apply(state, reassign(state, "orders", 0, [1, 2, 3, 4]))
    finish(state, group("orders"))
    assert assignment(state, "orders").replicas == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("replicas", "part"),
    [([], "no replicas"), ([1, 1], "twice"), ([1, 9], "names nodes [9]"), ([-1], "names nodes [-1]")],
)
def test_invalid_replicas_are_refused(state: ClusterState, replicas: list[int], part: str) -> None:
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, part):
        reassign(state, "orders", 0, replicas)


def test_fenced_and_leaving_nodes_accept_no_new_replicas(state: ClusterState) -> None:
    apply(state, [NodeFenced(node_id=4), NodeDecommissioning(node_id=5, on=True)])
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "cannot go to node 4, which is not available"):
        reassign(state, "orders", 0, [1, 2, 4])
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "cannot go to node 5, which is being decommissioned"):
        reassign(state, "orders", 0, [1, 2, 5])
    assert reassign(state, "orders", 1, [4, 3, 2])


@pytest.mark.parametrize(("topic", "partition"), [("nothing", 0), ("orders", 2), ("orders", -1)])
def test_an_unknown_partition_is_refused(state: ClusterState, topic: str, partition: int) -> None:
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        reassign(state, topic, partition, [1])


def test_the_controller_does_not_change_an_operators_reassignment(state: ClusterState) -> None:
    apply(state, reassign(state, "orders", 0, [1, 2, 5]))
    assert [move.group for move in next_moves(state) if move.group == group("orders")] == []
    assert moving(state) == [group("orders")]


def test_a_replica_recreated_on_its_own_node_is_no_reassignment(state: ClusterState) -> None:
    apply(state, [registration(1, incarnation=7)])
    apply(state, start_moves(state, next_moves(state)))
    assert moving(state) == [group("orders")]
    assert list_reassignments(state) == []
    with refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
        reassign(state, "orders", 0, None)


def test_on_a_single_unregistered_node_only_that_node_is_accepted() -> None:
    state = ClusterState(1)
    new_topic = NewTopic(name="orders", topic_id=topic_id("orders"))
    apply(state, decisions.create_topic(state, new_topic, PlacementRules(nodes=(1,))))
    assert reassign(state, "orders", 0, [1], nodes=(1,)) == []
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the cluster has [1]"):
        reassign(state, "orders", 0, [2], nodes=(1,))
