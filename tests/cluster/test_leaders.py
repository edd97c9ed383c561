"""Preferred leaders lead if they can; otherwise leadership is spread evenly."""

import pytest

from penstock.cluster import (
    ClusterState,
    NewTopic,
    NodeDecommissioning,
    NodeFenced,
    PlacementRules,
    check_unclean,
    decisions,
    elect_preferred,
    plan_leaders,
)
from penstock.cluster.leaders import NO_LEADER
from penstock.errors import ErrorCode
from penstock.types import GroupId
from tests.cluster.clusters import apply, assign, cluster_of, group, refused, registration, topic_id


@pytest.fixture
def state() -> ClusterState:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", [1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2])
    return state


def orders(*leaders: int) -> dict[GroupId, int]:
    return {group("orders", number): leader for number, leader in enumerate(leaders)}


def test_preferred_leaders_take_over(state: ClusterState) -> None:
    assert plan_leaders(state, orders(1, 2, 3, 1)) == []
    assert plan_leaders(state, orders(2, 2, 2, 1)) == [(group("orders", 0), 1), (group("orders", 2), 3)]


def test_a_group_without_a_leader_cannot_hand_over(state: ClusterState) -> None:
    assert plan_leaders(state, {}) == []
    assert plan_leaders(state, orders(NO_LEADER, 2, 3, 1)) == []


def test_partitions_of_a_fenced_preferred_leader_are_spread_over_the_others(state: ClusterState) -> None:
    apply(state, [NodeFenced(node_id=1)])
    assert plan_leaders(state, orders(2, 2, 3, 2)) == [(group("orders", 0), 3)]
    assert plan_leaders(state, orders(2, 2, 3, 3)) == []


def test_one_more_or_less_is_no_reason_to_hand_over() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", [1, 2, 3])
    apply(state, [NodeFenced(node_id=1)])
    assert plan_leaders(state, orders(3)) == []


def test_a_replica_that_lost_its_data_or_is_behind_is_not_asked_to_lead(state: ClusterState) -> None:
    apply(state, [registration(1, incarnation=7)])
    assert plan_leaders(state, orders(2, 2, 3, 3)) == []
    late = {group("orders", 2): [1, 2]}
    assert plan_leaders(state, orders(3, 2, 2, 3), late) == []


def test_a_leader_on_a_node_that_leaves_hands_over(state: ClusterState) -> None:
    apply(state, [NodeDecommissioning(node_id=1, on=True)])
    assert plan_leaders(state, orders(1, 2, 3, 1)) == [(group("orders", 0), 2), (group("orders", 3), 3)]


def test_a_leader_on_a_leaving_node_stays_if_no_other_replica_can_lead(state: ClusterState) -> None:
    apply(state, [NodeDecommissioning(node_id=1, on=True), NodeFenced(node_id=2), NodeFenced(node_id=3)])
    assert plan_leaders(state, orders(1, 1, 1, 1)) == []


def test_plans_of_leaders_need_no_registered_nodes() -> None:
    state = ClusterState(1)
    new_topic = NewTopic(name="orders", topic_id=topic_id("orders"), assignments={0: [1, 2]})
    apply(state, decisions.create_topic(state, new_topic, PlacementRules(nodes=(1, 2))))
    assert plan_leaders(state, {group("orders"): 2}) == [(group("orders"), 1)]


def test_a_plan_is_empty_once_leaders_have_carried_it_out(state: ClusterState) -> None:
    apply(state, [NodeFenced(node_id=3)])
    leaders = orders(2, 1, 1, 2)
    for moved, leader in plan_leaders(state, leaders):
        leaders[moved] = leader
    assert plan_leaders(state, leaders) == []


# --- ElectLeaders


def test_the_preferred_leader_is_elected_if_it_is_available(state: ClusterState) -> None:
    assert elect_preferred(state, "orders", 0, leader=2) == 1
    with refused(ErrorCode.ELECTION_NOT_NEEDED, "node 1"):
        elect_preferred(state, "orders", 0, leader=1)


def test_a_preferred_leader_that_cannot_lead_is_not_available(state: ClusterState) -> None:
    with refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "has not caught up"):
        elect_preferred(state, "orders", 0, leader=2, ready=[2, 3])
    with refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "no leader that could hand over"):
        elect_preferred(state, "orders", 0, leader=NO_LEADER)
    apply(state, [NodeFenced(node_id=1)])
    with refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "is not available"):
        elect_preferred(state, "orders", 0, leader=2)


def test_there_is_no_unclean_election(state: ClusterState) -> None:
    with refused(ErrorCode.ELECTION_NOT_NEEDED):
        check_unclean(state, "orders", 0, leader=2)
    with refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
        check_unclean(state, "orders", 0, leader=NO_LEADER)


@pytest.mark.parametrize(("topic", "partition"), [("nothing", 0), ("orders", 4), ("orders", -1)])
def test_an_election_in_an_unknown_partition_is_refused(
    state: ClusterState, topic: str, partition: int
) -> None:
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        elect_preferred(state, topic, partition, leader=1)
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        check_unclean(state, topic, partition, leader=1)
