"""Random clusters: nodes that join, fail, lose their data and leave, topics, reassignments.

Each history is a list of numbers that are read as events, so that every event is one that can happen then.
"""

from collections.abc import Sequence
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster import (
    ClusterState,
    MetadataRecord,
    MoveLimits,
    NewTopic,
    NodeFenced,
    NodeUnfenced,
    TopicDeleted,
    decisions,
    decode_record,
    decommission_node,
    encode_record,
    next_moves,
    plan_leaders,
    plan_rebalance,
    register_node,
    remove_empty_nodes,
    start_moves,
)
from penstock.cluster.levelling import bounds
from penstock.cluster.quorum import metadata_voters
from penstock.cluster.reassignment import reassign
from penstock.errors import KafkaError
from tests.cluster.clusters import (
    RULES,
    apply,
    arrival,
    cluster_of,
    create,
    crowding,
    held,
    least_crowding,
    led,
    moving,
    registration,
    settle,
)

JOIN, CREATE, DELETE, FENCE, UNFENCE, WIPE, DECOMMISSION, REASSIGN, MOVE, ARRIVE = range(10)
# Weighted towards events that cause moves.
KINDS = [JOIN, CREATE, MOVE, ARRIVE] * 3 + [UNFENCE, FENCE, REASSIGN] * 2 + [DELETE, WIPE, DECOMMISSION]
NUMBERS = st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(0, 99))
EVENTS = st.lists(NUMBERS, min_size=5, max_size=40)
NAMES = ["a", "b", "c", "d"]


class History:
    """One cluster, and everything that was recorded about it."""

    def __init__(self, *, racks: Sequence[str | None]) -> None:
        self.state = cluster_of()
        self.records: list[MetadataRecord] = []
        self.racks = racks
        self.wipes = 0
        self.topics = 0

    def happen(self, event: tuple[int, int, int]) -> None:
        kind, first, second = event
        try:
            self._events[kind](self, first, second)
        except KafkaError:
            return

    def write(self, records: Sequence[MetadataRecord]) -> None:
        self.records += records
        apply(self.state, records)

    def node(self, number: int) -> int:
        nodes = sorted(self.state.nodes)
        return nodes[number % len(nodes)]

    def join(self, first: int = 0, second: int = 0) -> None:
        node = 1 + first % len(self.racks)
        if node not in self.state.nodes:
            wanted = registration(node, rack=self.racks[node - 1])
            self.write(register_node(self.state, wanted, seen={}))

    def create(self, first: int, second: int) -> None:
        name = NAMES[first % 4]
        self.topics += 1
        new_topic = NewTopic(
            name=name,
            topic_id=UUID(int=self.topics),
            partitions=1 + second % 7,
            replication_factor=1 + second % 3,
        )
        self.write(decisions.create_topic(self.state, new_topic, RULES))

    def delete(self, first: int, second: int) -> None:
        topic = self.state.topics.get(NAMES[first % 4])
        if topic is not None:
            self.write([TopicDeleted(name=topic.name, topic_id=topic.topic_id)])

    def fence(self, first: int, second: int) -> None:
        self.write([NodeFenced(node_id=self.node(first))])

    def unfence(self, first: int, second: int) -> None:
        self.write([NodeUnfenced(node_id=self.node(first))])

    def wipe(self, first: int, second: int) -> None:
        node = self.node(first)
        self.wipes += 1
        wanted = registration(node, rack=self.racks[node - 1], incarnation=1000 + self.wipes)
        self.write(register_node(self.state, wanted, seen={}))

    def decommission(self, first: int, second: int) -> None:
        self.write(decommission_node(self.state, self.node(first), on=second % 4 != 0))

    def reassign(self, first: int, second: int) -> None:
        topic = self.state.topics.get(NAMES[first % 4])
        if topic is None:
            return
        nodes = sorted(self.state.nodes)
        turned = nodes[second % len(nodes) :] + nodes[: second % len(nodes)]
        wanted = None if second % 5 == 0 else turned[: topic.replication_factor]
        self.write(reassign(self.state, topic.name, second % topic.partitions, wanted))

    def move(self, first: int, second: int) -> None:
        gone = [node for node, info in self.state.nodes.items() if info.fenced and first % 2]
        self.write(start_moves(self.state, next_moves(self.state, gone=gone)))

    def arrive(self, first: int, second: int) -> None:
        under_way = moving(self.state)
        if under_way:
            self.write(arrival(self.state, under_way[first % len(under_way)]))

    _events = (join, create, delete, fence, unfence, wipe, decommission, reassign, move, arrive)

    def all_nodes_return(self) -> None:
        self.write([NodeUnfenced(node_id=node) for node in sorted(self.state.nodes)])


