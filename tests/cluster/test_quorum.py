"""Voters of the metadata group: few, spread over racks, and changed one at a time."""

import pytest

from penstock.cluster import ClusterState, NodeDecommissioning, NodeFenced, NodeRemoved
from penstock.cluster.quorum import metadata_voters
from penstock.types import Replica
from tests.cluster.clusters import apply, cluster_of, registration, replica


def voters(*nodes: int) -> tuple[Replica, ...]:
    return tuple(replica(node) for node in nodes)


def settled(state: ClusterState, current: tuple[Replica, ...]) -> tuple[Replica, ...]:
    """Follows the changes to their end; each one concerns one voter."""
    for _ in range(20):
        following = metadata_voters(state, current, state.alive_nodes())
        added, removed = set(following) - set(current), set(current) - set(following)
        assert len(added) <= 1
        assert len(removed) <= 1
        if not added and not removed:
            return following
        current = following
    raise AssertionError("the voters keep changing")


@pytest.mark.parametrize(("nodes", "count"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_an_odd_number_votes_and_at_most_five(nodes: int, count: int) -> None:
    assert len(settled(cluster_of(*range(1, nodes + 1)), voters(1))) == count


def test_a_silent_voter_is_kept_if_no_node_can_replace_it() -> None:
    state = cluster_of(1, 2, 3)
    apply(state, [NodeFenced(node_id=3)])
    assert settled(state, voters(1, 2, 3)) == voters(1, 2, 3)


def test_a_silent_voter_is_replaced_by_an_available_node() -> None:
    state = cluster_of(1, 2, 3, 4)
    assert settled(state, voters(1, 2, 3)) == voters(1, 2, 3)
    apply(state, [NodeFenced(node_id=3)])
    assert metadata_voters(state, voters(1, 2, 3), alive=[1, 2, 4]) == voters(1, 2, 4)
    assert metadata_voters(state, voters(1, 2, 3), alive=[1, 2]) == voters(1, 2, 3)


def test_a_second_voter_is_added_only_if_there_is_a_third() -> None:
    state = cluster_of(1, 2, 3)
    apply(state, [NodeFenced(node_id=3)])
    assert settled(state, voters(1)) == voters(1)


def test_growth_that_lost_its_last_voter_returns_to_an_odd_number() -> None:
    state = cluster_of(1, 2, 3, 4, 5)
    four = metadata_voters(state, voters(1, 2, 3), alive=[1, 2, 3, 4, 5])
    assert four == voters(1, 2, 3, 4)
    apply(state, [NodeFenced(node_id=5)])
    assert settled(state, four) == voters(1, 2, 3)


def test_a_wiped_voter_becomes_a_voter_again_with_its_new_incarnation() -> None:
    state = cluster_of(1, 2, 3)
    apply(state, [registration(2, incarnation=7)])
    assert settled(state, voters(1, 2, 3)) == (replica(1), replica(2, 7), replica(3))


def test_a_leaving_voter_is_replaced_or_removed() -> None:
    state = cluster_of(1, 2, 3, 4)
    apply(state, [NodeDecommissioning(node_id=1, on=True)])
    assert settled(state, voters(1, 2, 3)) == voters(2, 3, 4)
    apply(state, [NodeRemoved(node_id=1), NodeDecommissioning(node_id=2, on=True)])
    assert settled(state, voters(2, 3, 4)) == voters(3)


def test_voters_come_from_different_racks() -> None:
    state = cluster_of(1, 2, 3, 4, 5, 6, racks={1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c"})
    apply(state, [NodeFenced(node_id=3), NodeFenced(node_id=5)])
    assert metadata_voters(state, voters(1), alive=[1, 2, 4, 6]) == voters(1, 4)
    assert settled(state, voters(1)) == voters(1, 4, 6)


def test_founders_that_have_not_registered_yet_keep_their_votes() -> None:
    assert settled(cluster_of(), voters(1, 2, 3)) == voters(1, 2, 3)
    assert settled(cluster_of(1), voters(1, 2, 3)) == voters(1, 2, 3)
