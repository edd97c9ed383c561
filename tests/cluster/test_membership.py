"""Nodes register, become silent, return, are wiped, and leave."""

import pytest

from penstock.cluster import (
    ClusterState,
    MetadataVoters,
    MoveLimits,
    MoveReason,
    NodeDecommissioning,
    NodeFenced,
    NodeRemoved,
    NodeTimeouts,
    NodeUnfenced,
    Sightings,
    decommission_node,
    gone_nodes,
    next_moves,
    plan_rebalance,
    register_node,
    remove_empty_nodes,
    start_moves,
    watch_nodes,
)
from penstock.cluster.reassignment import reassign
from penstock.errors import ErrorCode
from tests.cluster.clusters import (
    apply,
    assign,
    assignment,
    cluster_of,
    create,
    finish,
    group,
    held,
    moving,
    refused,
    registration,
    replica,
    settle,
)

TIMEOUTS = NodeTimeouts(fence_after_ms=10, replace_after_ms=100)


# --- registration


def test_a_node_is_registered_once_and_again_when_something_about_it_changed() -> None:
    state = cluster_of()
    assert register_node(state, registration(1), seen={}) == [registration(1)]
    apply(state, [registration(1)])
    assert register_node(state, registration(1), seen={1: 101}) == []
    moved = registration(1, rack="b")
    assert register_node(state, moved, seen={1: 101}) == [moved]


def test_a_second_node_with_the_id_of_a_live_one_is_refused() -> None:
    state = cluster_of(1, 2)
    with refused(
        ErrorCode.DUPLICATE_RESOURCE, "node id 2 belongs to the node at host2:7000, which is running"
    ):
        register_node(state, registration(2, incarnation=7), seen={1: 101, 2: 102})


def test_a_wiped_node_is_accepted_if_its_old_incarnation_is_not_seen() -> None:
    state = cluster_of(1, 2)
    wiped = registration(2, incarnation=7)
    assert register_node(state, wiped, seen={1: 101}) == [wiped]
    assert register_node(state, wiped, seen={1: 101, 2: 7}) == [wiped]


@pytest.mark.parametrize(("node_id", "incarnation"), [(-1, 5), (1, -5)])
def test_invalid_ids_and_incarnations_are_refused(node_id: int, incarnation: int) -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        register_node(cluster_of(), registration(node_id, incarnation=incarnation), seen={})


def test_registering_unfences_a_node_and_keeps_its_decommissioning() -> None:
    state = cluster_of(1, 2)
    apply(state, [NodeFenced(node_id=2), NodeDecommissioning(node_id=2, on=True)])
    assert register_node(state, registration(2), seen={}) == [registration(2)]
    apply(state, [registration(2)])
    assert (state.nodes[2].fenced, state.nodes[2].decommissioning) == (False, True)


def test_the_replicas_of_a_wiped_node_are_recreated_on_it() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", [1, 2, 3], [2, 3, 1])
    apply(state, [registration(2, incarnation=7)])
    moves = next_moves(state)
    assert [(move.reason, move.renewed, move.copies) for move in moves] == [(MoveReason.WIPED, 2, (2,))] * 2
    apply(state, start_moves(state, moves))
    assert assignment(state, "orders").target_members == (replica(1), replica(2, 7), replica(3))
    settle(state)
    assert assignment(state, "orders", 1).members == (replica(2, 7), replica(3), replica(1))
    assert all(state.is_available(member) for member in assignment(state, "orders", 1).members)


def test_recreation_starts_over_if_the_node_is_wiped_again() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", [1, 2, 3])
    apply(state, [registration(2, incarnation=7)])
    apply(state, start_moves(state, next_moves(state)))
    apply(state, [registration(2, incarnation=8)])
    apply(state, start_moves(state, next_moves(state)))
    assert assignment(state, "orders").target_members == (replica(1), replica(2, 8), replica(3))
    assert next_moves(state) == []


def test_a_wiped_leaving_node_gets_its_replicas_back_only_if_no_other_node_can_take_them() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "narrow", [1, 2])
    apply(state, decommission_node(state, 2))
    apply(state, [registration(2, incarnation=7)])
    assert [move.target for move in next_moves(state)] == [(1, 3)]
    apply(state, [NodeFenced(node_id=3)])
    assert [(move.target, move.renewed) for move in next_moves(state)] == [((1, 2), 2)]


# --- silent nodes


def test_a_silent_node_is_fenced_after_the_grace_period_and_unfenced_when_it_is_back() -> None:
    state = cluster_of(1, 2)
    assert watch_nodes(state, {1: 0, 2: 9}, TIMEOUTS) == []
    assert watch_nodes(state, {1: 0, 2: 10}, TIMEOUTS) == [NodeFenced(node_id=2)]
    apply(state, [NodeFenced(node_id=2)])
    assert watch_nodes(state, {1: 0, 2: 11}, TIMEOUTS) == []
    assert watch_nodes(state, {1: 0, 2: 0}, TIMEOUTS) == [NodeUnfenced(node_id=2)]


