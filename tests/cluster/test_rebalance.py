"""Nodes that join get their share with the fewest moves; racks, limits and preferred leaders are kept."""

from penstock.cluster import MoveLimits, MoveReason, NodeFenced, next_moves, plan_rebalance, start_moves
from penstock.cluster.levelling import bounds
from penstock.cluster.reassignment import reassign
from tests.cluster.clusters import (
    apply,
    assign,
    assignment,
    cluster_of,
    create,
    crowding,
    finish,
    group,
    held,
    led,
    moving,
    registration,
    replicas,
    settle,
)


def test_level_means_within_one_of_the_mean() -> None:
    assert bounds({1: 4, 2: 5, 3: 6}) == (4, 6)
    assert bounds({1: 4, 2: 5}) == (4, 5)
    assert bounds({1: 0, 2: 1, 3: 0}) == (0, 1)


def test_a_node_that_joins_gets_its_share_and_nothing_else_moves() -> None:
    state = cluster_of(1, 2, 3)
    create(state, "orders", partitions=12, factor=2)
    apply(state, [registration(4)])
    plan = [move for move in plan_rebalance(state) if move.copies]
    # 24 replicas on four nodes: five are enough for the new one, and no other has more than seven.
    assert [move.adding for move in plan] == [(4,)] * 5
    assert {move.reason for move in plan} == {MoveReason.BALANCE}
    assert settle(state) == 5
    assert sorted(held(state).values()) == [5, 6, 6, 7]
    assert held(state)[4] == 5


def test_a_joining_node_gets_replicas_of_all_topics_evenly() -> None:
    state = cluster_of(1, 2)
    create(state, "a", partitions=8)
    create(state, "b", partitions=8)
    apply(state, [registration(3)])
    settle(state)
    assert [sum(nodes == (3,) for nodes in replicas(state, topic)) for topic in "ab"] == [3, 2]


def test_the_plan_lists_all_moves_and_starts_none() -> None:
    state = cluster_of(1, 2)
    create(state, "orders", partitions=20)
    apply(state, [registration(3)])
    before = state.snapshot()
    assert len([move for move in plan_rebalance(state) if move.copies]) == 8 - 2
    assert state.snapshot() == before


def test_a_level_cluster_has_nothing_to_move() -> None:
    state = cluster_of(1, 2, 3)
    create(state, "orders", partitions=9, factor=2)
    assert plan_rebalance(state) == []
    assert next_moves(state) == []


def test_without_registered_nodes_nothing_ever_moves() -> None:
    assert plan_rebalance(cluster_of()) == []


def test_no_more_moves_run_at_once_than_the_limits_allow() -> None:
    state = cluster_of(1, 2, 3)
    create(state, "orders", partitions=30, factor=2)
    apply(state, [registration(4), registration(5)])
    limits = MoveLimits(at_once=3, per_node=2)
    apply(state, start_moves(state, next_moves(state, limits)))
    assert len(moving(state)) == 3
    assert next_moves(state, limits) == []
    finish(state, moving(state)[0])
    apply(state, start_moves(state, next_moves(state, limits)))
    assert len(moving(state)) == 3
    for node in state.nodes:
        busy = [each for _, each, assigned in state.groups() if node in assigned.adding + assigned.removing]
        assert len(busy) <= limits.per_node


def test_balancing_can_be_disabled_while_repairs_continue() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", [1, 2], [1, 2], [1, 2], [1, 2])
    assert next_moves(state, balance=False) == []
    apply(state, [NodeFenced(node_id=2)])
    moves = next_moves(state, gone=[2], balance=False)
    assert {move.reason for move in moves} == {MoveReason.GONE}


def test_partitions_with_a_fenced_replica_are_not_moved_for_balance() -> None:
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", *[[1, 2]] * 6)
    apply(state, [NodeFenced(node_id=2)])
    assert next_moves(state) == []


def test_replicas_on_one_rack_are_separated_when_another_rack_joins() -> None:
    state = cluster_of(1, 2, racks={1: "a", 2: "a"})
    create(state, "orders", partitions=2, factor=2)
    apply(state, [registration(3, rack="b")])
    assert {move.reason for move in plan_rebalance(state) if move.copies} == {MoveReason.RACKS}
    settle(state)
    assert all(crowding(state, nodes) == 2 for nodes in replicas(state, "orders"))
    assert held(state) == {1: 1, 2: 1, 3: 2}


def test_balance_does_not_put_two_replicas_on_one_rack() -> None:
    state = cluster_of(1, 2, 3, 4, racks={1: "a", 2: "b", 3: "b", 4: "b"})
    assign(state, "orders", *[[1, 2]] * 9)
    settle(state)
    assert held(state) == {1: 9, 2: 3, 3: 3, 4: 3}


def test_a_chain_of_moves_is_used_if_racks_forbid_the_direct_one() -> None:
    # Node 1 holds too much and node 4 nothing, but every partition on node 1 has its other replica on node 4's rack.
    state = cluster_of(1, 2, 3, 4, racks={1: "a", 2: "b", 3: "c", 4: "c"})
    assign(state, "x", *[[1, 3]] * 4)
    assign(state, "y", [2, 1], [2, 1])
    plan = [move for move in plan_rebalance(state) if move.copies]
    assert plan
    settle(state)
    counts = held(state).values()
    assert max(counts) - min(counts) <= 2
    assert all(crowding(state, nodes) == 2 for topic in "xy" for nodes in replicas(state, topic))


def test_preferred_leaders_are_levelled_without_copying_anything() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", *[[1, 2, 3]] * 6)
    moves = next_moves(state)
    assert {move.reason for move in moves} == {MoveReason.LEADERS}
    assert all(not move.copies for move in moves)
    apply(state, start_moves(state, moves))
    assert moving(state) == []
    assert led(state) == {1: 3, 2: 2, 3: 1}
    assert next_moves(state) == []
    assert set(assignment(state, "orders").founders) == set(assignment(state, "orders").members)


def test_preferred_leaders_wait_for_ongoing_moves() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", *[[1, 2]] * 4, *[[2, 3]] * 2, *[[1, 3]] * 2)
    apply(state, reassign(state, "orders", 0, [1, 3]))
    assert next_moves(state) == []
    finish(state, group("orders"))
    assert {move.reason for move in next_moves(state)} == {MoveReason.LEADERS}


def test_preferred_leaders_wait_until_replicas_are_balanced() -> None:
    state = cluster_of(1, 2)
    assign(state, "orders", *[[1, 2]] * 4)
    assign(state, "more", *[[1, 2]] * 4)
    apply(state, [registration(3)])
    while moves := next_moves(state, MoveLimits(at_once=1)):
        apply(state, start_moves(state, moves))
        if not moving(state):
            break
        assert {move.reason for move in moves} == {MoveReason.BALANCE}
        finish(state, moving(state)[0])
    assert {move.reason for move in moves} == {MoveReason.LEADERS}


def test_a_moved_replica_keeps_its_position_in_the_order() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", [3, 2, 1])
    apply(state, [registration(4), NodeFenced(node_id=3)])
    apply(state, start_moves(state, next_moves(state, gone=[3])))
    finish(state, group("orders"))
    assert assignment(state, "orders").replicas == (4, 2, 1)
