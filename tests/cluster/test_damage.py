"""Replicas with damaged or missing files: recreated on their node, if the others can continue without them."""

import pytest

from penstock.cluster import (
    ClusterState,
    MoveLimits,
    MoveReason,
    NodeFenced,
    PartitionMoveCancelled,
    decode_record,
    encode_record,
    next_moves,
    report_damaged,
    report_moved,
    start_moves,
    why_not_rebuilt,
)
from penstock.cluster.leaders import elect_preferred, plan_leaders
from penstock.cluster.reassignment import reassign
from penstock.errors import ErrorCode
from penstock.types import Replica
from tests.cluster.clusters import (
    apply,
    assign,
    assignment,
    cluster_of,
    finish,
    group,
    refused,
    registration,
    replica,
    settle,
)

ORDERS = group("orders")
REBORN = replica(3).in_life(1)


def three_copies(*nodes: int) -> ClusterState:
    state = cluster_of(*(nodes or (1, 2, 3)))
    assign(state, "orders", [1, 2, 3])
    return state


def damage(state: ClusterState, lost: Replica, life: int = 1) -> None:
    apply(state, report_damaged(state, ORDERS, lost, replica(lost.node).in_life(life).incarnation))


def begin(state: ClusterState) -> None:
    apply(state, start_moves(state, next_moves(state)))


def test_a_damaged_replica_is_recreated_on_its_node_as_another_one() -> None:
    state = three_copies()
    damage(state, replica(3))
    [move] = next_moves(state)
    assert (move.reason, move.renewed, move.copies) == (MoveReason.DAMAGED, 3, (3,))
    assert move.target == (1, 2, 3)
    begin(state)
    assert assignment(state, "orders").target_members == (replica(1), replica(2), REBORN)
    finish(state, ORDERS)
    assert assignment(state, "orders").members == (replica(1), replica(2), REBORN)
    assert not assignment(state, "orders").damaged
    assert settle(state) == 0


def test_a_recreated_replica_counts_like_any_other() -> None:
    state = three_copies(1, 2, 3, 4)
    damage(state, replica(3))
    settle(state)
    assert state.is_available(REBORN)
    apply(state, reassign(state, "orders", 0, [1, 3, 4]))
    assert assignment(state, "orders").target_members == (replica(1), REBORN, replica(4))


def test_a_recreated_replica_can_be_damaged_again() -> None:
    state = three_copies()
    damage(state, replica(3))
    settle(state)
    damage(state, REBORN, life=2)
    settle(state)
    assert replica(3).in_life(2) in assignment(state, "orders").members


def test_replicas_of_a_wiped_folder_are_recreated_under_the_nodes_new_incarnation() -> None:
    state = three_copies()
    damage(state, replica(3))
    apply(state, [registration(3, incarnation=77)])
    settle(state)
    assert assignment(state, "orders").members == (replica(1), replica(2), replica(3, 77))


@pytest.mark.parametrize("others", [[3], [3, 1]])
def test_with_too_few_copies_nothing_is_done_and_the_reason_is_given(others: list[int]) -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", others)
    damage(state, replica(3))
    assert next_moves(state) == []
    assert why_not_rebuilt(state, assignment(state, "orders"), replica(3)) is not None


def test_nothing_is_done_until_there_is_a_majority_without_it() -> None:
    state = three_copies()
    apply(state, [NodeFenced(node_id=1)])
    damage(state, replica(3))
    assert next_moves(state) == []
    assert "intact: 2; 2 are needed" in str(why_not_rebuilt(state, assignment(state, "orders"), replica(3)))
    apply(state, [registration(1)])
    assert [move.reason for move in next_moves(state)] == [MoveReason.DAMAGED]


