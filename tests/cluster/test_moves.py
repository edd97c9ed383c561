"""A move has a start, a report and an end, and no data is discarded before the group's report."""

import pytest

from penstock.cluster import (
    ClusterState,
    MoveLimits,
    NodeFenced,
    PartitionMoveCancelled,
    PartitionMoved,
    PartitionMoveStarted,
    TopicDeleted,
    next_moves,
    report_moved,
    still_possible,
)
from penstock.cluster.reassignment import reassign
from tests.cluster.clusters import (
    apply,
    assign,
    assignment,
    cluster_of,
    create,
    group,
    registration,
    replica,
    topic_id,
)

ORDERS = group("orders")


@pytest.fixture
def state() -> ClusterState:
    """orders-0 on nodes 1, 2 and 3; node 4 is empty."""
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", [1, 2, 3])
    return state


def start(state: ClusterState, *replicas: int) -> None:
    apply(state, reassign(state, "orders", 0, replicas))


def report(state: ClusterState, *nodes: int, index: int) -> set[str]:
    return apply(state, report_moved(state, ORDERS, [replica(node) for node in nodes], index))


def test_a_move_from_its_start_to_the_leader_s_report(state: ClusterState) -> None:
    start(state, 4, 1, 2)
    moving = assignment(state, "orders")
    assert (moving.replicas, moving.target) == ((1, 2, 3), (4, 1, 2))
    assert (moving.adding, moving.removing, moving.shown) == ((4,), (3,), (4, 1, 2, 3))
    assert moving.target_members == (replica(4), replica(1), replica(2))
    assert not state.may_discard(ORDERS, replica(3))

    assert report(state, 1, 2, 4, index=7) == {"orders"}
    moved = assignment(state, "orders")
    assert (moved.replicas, moved.target, moved.adding, moved.removing) == ((4, 1, 2), None, (), ())
    assert state.may_discard(ORDERS, replica(3))
    assert not state.may_discard(ORDERS, replica(4))


def test_a_group_keeps_its_founders_until_it_has_moved(state: ClusterState) -> None:
    founders = (replica(1), replica(2), replica(3))
    start(state, 1, 2, 4)
    assert assignment(state, "orders").founders == founders
    report(state, 1, 2, 4, index=7)
    assert assignment(state, "orders").founders == ()


def test_another_order_of_the_same_replicas_needs_no_leader_and_keeps_the_founders(
    state: ClusterState,
) -> None:
    start(state, 3, 1, 2)
    turned = assignment(state, "orders")
    assert (turned.replicas, turned.target, turned.leader) == ((3, 1, 2), None, 3)
    assert turned.founders == (replica(3), replica(1), replica(2))


def test_a_cancelled_move_ends_when_the_leader_has_reverted_it(state: ClusterState) -> None:
    start(state, 1, 2, 4)
    apply(state, reassign(state, "orders", 0, None))
    back = assignment(state, "orders")
    assert (back.target, back.adding, back.removing) == ((1, 2, 3), (), ())

    # The leader had made the change before the cancellation: its group has node 4 instead of node 3.
    report(state, 1, 2, 4, index=7)
    assert assignment(state, "orders").target == (1, 2, 3)
    assert not state.may_discard(ORDERS, replica(3))
    assert not state.may_discard(ORDERS, replica(4))

    report(state, 1, 2, 3, index=9)
    assert assignment(state, "orders").target is None
    assert state.may_discard(ORDERS, replica(4))


def test_a_move_that_was_cancelled_in_time_leaves_the_group_as_it_was(state: ClusterState) -> None:
    start(state, 1, 2, 4)
    apply(state, reassign(state, "orders", 0, None))
    report(state, 1, 2, 3, index=-1)
    rest = assignment(state, "orders")
    assert (rest.replicas, rest.target) == ((1, 2, 3), None)
    assert rest.founders == (replica(1), replica(2), replica(3))


def test_a_late_report_is_dropped(state: ClusterState) -> None:
    start(state, 1, 2, 4)
    report(state, 1, 2, 4, index=7)
    start(state, 1, 2, 3)
    report(state, 1, 2, 3, index=9)
    assert report_moved(state, ORDERS, [replica(1), replica(2), replica(4)], 7) == []


