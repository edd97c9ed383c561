"""Nodes that share a machine: together they hold one replica of a partition, and have one vote."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster import (
    ClusterState,
    NodeDecommissioning,
    NodeFenced,
    NodeRemoved,
    decommission_node,
    machine_count,
    next_moves,
)
from penstock.cluster.nodes import machine_of
from penstock.cluster.quorum import metadata_voters
from penstock.cluster.reassignment import reassign
from penstock.errors import ErrorCode
from penstock.types import Replica
from tests.cluster.clusters import (
    apply,
    assign,
    cluster_of,
    create,
    held,
    led,
    refused,
    registration,
    replica,
    replicas,
    settle,
)


def processes_of(machine: int, count: int) -> dict[int, str]:
    return {machine + 100 * number: f"machine-{machine}" for number in range(count)}


def machines_of(*counts: int) -> ClusterState:
    """Machines with so many processes each."""
    machines = {
        node: name
        for machine, count in enumerate(counts, 1)
        for node, name in processes_of(machine, count).items()
    }
    return cluster_of(*machines, machines=machines)


def is_apart(state: ClusterState, nodes: Sequence[int]) -> bool:
    return machine_count(state, nodes) == len(nodes)


def all_replicas(state: ClusterState) -> list[tuple[int, ...]]:
    return [assigned.future for _, _, assigned in state.groups()]


def test_three_machines_of_two_processes_hold_three_replicas_on_three_machines() -> None:
    state = machines_of(2, 2, 2)
    create(state, "orders", partitions=12, factor=3)
    assert all(is_apart(state, nodes) for nodes in replicas(state, "orders"))
    assert set(held(state).values()) == {6}
    assert set(led(state).values()) == {2}


def test_one_machine_holds_one_replica_however_many_processes_it_has() -> None:
    state = machines_of(4)
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR, "4 nodes on 1 machine (a machine holds one replica"):
        create(state, "orders", factor=2)
    create(state, "orders", partitions=8)
    assert set(held(state).values()) == {2}


def test_more_replicas_than_machines_are_refused() -> None:
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR, "5 nodes on 2 machines"):
        create(machines_of(3, 2), "orders", factor=3)


def test_an_assignment_by_a_client_cannot_put_two_replicas_on_one_machine() -> None:
    state = machines_of(2, 1)
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "nodes 1 and 101, which share the machine machine-1"):
        assign(state, "orders", [1, 101])
    assign(state, "orders", [1, 2])
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "share the machine machine-1"):
        reassign(state, "orders", 0, [1, 101, 2])
    assert reassign(state, "orders", 0, [101, 2])


def test_a_lost_process_is_replaced_by_its_neighbour_and_never_beside_another_replica() -> None:
    state = machines_of(2, 2, 2)
    assign(state, "orders", [1, 2, 3])
    apply(state, [NodeFenced(node_id=3)])
    settle(state, gone=[3])
    assert replicas(state, "orders") == [(1, 2, 103)]


def test_a_lost_machine_is_not_replaced_on_the_others() -> None:
    state = machines_of(2, 2, 2)
    assign(state, "orders", [1, 2, 3])
    apply(state, [NodeFenced(node_id=3), NodeFenced(node_id=103)])
    assert next_moves(state, gone=[3, 103]) == []


def test_nodes_that_name_their_machine_late_are_told_apart_then() -> None:
    state = cluster_of(1, 2, 3, 4)
    assign(state, "orders", [1, 2], [1, 3])
    apply(state, [registration(1, machine="m"), registration(2, machine="m")])
    settle(state)
    assert all(is_apart(state, nodes) for nodes in replicas(state, "orders"))


def test_a_process_that_joins_gets_its_share_of_its_own_machine() -> None:
    state = machines_of(1, 1, 1)
    create(state, "orders", partitions=12, factor=3)
    apply(state, [registration(node, machine=name) for node, name in processes_of(1, 2).items()])
    settle(state)
    assert held(state) == {1: 6, 101: 6, 2: 12, 3: 12}


def test_the_last_node_of_a_machine_cannot_leave_if_its_replicas_need_a_machine() -> None:
    state = machines_of(2, 2, 1)
    create(state, "orders", partitions=2, factor=3)
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR, "only 4 nodes on 2 machines could hold them"):
        decommission_node(state, 3)
    assert decommission_node(state, 1)


# --- the metadata group


def voters(*nodes: int) -> tuple[Replica, ...]:
    return tuple(replica(node) for node in sorted(nodes))


def settled(state: ClusterState, current: tuple[Replica, ...]) -> tuple[Replica, ...]:
    for _ in range(20):
        following = metadata_voters(state, current, state.alive_nodes())
        if following == current:
            return following
        assert len(set(following) - set(current)) <= 1
        current = following
    raise AssertionError("the voters keep changing")


@pytest.mark.parametrize(
    ("counts", "first", "last"),
    [
        ((4,), [1], [1]),
        ((4,), [1, 101, 201], [1]),
        ((2, 2), [1], [1]),
        ((2, 2, 2), [1, 2, 3], [1, 2, 3]),
        ((2, 2, 2), [1], [1, 2, 3]),
        ((2, 2, 2), [1, 101, 2], [1, 2, 3]),
        ((2, 2, 2), [1, 2, 3, 101, 102, 103], [1, 2, 3]),
        ((8, 8, 8, 8, 8), [1, 2, 3], [1, 2, 3, 4, 5]),
    ],
)
def test_voters_are_on_different_machines(counts: list[int], first: list[int], last: list[int]) -> None:
    assert settled(machines_of(*counts), voters(*first)) == voters(*last)


def test_a_lost_voter_is_replaced_on_a_machine_without_one() -> None:
    state = machines_of(2, 2, 2)
    apply(state, [NodeFenced(node_id=3)])
    assert settled(state, voters(1, 2, 3)) == voters(1, 2, 103)
    apply(state, [NodeFenced(node_id=103)])
    assert settled(state, voters(1, 2, 103)) == voters(1, 2, 103)


def test_a_leaving_voter_hands_its_vote_to_its_neighbour() -> None:
    state = machines_of(2, 2, 2)
    apply(state, [NodeDecommissioning(node_id=1, on=True)])
    assert settled(state, voters(1, 2, 3)) == voters(2, 3, 101)
    apply(state, [NodeRemoved(node_id=1)])
    assert settled(state, voters(2, 3, 101)) == voters(2, 3, 101)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=4),
    st.lists(st.integers(0, 23), max_size=6),
)
def test_no_history_puts_two_replicas_or_two_votes_on_one_machine(
    counts: list[int], topics: list[tuple[int, int]], lost: list[int]
) -> None:
    state = machines_of(*counts)
    for number, (partitions, factor) in enumerate(topics):
        create(state, f"topic{number}", partitions, min(factor, len(counts)))
    nodes = sorted(state.nodes)
    voting = settled(state, voters(1))
    for choice in lost:
        apply(state, [NodeFenced(node_id=nodes[choice % len(nodes)])])
        gone = [node for node, info in state.nodes.items() if info.fenced]
        settle(state, gone=gone)
        voting = settled(state, voting)
        assert all(is_apart(state, nodes) for nodes in all_replicas(state))
        assert is_apart(state, [voter.node for voter in voting])
    joined = {machine_of(node, info)[0] for node, info in state.nodes.items()}
    assert len(joined) == len(counts)
