"""Cluster states for decisions: registered nodes, topics, and leaders that carry out the metadata."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import pytest

from penstock.cluster import (
    Assignment,
    ClusterState,
    Endpoint,
    MetadataRecord,
    MoveLimits,
    NewTopic,
    NodeRegistered,
    PlacementRules,
    decisions,
    next_moves,
    report_moved,
    start_moves,
)
from penstock.cluster.nodes import rack_of
from penstock.errors import ErrorCode, KafkaError
from penstock.types import GroupId, NodeId, Replica

RULES = PlacementRules(nodes=())


def registration(
    node_id: int, *, rack: str | None = None, machine: str | None = None, incarnation: int | None = None
) -> NodeRegistered:
    return NodeRegistered(
        node_id=node_id,
        incarnation=incarnation or 100 + node_id,
        kafka=Endpoint(f"host{node_id}", 9092),
        cluster=Endpoint(f"host{node_id}", 7000),
        rack=rack,
        machine=machine,
        version="1",
    )


def replica(node_id: int, incarnation: int | None = None) -> Replica:
    return Replica(NodeId(node_id), incarnation or 100 + node_id)


def apply(state: ClusterState, records: Sequence[MetadataRecord]) -> set[str]:
    return {name for record in records for name in state.apply(record)}


def cluster_of(
    *nodes: int, racks: Mapping[int, str] | None = None, machines: Mapping[int, str] | None = None
) -> ClusterState:
    state = ClusterState(node_id=nodes[0] if nodes else 1)
    apply(
        state,
        [
            registration(node, rack=(racks or {}).get(node), machine=(machines or {}).get(node))
            for node in nodes
        ],
    )
    return state


def create(state: ClusterState, name: str, partitions: int = 1, factor: int = 1) -> None:
    new_topic = NewTopic(name=name, topic_id=topic_id(name), partitions=partitions, replication_factor=factor)
    apply(state, decisions.create_topic(state, new_topic, RULES))


def assign(state: ClusterState, name: str, *assignments: Sequence[int]) -> None:
    new_topic = NewTopic(name=name, topic_id=topic_id(name), assignments=dict(enumerate(assignments)))
    apply(state, decisions.create_topic(state, new_topic, RULES))


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16, b"\0"))


def group(name: str, partition: int = 0) -> GroupId:
    return GroupId(topic_id(name), partition)


def assignment(state: ClusterState, name: str, partition: int = 0) -> Assignment:
    return state.topics[name].assignments[partition]


def replicas(state: ClusterState, name: str) -> list[tuple[int, ...]]:
    return [assignment.replicas for assignment in state.topics[name].assignments]


def held(state: ClusterState) -> dict[int, int]:
    """Replicas per registered node, counted from scratch."""
    counts = dict.fromkeys(sorted(state.nodes), 0)
    for _, _, assigned in state.groups():
        for node in assigned.future:
            counts[node] = counts.get(node, 0) + 1
    return counts


def led(state: ClusterState) -> dict[int, int]:
    counts = dict.fromkeys(sorted(state.nodes), 0)
    for _, _, assigned in state.groups():
        counts[assigned.future[0]] = counts.get(assigned.future[0], 0) + 1
    return counts


def crowding(state: ClusterState, nodes: Sequence[int]) -> int:
    """How unevenly replicas are on racks: the sum of the squares of replicas per rack."""
    racks = [rack_of(node, state.nodes.get(node)) for node in nodes]
    return sum(racks.count(rack) for rack in racks)


def least_crowding(state: ClusterState, factor: int) -> int:
    """The value of the best choice of nodes: always the next one from the rack that has the fewest."""
    chosen: list[int] = []
    for _ in range(factor):
        rest = [node for node in state.usable_nodes() if node not in chosen]
        chosen.append(min(rest, key=lambda node: crowding(state, [*chosen, node])))
    return crowding(state, chosen)


def moving(state: ClusterState) -> list[GroupId]:
    return [moved for _, moved, assigned in state.groups() if assigned.target is not None]


def arrival(state: ClusterState, moved: GroupId) -> list[MetadataRecord]:
    """The report of the group's leader that the move is finished."""
    assigned = state.assignment(moved)
    assert assigned is not None
    return report_moved(state, moved, assigned.target_members, assigned.config_index + 10)


def finish(state: ClusterState, moved: GroupId) -> None:
    apply(state, arrival(state, moved))


def settle(
    state: ClusterState,
    *,
    gone: Collection[int] = (),
    limits: MoveLimits = MoveLimits(),  # noqa: B008 - frozen
    most_rounds: int = 2000,
) -> int:
    """Runs the controller and the leaders until nothing is left to do. Returns the number of copies."""
    copies = 0
    for _ in range(most_rounds):
        moves = next_moves(state, limits, gone=gone)
        copies += sum(len(move.copies) for move in moves)
        apply(state, start_moves(state, moves))
        under_way = moving(state)
        if not moves and not under_way:
            return copies
        if under_way:
            finish(state, under_way[0])
    raise AssertionError("the moves do not come to an end")


def refused(code: ErrorCode, part: str = "") -> "pytest.RaisesExc[KafkaError]":
    return pytest.raises(KafkaError, check=lambda error: error.code is code and part in error.message)