def lived(racks: Sequence[str | None], events: list[tuple[int, int, int]]) -> History:
    history = History(racks=racks)
    for node in range(3):
        history.join(node)
    for event in events:
        history.happen(event)
    return history


def check_sane(state: ClusterState) -> None:
    for _, _, assigned in state.groups():
        for nodes in (assigned.replicas, assigned.future):
            assert nodes
            assert len(set(nodes)) == len(nodes)
        assert len(assigned.incarnations) == len(assigned.replicas)
        assert len(assigned.target_incarnations) == len(assigned.target or ())
    assert {node: count for node, count in state.replica_counts.items() if count} == {
        node: count for node, count in held(state).items() if count
    }
    assert {node: count for node, count in state.leader_counts.items() if count} == {
        node: count for node, count in led(state).items() if count
    }


def check_settled(state: ClusterState) -> None:
    """Nothing is left to do, and all requirements hold."""
    assert plan_rebalance(state) == []
    for _, _, assigned in state.groups():
        assert all(state.is_available(member) for member in assigned.members)
        factor = len(assigned.replicas)
        if factor <= len(state.usable_nodes()):
            assert all(state.nodes[node].usable for node in assigned.replicas)
            assert crowding(state, assigned.replicas) == least_crowding(state, factor)


RACKS = st.lists(st.sampled_from([None, "x", "y", "z"]), min_size=3, max_size=7)
NO_RACKS = st.integers(3, 7).map(lambda count: [None] * count)


@settings(max_examples=150, deadline=None)
@given(RACKS, EVENTS)
def test_after_any_events_moves_end_with_all_replicas_placed_correctly(
    racks: list[str | None], events: list[tuple[int, int, int]]
) -> None:
    history = lived(racks, events)
    check_sane(history.state)
    history.all_nodes_return()
    settle(history.state)
    check_sane(history.state)
    check_settled(history.state)


@settings(max_examples=150, deadline=None)
@given(NO_RACKS, EVENTS)
def test_without_racks_every_node_ends_within_one_replica_of_the_mean(
    racks: list[str | None], events: list[tuple[int, int, int]]
) -> None:
    history = lived(racks, events)
    history.all_nodes_return()
    state = history.state
    settle(state)
    usable = state.usable_nodes()
    if any(len(assigned.replicas) > len(usable) for _, _, assigned in state.groups()):
        return
    counts = {node: held(state)[node] for node in usable}
    low, high = bounds(counts)
    assert all(low <= count <= high for count in counts.values())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), max_size=4),
    st.integers(1, 3),
)
def test_a_plan_for_new_nodes_copies_no_more_than_necessary(
    nodes: int, topics: list[tuple[int, int]], joining: int
) -> None:
    state = cluster_of(*range(nodes))
    for name, (partitions, factor) in zip(NAMES, topics, strict=False):
        create(state, name, partitions, min(factor, nodes))
    apply(state, [registration(nodes + number) for number in range(joining)])
    counts = held(state)
    low, high = bounds(counts)
    lack = sum(max(0, low - count) for count in counts.values())
    surplus = sum(max(0, count - high) for count in counts.values())
    copies = [move for move in plan_rebalance(state) if move.copies]
    assert len(copies) == max(lack, surplus)
    assert settle(state, limits=MoveLimits(at_once=1)) == len(copies)


