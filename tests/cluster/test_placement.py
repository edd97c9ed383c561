"""Placement of new partitions: by load, by rack, and never on a fenced or leaving node."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster import (
    NewTopic,
    NodeDecommissioning,
    NodeFenced,
    NodeUnfenced,
    PartitionsAdded,
    TopicCreated,
    decisions,
)
from penstock.errors import ErrorCode
from tests.cluster.clusters import (
    RULES,
    apply,
    assign,
    assignment,
    cluster_of,
    create,
    crowding,
    held,
    least_crowding,
    led,
    refused,
    registration,
    replica,
    replicas,
)


def test_many_small_topics_spread_replicas_and_leaders_over_all_nodes() -> None:
    state = cluster_of(1, 2, 3, 4, 5)
    for number in range(20):
        create(state, f"topic{number}", partitions=1, factor=3)
    assert set(held(state).values()) == {12}
    assert set(led(state).values()) == {4}


def test_a_new_topic_goes_to_the_nodes_with_the_fewest_replicas() -> None:
    state = cluster_of(1, 2, 3)
    assign(state, "old", [1, 2], [1, 2])
    create(state, "new", partitions=1, factor=2)
    assert set(replicas(state, "new")[0]) == {1, 3}
    assert assignment(state, "new").leader == 3


def test_an_empty_node_gets_no_more_than_its_share_of_a_new_topic() -> None:
    state = cluster_of(1, 2, 3)
    create(state, "old", partitions=30, factor=1)
    apply(state, [registration(4)])
    create(state, "new", partitions=8, factor=1)
    assert sorted(nodes for (nodes,) in replicas(state, "new")) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_added_partitions_balance_the_topic() -> None:
    state = cluster_of(1, 2)
    assign(state, "orders", [1], [1])
    assign(state, "other", [2], [2])
    (record,) = decisions.create_partitions(state, "orders", 4, RULES)
    assert isinstance(record, PartitionsAdded)
    assert record.assignments == [[2], [2]]
    assert record.incarnations == [[102], [102]]


def test_replicas_are_on_different_racks_as_far_as_possible() -> None:
    state = cluster_of(1, 2, 3, 4, racks={1: "a", 2: "a", 3: "b", 4: "b"})
    create(state, "orders", partitions=8, factor=2)
    assert all(crowding(state, nodes) == 2 for nodes in replicas(state, "orders"))
    assert set(held(state).values()) == {4}


def test_more_replicas_than_racks_are_spread_over_nodes() -> None:
    state = cluster_of(1, 2, 3, racks={1: "a", 2: "a", 3: "a"})
    create(state, "orders", partitions=3, factor=2)
    assert all(len(set(nodes)) == 2 for nodes in replicas(state, "orders"))


def test_fenced_and_leaving_nodes_get_nothing_and_the_refusal_names_them() -> None:
    state = cluster_of(1, 2, 3, 4)
    apply(state, [NodeFenced(node_id=2), NodeDecommissioning(node_id=4, on=True)])
    create(state, "orders", partitions=6, factor=2)
    assert held(state) == {1: 6, 2: 0, 3: 6, 4: 0}
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR, "2 nodes that can take replicas (nodes 2, 4 are gone"):
        create(state, "wide", factor=3)
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "names nodes [2]"):
        assign(state, "manual", [1, 2])
    apply(state, [NodeUnfenced(node_id=2)])
    create(state, "wide", factor=3)


def test_a_new_partition_knows_its_founders() -> None:
    state = cluster_of(1, 2, 3)
    create(state, "orders", partitions=1, factor=3)
    assert set(assignment(state, "orders").founders) == {replica(1), replica(2), replica(3)}


def test_a_topic_of_an_older_version_belongs_to_the_first_node_that_registers() -> None:
    state = cluster_of()
    apply(state, [TopicCreated(name="old", topic_id=UUID(int=1), assignments=[[1], [1]], configs={})])
    assert apply(state, [registration(2)]) == set()
    assert apply(state, [registration(1)]) == {"old"}
    assert assignment(state, "old").founders == (replica(1),)
    assert apply(state, [registration(1, incarnation=7)]) == set()
    assert assignment(state, "old").founders == (replica(1),)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=8),
)
def test_without_racks_nodes_stay_within_one_replica_of_each_other(
    nodes: int, topics: list[tuple[int, int]]
) -> None:
    state = cluster_of(*range(nodes))
    for number, (partitions, factor) in enumerate(topics):
        create(state, f"topic{number}", partitions, min(factor, nodes))
        counts = held(state).values()
        assert max(counts) - min(counts) <= 1
        here = [nodes[0] for nodes in replicas(state, f"topic{number}")]
        assert max(here.count(node) for node in here) <= -(-partitions // nodes) + 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=7),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=5),
)
def test_new_partitions_are_on_as_many_racks_as_possible(
    racks: list[str], topics: list[tuple[int, int]]
) -> None:
    state = cluster_of(*range(len(racks)), racks=dict(enumerate(racks)))
    for number, (partitions, factor) in enumerate(topics):
        create(state, f"topic{number}", partitions, min(factor, len(racks)))
        for nodes in replicas(state, f"topic{number}"):
            assert len(set(nodes)) == len(nodes)
            assert crowding(state, nodes) == least_crowding(state, len(nodes))


def test_placement_does_not_depend_on_the_order_of_registrations() -> None:
    forwards, backwards = cluster_of(1, 2, 3, 4), cluster_of(4, 3, 2, 1)
    new_topic = NewTopic(name="orders", topic_id=UUID(int=1), partitions=7, replication_factor=3)
    assert decisions.create_topic(forwards, new_topic, RULES) == decisions.create_topic(
        backwards, new_topic, RULES
    )