def test_a_node_without_sightings_keeps_its_state() -> None:
    state = cluster_of(1, 2)
    apply(state, [NodeFenced(node_id=2)])
    assert watch_nodes(state, {}, TIMEOUTS) == []
    assert gone_nodes(state, {}, TIMEOUTS) == ()


def test_a_node_counts_as_gone_after_the_second_longer_period_if_configured() -> None:
    state = cluster_of(1, 2)
    assert gone_nodes(state, {2: 100}, TIMEOUTS) == ()
    apply(state, [NodeFenced(node_id=2)])
    assert gone_nodes(state, {2: 99}, TIMEOUTS) == ()
    assert gone_nodes(state, {2: 100}, TIMEOUTS) == (2,)
    assert gone_nodes(state, {2: 100}, NodeTimeouts(fence_after_ms=10, replace_after_ms=0)) == ()


def test_silence_is_measured_from_the_first_check_or_the_last_sighting() -> None:
    sightings = Sightings()
    assert sightings.see(1000, nodes=[1, 2], alive=[1]) == {1: 0, 2: 1}
    assert sightings.see(1005, nodes=[1, 2, 3], alive=[1]) == {1: 0, 2: 6, 3: 1}
    assert sightings.see(1007, nodes=[1, 2, 3], alive=[2]) == {1: 2, 2: 0, 3: 3}
    assert sightings.see(1009, nodes=[1], alive=[]) == {1: 4}
    assert sightings.see(1010, nodes=[1, 2], alive=[]) == {1: 5, 2: 1}


def test_a_new_controller_does_not_unfence_a_node_that_it_does_not_see() -> None:
    state = cluster_of(1, 2, 3)
    apply(state, [NodeFenced(node_id=2), NodeFenced(node_id=3)])
    unseen = Sightings().see(1000, nodes=state.nodes, alive=[1, 3])
    assert watch_nodes(state, unseen, TIMEOUTS) == [NodeUnfenced(node_id=3)]


# --- nodes that are gone


def test_a_fenced_node_keeps_its_replicas_until_it_is_gone() -> None:
    state = cluster_of(1, 2, 3, 4)
    create(state, "orders", partitions=8, factor=3)
    apply(state, [NodeFenced(node_id=4)])
    assert next_moves(state) == []
    settle(state, gone=[4])
    assert held(state) == {1: 8, 2: 8, 3: 8, 4: 0}


def test_a_move_to_a_node_that_is_gone_is_redirected_even_at_the_limit_of_moves() -> None:
    state = cluster_of(1, 2, 3, 4, 5)
    assign(state, "a", [1, 2, 3])
    assign(state, "b", [1, 2, 3])
    apply(state, [NodeFenced(node_id=3), NodeFenced(node_id=5)])
    moves = next_moves(state, gone=[3])
    assert [move.target for move in moves] == [(1, 2, 4), (1, 2, 4)]
    apply(state, start_moves(state, moves))
    apply(state, [NodeFenced(node_id=4), NodeUnfenced(node_id=5)])
    redirected = next_moves(state, MoveLimits(at_once=2), gone=[3, 4])
    assert [(move.replicas, move.target) for move in redirected] == [((1, 2, 3), (1, 2, 5))] * 2
    apply(state, start_moves(state, redirected))
    settle(state, gone=[3, 4])
    assert held(state) == {1: 2, 2: 2, 3: 0, 4: 0, 5: 2}


def test_the_partition_with_the_fewest_intact_replicas_is_repaired_first() -> None:
    state = cluster_of(1, 2, 3, 4)
    assign(state, "a", [1, 2, 3])
    assign(state, "b", [3, 2])
    apply(state, [NodeFenced(node_id=3)])
    assert [move.topic for move in next_moves(state, gone=[3])] == ["b", "a"]


def test_a_repair_does_not_wait_for_a_busy_node_if_another_one_can_take_the_replica() -> None:
    state = cluster_of(1, 2, 3, 4, 5)
    assign(state, "orders", [1, 3], [1, 3], [1, 3])
    assign(state, "other", [4, 2], [4, 2])
    apply(state, [NodeFenced(node_id=3)])
    # Node 5 holds nothing, so it would get all three.
    assert [move.adding for move in plan_rebalance(state, gone=[3])[:2]] == [(5,), (5,)]
    moves = next_moves(state, MoveLimits(at_once=9, per_node=1), gone=[3])
    assert sorted(move.adding for move in moves) == [(2,), (4,), (5,)]


def test_nothing_moves_if_no_node_can_take_a_lost_replica() -> None:
    state = cluster_of(1, 2, 3)
    create(state, "orders", partitions=3, factor=3)
    apply(state, [NodeFenced(node_id=3)])
    assert next_moves(state, gone=[3]) == []


# --- decommissioning


def test_a_decommissioned_node_is_emptied_and_then_removed() -> None:
    state = cluster_of(1, 2, 3, 4)
    create(state, "orders", partitions=8, factor=3)
    apply(state, decommission_node(state, 2))
    assert remove_empty_nodes(state) == []
    settle(state)
    assert held(state) == {1: 8, 2: 0, 3: 8, 4: 8}
    assert remove_empty_nodes(state, voting=[2]) == []
    apply(state, [MetadataVoters(voters=[(2, 102)])])
    assert remove_empty_nodes(state) == []
    apply(state, [MetadataVoters(voters=[(1, 101)])])
    assert remove_empty_nodes(state) == [NodeRemoved(node_id=2)]
    apply(state, remove_empty_nodes(state))
    assert sorted(state.nodes) == [1, 3, 4]
    assert next_moves(state) == []