def test_a_late_report_that_was_recorded_all_the_same_changes_nothing(state: ClusterState) -> None:
    report(state, 1, 2, 4, index=9)
    late = PartitionMoved(
        topic_id=topic_id("orders"), partition=0, replicas=[1, 2, 3], incarnations=[101, 102, 103], index=7
    )
    assert apply(state, [late]) == set()
    assert assignment(state, "orders").replicas == (1, 2, 4)


def test_a_report_of_known_facts_or_of_an_unknown_group_changes_nothing(state: ClusterState) -> None:
    assert report_moved(state, ORDERS, [replica(2), replica(1), replica(3)], 5) == []
    assert report_moved(state, group("nothing"), [replica(1)], 5) == []
    assert report_moved(state, group("orders", 9), [replica(1)], 5) == []


def test_an_unrequested_configuration_is_accepted_as_the_group_reports_it(state: ClusterState) -> None:
    report(state, 4, 3, 1, index=5)
    assert assignment(state, "orders").replicas == (1, 3, 4)


def test_data_of_an_unknown_topic_is_not_discarded(state: ClusterState) -> None:
    start(state, 1, 2, 4)
    report(state, 1, 2, 4, index=7)
    apply(state, [TopicDeleted(name="orders", topic_id=topic_id("orders"))])
    assert not state.may_discard(ORDERS, replica(3))
    assert not state.may_discard(group("nothing"), replica(1))


def test_a_founder_s_data_is_kept_as_long_as_the_group_has_not_moved(state: ClusterState) -> None:
    apply(state, [registration(1, incarnation=7)])
    assert not state.may_discard(ORDERS, replica(1, 7))


def test_records_about_unknown_partitions_change_nothing(state: ClusterState) -> None:
    before = state.snapshot()
    unknown = topic_id("nothing")
    records = [
        PartitionMoveStarted(topic_id=unknown, partition=0, replicas=[1]),
        PartitionMoved(topic_id=unknown, partition=0, replicas=[1]),
        PartitionMoveCancelled(topic_id=unknown, partition=0),
        PartitionMoveStarted(topic_id=topic_id("orders"), partition=1, replicas=[1]),
        PartitionMoveCancelled(topic_id=topic_id("orders"), partition=0),
        NodeFenced(node_id=9),
    ]
    assert apply(state, records) == set()
    assert state.snapshot() == before


def test_partitions_of_a_node_include_those_that_move_from_and_to_it(state: ClusterState) -> None:
    start(state, 1, 2, 4)
    assert [str(name) for name in state.partitions_of(3)] == ["orders-0"]
    assert [str(name) for name in state.partitions_of(4)] == ["orders-0"]
    report(state, 1, 2, 4, index=7)
    assert state.partitions_of(3) == []


def test_a_replica_is_not_available_on_a_node_that_is_fenced_or_wiped(state: ClusterState) -> None:
    assert state.is_available(replica(3))
    apply(state, [NodeFenced(node_id=3)])
    assert not state.is_available(replica(3))
    apply(state, [registration(3)])
    assert state.is_available(replica(3))
    apply(state, [registration(3, incarnation=7)])
    assert not state.is_available(replica(3))


def test_records_without_incarnations_mean_the_nodes_as_they_are_registered(state: ClusterState) -> None:
    orders = topic_id("orders")
    apply(state, [PartitionMoveStarted(topic_id=orders, partition=0, replicas=[1, 2, 4])])
    assert assignment(state, "orders").target_members[2] == replica(4)
    apply(state, [PartitionMoved(topic_id=orders, partition=0, replicas=[1, 2, 4])])
    moved = assignment(state, "orders")
    assert (moved.members[2], moved.target, moved.founders) == (replica(4), None, ())


def test_moves_that_were_planned_on_an_older_state_begin_only_if_their_replicas_and_all_nodes_are_the_same() -> (
    None
):
    state = cluster_of(1, 2, 3)
    for name in "abcdef":
        assign(state, name, [1])
    planned_on = state.copy()
    moves = next_moves(planned_on, MoveLimits(at_once=10, per_node=10))
    assert len(moves) > 1
    assert still_possible(moves, planned_on, state) == moves
    apply(state, reassign(state, moves[0].topic, 0, [3]))
    create(state, "new")
    assert still_possible(moves, planned_on, state) == moves[1:]
    apply(state, [NodeFenced(node_id=3)])
    assert still_possible(moves, planned_on, state) == []