@settings(max_examples=60, deadline=None)
@given(RACKS, EVENTS, st.integers(0, 9))
def test_a_node_that_can_leave_becomes_empty_and_is_removed(
    racks: list[str | None], events: list[tuple[int, int, int]], number: int
) -> None:
    history = lived(racks, events)
    history.all_nodes_return()
    state = history.state
    leaving = history.node(number)
    try:
        apply(state, decommission_node(state, leaving))
    except KafkaError:
        return
    settle(state)
    apply(state, remove_empty_nodes(state))
    assert leaving not in state.nodes
    assert state.partitions_of(leaving) == []


@settings(max_examples=60, deadline=None)
@given(RACKS, EVENTS)
def test_moves_respect_their_limits_and_take_one_replica_of_a_partition_at_a_time(
    racks: list[str | None], events: list[tuple[int, int, int]]
) -> None:
    state = lived(racks, events).state
    before = len(moving(state))
    moves = next_moves(state, MoveLimits(at_once=3, per_node=1))
    new = [move for move in moves if move.copies and move.group not in moving(state)]
    assert len(new) <= max(0, 3 - before)
    assert len({move.group for move in moves}) == len(moves)
    assert all(len(move.copies) == 1 for move in new)
    touched = [node for move in new for node in move.copies + move.removing]
    assert len(set(touched)) == len(touched)


@settings(max_examples=100, deadline=None)
@given(RACKS, EVENTS)
def test_equal_states_lead_to_equal_decisions_in_any_order_of_their_records(
    racks: list[str | None], events: list[tuple[int, int, int]]
) -> None:
    state = lived(racks, events).state
    snapshot = state.snapshot()
    stored = decode_record(encode_record(snapshot))
    assert stored == snapshot
    twin, turned = ClusterState(1), ClusterState(1)
    apply(twin, [stored])
    assert twin.snapshot() == snapshot
    assert twin.topics == state.topics
    backwards = {
        name: list(reversed(getattr(snapshot, name))) for name in ("topics", "nodes", "moved", "moves")
    }
    apply(turned, [type(snapshot)(node_configs=[], next_producer_id=0, **backwards)])

    gone = [node for node, info in state.nodes.items() if info.fenced]
    leaders = {group: assigned.replicas[-1] for _, group, assigned in state.groups()}
    voters = [info.replica for info in state.nodes.values()][:1]
    for other in (twin, turned):
        assert plan_rebalance(other, gone=gone) == plan_rebalance(state, gone=gone[::-1])
        assert next_moves(other, gone=gone) == next_moves(state, gone=gone)
        assert plan_leaders(other, leaders) == plan_leaders(state, dict(reversed(leaders.items())))
        assert metadata_voters(other, voters, other.alive_nodes()) == metadata_voters(
            state, voters, state.alive_nodes()
        )


@settings(max_examples=100, deadline=None)
@given(RACKS, EVENTS)
def test_a_record_applied_twice_changes_nothing_the_second_time(
    racks: list[str | None], events: list[tuple[int, int, int]]
) -> None:
    state = ClusterState(1)
    for record in lived(racks, events).records:
        apply(state, [record])
        once = state.snapshot()
        assert apply(state, [record]) == set()
        assert state.snapshot() == once


@settings(max_examples=100, deadline=None)
@given(RACKS, EVENTS, st.integers(0, 60))
def test_moves_that_are_replayed_from_any_point_lead_to_the_same_state(
    racks: list[str | None], events: list[tuple[int, int, int]], start: int
) -> None:
    history = lived(racks, [event for event in events if event[0] != DELETE])
    state = ClusterState(1)
    apply(state, history.records)
    once = state.snapshot()
    apply(state, history.records[min(start, len(history.records)) :])
    assert state.snapshot() == once