def test_a_target_of_a_replaced_move_stays_until_the_group_has_reported_its_members() -> None:
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", [1, 2, 3])
    apply(state, reassign(state, "orders", 0, [1, 2, 4]))
    apply(state, decommission_node(state, 4))
    apply(state, reassign(state, "orders", 0, [1, 2, 3]))  # its leader may have changed the group already
    assert 4 not in assignment(state, "orders").shown
    assert remove_empty_nodes(state) == []
    finish(state, group("orders"))
    assert remove_empty_nodes(state) == [NodeRemoved(node_id=4)]


def test_a_node_that_died_during_moves_to_it_can_be_decommissioned_at_once() -> None:
    """Unfinished moves to it are redirected without waiting until it counts as gone."""
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", [1, 2, 3])
    apply(state, reassign(state, "orders", 0, [1, 2, 4]))
    apply(state, [NodeFenced(node_id=4)])
    apply(state, decommission_node(state, 4))
    assert [(move.target, move.reason) for move in next_moves(state)] == [((1, 2, 3), MoveReason.LEAVING)]
    settle(state)
    finish(state, group("orders"))
    assert assignment(state, "orders").replicas == (1, 2, 3)
    assert remove_empty_nodes(state) == [NodeRemoved(node_id=4)]


def test_existing_replicas_of_a_fenced_leaving_node_wait_until_it_is_gone() -> None:
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", [1, 2, 4])
    apply(state, [NodeFenced(node_id=4)])
    apply(state, decommission_node(state, 4))
    assert next_moves(state) == []
    assert [move.target for move in next_moves(state, gone=[4])] == [(1, 2, 3)]


def test_decommissioning_is_refused_if_the_factor_could_not_be_kept() -> None:
    state = cluster_of(1, 2, 3)
    create(state, "orders", partitions=1, factor=3)
    with refused(
        ErrorCode.INVALID_REPLICATION_FACTOR, "orders-0 has 3 replicas, and without node 2 only 2 nodes"
    ):
        decommission_node(state, 2)


def test_fenced_nodes_do_not_count_as_targets_for_a_leaving_node() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", [1, 2])
    apply(state, [NodeFenced(node_id=3)])
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 node could hold them (1)"):
        decommission_node(state, 2)


def test_the_last_node_cannot_leave_and_an_unknown_one_neither() -> None:
    state = cluster_of(1)
    with refused(ErrorCode.INVALID_REQUEST, "the last one"):
        decommission_node(state, 1)
    with refused(ErrorCode.BROKER_ID_NOT_REGISTERED, "there is no node 5; nodes: 1"):
        decommission_node(state, 5)


def test_decommissioning_can_be_cancelled() -> None:
    state = cluster_of(1, 2)
    create(state, "orders", partitions=2)
    apply(state, decommission_node(state, 2))
    assert decommission_node(state, 2) == []
    apply(state, decommission_node(state, 2, on=False))
    assert state.usable_nodes() == (1, 2)
    assert next_moves(state) == []


def test_a_leaving_node_waits_while_another_replica_is_fenced() -> None:
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", [1, 2, 3])
    apply(state, decommission_node(state, 1))
    apply(state, [NodeFenced(node_id=3)])
    assert next_moves(state) == []
    apply(state, [NodeUnfenced(node_id=3)])
    assert [move.target for move in next_moves(state)] == [(4, 2, 3)]


def test_a_node_that_is_gone_can_be_decommissioned() -> None:
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", [4, 1, 2])
    apply(state, [NodeFenced(node_id=4)])
    apply(state, decommission_node(state, 4))
    settle(state, gone=[4])
    assert assignment(state, "orders").replicas == (3, 1, 2)
    assert remove_empty_nodes(state) == [NodeRemoved(node_id=4)]


def test_a_removed_node_may_register_again_as_a_new_one() -> None:
    state: ClusterState = cluster_of(1, 2)
    apply(state, decommission_node(state, 2))
    apply(state, remove_empty_nodes(state))
    apply(state, register_node(state, registration(2), seen={}))
    assert state.usable_nodes() == (1, 2)


def test_one_replica_of_a_partition_moves_at_a_time() -> None:
    state = cluster_of(1, 2, 3, 4, 5, 6)
    assign(state, "orders", [1, 2, 3])
    apply(state, [NodeDecommissioning(node_id=1, on=True), NodeDecommissioning(node_id=2, on=True)])
    first = next_moves(state)
    assert [move.target for move in first] == [(4, 2, 3)]
    apply(state, start_moves(state, first))
    assert next_moves(state) == []
    finish(state, group("orders"))
    assert [move.target for move in next_moves(state)] == [(4, 5, 3)]
    assert moving(state) == []