def test_an_unseen_node_counts_as_unavailable_before_it_is_fenced() -> None:
    state = three_copies()
    damage(state, replica(3))
    for away in (1, 2):
        assert next_moves(state, away=[away]) == []
        obstacle = why_not_rebuilt(state, assignment(state, "orders"), replica(3), [away])
        assert f"intact: {3 - away}; 2 are needed" in str(obstacle)
    assert [move.reason for move in next_moves(state, away=[3])] == [MoveReason.DAMAGED]


def test_if_all_copies_are_damaged_none_is_discarded() -> None:
    state = three_copies()
    for node in (1, 2, 3):
        damage(state, replica(node))
    assert next_moves(state) == []


def test_two_damaged_copies_of_five_are_recreated_one_after_the_other() -> None:
    state = cluster_of(1, 2, 3, 4, 5)
    assign(state, "orders", [1, 2, 3, 4, 5])
    damage(state, replica(3))
    damage(state, replica(4))
    begin(state)
    assert (
        len(set(assignment(state, "orders").target_members) - set(assignment(state, "orders").members)) == 1
    )
    finish(state, ORDERS)
    settle(state)
    assert {member.life_of(replica(member.node)) for member in assignment(state, "orders").members} == {0, 1}


def test_an_incarnation_of_a_cancelled_move_is_not_used_again() -> None:
    """The node had incarnation 1 already when the move was cancelled: it reports that, and continues with 2."""
    state = three_copies(1, 2, 3, 4)
    damage(state, replica(3))
    begin(state)
    apply(state, reassign(state, "orders", 0, [1, 2, 4]))
    apply(state, [PartitionMoveCancelled(topic_id=ORDERS.topic_id, partition=0)])
    apply(state, report_moved(state, ORDERS, assignment(state, "orders").members, 20))
    damage(state, replica(3), life=2)
    settle(state)
    assert replica(3).in_life(2) in assignment(state, "orders").members


def test_a_new_replica_that_cannot_have_the_requested_incarnation_gets_another() -> None:
    state = three_copies(1, 2, 3, 4)
    apply(state, reassign(state, "orders", 0, [1, 2, 4]))
    damage(state, replica(4), life=5)
    begin(state)
    assert replica(4).in_life(5) in assignment(state, "orders").target_members


def test_a_report_counts_once_and_only_of_a_member() -> None:
    state = three_copies(1, 2, 3, 4)
    renewal = REBORN.incarnation
    assert len(report_damaged(state, ORDERS, replica(3), renewal)) == 1
    damage(state, replica(3))
    assert report_damaged(state, ORDERS, replica(3), renewal) == []
    assert report_damaged(state, ORDERS, replica(4), renewal) == []
    assert report_damaged(state, group("nothing"), replica(3), renewal) == []


def test_damage_is_in_the_snapshot() -> None:
    state = three_copies()
    damage(state, replica(3))
    twin = ClusterState(node_id=1)
    apply(twin, [decode_record(encode_record(state.snapshot()))])
    assert next_moves(twin) == next_moves(state) != []


def test_no_more_is_copied_at_once_than_the_limits_allow() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", *([1, 2, 3] for _ in range(5)))
    for number in range(5):
        one = group("orders", number)
        apply(state, report_damaged(state, one, replica(3), REBORN.incarnation))
    limits = MoveLimits(at_once=4, per_node=2)
    begun = next_moves(state, limits)
    assert len(begun) == 2
    apply(state, start_moves(state, begun))
    assert next_moves(state, limits) == []
    settle(state)
    assert all(REBORN in one.members for one in state.topics["orders"].assignments)


def test_a_damaged_replica_is_not_asked_to_lead_while_another_can() -> None:
    state = three_copies()
    damage(state, replica(1))
    in_sync = {ORDERS: (1, 2, 3)}
    assert plan_leaders(state, {ORDERS: 2}, in_sync) == []
    assert [to for _, to in plan_leaders(state, {ORDERS: 1}, in_sync)] in ([2], [3])
    with refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "damaged"):
        elect_preferred(state, "orders", 0, 2, (1, 2, 3))
