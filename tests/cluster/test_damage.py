"""Replicas that have rotted, or whose files are gone: made anew where they were, when the others can go on without."""

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
    reassign,
    report_damaged,
    report_moved,
    start_moves,
    why_not_rebuilt,
)
from penstock.cluster.leaders import elect_preferred, plan_leaders
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


def test_a_damaged_replica_is_made_anew_on_its_node_as_another_one() -> None:
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


def test_a_replica_in_its_second_life_is_there_like_any_other() -> None:
    state = three_copies(1, 2, 3, 4)
    damage(state, replica(3))
    settle(state)
    assert state.is_available(REBORN)
    apply(state, reassign(state, "orders", 0, [1, 3, 4]))
    assert assignment(state, "orders").target_members == (replica(1), REBORN, replica(4))


def test_it_can_be_damaged_again() -> None:
    state = three_copies()
    damage(state, replica(3))
    settle(state)
    damage(state, REBORN, life=2)
    settle(state)
    assert replica(3).in_life(2) in assignment(state, "orders").members


def test_what_a_node_loses_with_its_whole_folder_is_made_anew_as_what_the_node_is_now() -> None:
    state = three_copies()
    damage(state, replica(3))
    apply(state, [registration(3, incarnation=77)])
    settle(state)
    assert assignment(state, "orders").members == (replica(1), replica(2), replica(3, 77))


@pytest.mark.parametrize("others", [[3], [3, 1]])
def test_with_too_few_copies_nothing_is_done_and_people_are_told_why(others: list[int]) -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "orders", others)
    damage(state, replica(3))
    assert next_moves(state) == []
    assert why_not_rebuilt(state, assignment(state, "orders"), replica(3)) is not None


def test_nothing_is_done_until_a_majority_is_there_without_it() -> None:
    state = three_copies()
    apply(state, [NodeFenced(node_id=1)])
    damage(state, replica(3))
    assert next_moves(state) == []
    assert "intact: 2; 2 are needed" in str(why_not_rebuilt(state, assignment(state, "orders"), replica(3)))
    apply(state, [registration(1)])
    assert [move.reason for move in next_moves(state)] == [MoveReason.DAMAGED]


def test_one_that_is_not_seen_counts_as_away_before_it_is_fenced() -> None:
    state = three_copies()
    damage(state, replica(3))
    for away in (1, 2):
        assert next_moves(state, away=[away]) == []
        obstacle = why_not_rebuilt(state, assignment(state, "orders"), replica(3), [away])
        assert f"intact: {3 - away}; 2 are needed" in str(obstacle)
    assert [move.reason for move in next_moves(state, away=[3])] == [MoveReason.DAMAGED]


def test_where_all_copies_are_damaged_none_is_given_up() -> None:
    state = three_copies()
    for node in (1, 2, 3):
        damage(state, replica(node))
    assert next_moves(state) == []


def test_of_two_damaged_copies_of_five_one_is_made_anew_after_the_other() -> None:
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


def test_a_life_that_was_given_up_is_not_used_again() -> None:
    """The node was in its life 1 already when the move was called off: it says so, and goes on to life 2."""
    state = three_copies(1, 2, 3, 4)
    damage(state, replica(3))
    begin(state)
    apply(state, reassign(state, "orders", 0, [1, 2, 4]))
    apply(state, [PartitionMoveCancelled(topic_id=ORDERS.topic_id, partition=0)])
    apply(state, report_moved(state, ORDERS, assignment(state, "orders").members, 20))
    damage(state, replica(3), life=2)
    settle(state)
    assert replica(3).in_life(2) in assignment(state, "orders").members


def test_a_newcomer_that_cannot_be_what_it_is_asked_to_be_comes_as_another() -> None:
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


def test_what_is_damaged_is_in_the_snapshot() -> None:
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
    everybody = {ORDERS: (1, 2, 3)}
    assert plan_leaders(state, {ORDERS: 2}, everybody) == []
    assert [to for _, to in plan_leaders(state, {ORDERS: 1}, everybody)] in ([2], [3])
    with refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "damaged"):
        elect_preferred(state, "orders", 0, 2, (1, 2, 3))
