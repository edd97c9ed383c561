"""Moves of partitions: planned, started by records, and ended by the leader's report."""

from collections.abc import Collection, Sequence
from enum import Enum

import msgspec

from penstock.cluster.assignments import Assignment
from penstock.cluster.records import NO_INDEX, MetadataRecord, PartitionMoved, PartitionMoveStarted
from penstock.cluster.state import ClusterState
from penstock.types import GroupId, Replica


class MoveReason(Enum):
    """The reasons for moves, most urgent first."""

    WIPED = "a node lost its data"
    DAMAGED = "a replica is damaged, or its files are missing"
    GONE = "a node is gone"
    LEAVING = "a node is being decommissioned"
    RACKS = "replicas share a rack"
    BALANCE = "nodes hold unequal numbers of replicas"
    LEADERS = "nodes lead unequal numbers of partitions"


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One partition changes one replica (or, for LEADERS, only the order of its replicas).

    `renewed` is a node that stays and whose replica is rebuilt, because its data is lost.
    """

    topic: str
    group: GroupId
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    reason: MoveReason
    renewed: int | None = None

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(node for node in self.target if node not in self.replicas)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.target)

    @property
    def copies(self) -> tuple[int, ...]:
        """The nodes to which the whole data of the partition must be copied."""
        return self.adding if self.renewed is None else (*self.adding, self.renewed)


class MoveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many moves may run at once: copying takes disk and network from producers and consumers."""

    at_once: int = 4
    per_node: int = 2


def still_possible(moves: Sequence[Move], planned_on: ClusterState, now: ClusterState) -> list[Move]:
    """Those of the planned moves that may begin in the state `now`: no node and no replica of theirs has changed."""
    if now.nodes != planned_on.nodes:
        return []
    return [move for move in moves if now.assignment(move.group) == planned_on.assignment(move.group)]


def start_moves(state: ClusterState, moves: Sequence[Move]) -> list[MetadataRecord]:
    """The records that start moves. The state must be the one that they were planned on."""
    records: list[MetadataRecord] = []
    for move in moves:
        assignment = state.assignment(move.group)
        if assignment is not None:
            records.append(_as_record(state, assignment, move))
    return records


def _as_record(state: ClusterState, assignment: Assignment, move: Move) -> MetadataRecord:
    held: dict[int, Replica] = {
        member.node: member for member in assignment.members + assignment.target_members
    }
    incarnations = [
        renewal(state, assignment, node, held.get(node))
        if node == move.renewed or node not in held
        else held[node].incarnation
        for node in move.target
    ]
    if move.renewed is None and assignment.target is None and set(move.target) == set(assignment.replicas):
        # The group does not change, so no report is needed.
        return reordered(move.group, assignment, move.target)
    return PartitionMoveStarted(
        topic_id=move.group.topic_id,
        partition=move.group.partition,
        replicas=list(move.target),
        incarnations=incarnations,
    )


def renewal(state: ClusterState, assignment: Assignment, node: int, replica: Replica | None) -> int:
    """The incarnation under which a node will hold a partition that it has not held yet, or only as `replica`."""
    home = state.nodes[node].replica
    damage = None if replica is None else assignment.damage_of(replica)
    if damage is None or Replica(home.node, damage.renewal).life_of(home) is None:
        return home.incarnation
    return damage.renewal


def reordered(group: GroupId, assignment: Assignment, order: Sequence[int]) -> PartitionMoved:
    """The same members, with another preferred leader."""
    incarnations = dict(zip(assignment.replicas, assignment.incarnations, strict=True))
    return PartitionMoved(
        topic_id=group.topic_id,
        partition=group.partition,
        replicas=list(order),
        incarnations=[incarnations[node] for node in order],
        index=NO_INDEX,
    )


def report_moved(
    state: ClusterState, group: GroupId, voters: Collection[Replica], index: int
) -> list[MetadataRecord]:
    """A leader reports that its group's committed configuration is `voters`, at `index` of its log.

    Leaders report whenever the metadata has other members, or waits for the end of a move. No record results from a
    report that is older than the last one, or of an unknown group.

    A group loses members without a move only if an operator let a replica continue alone, because the others were lost.
    Then a move back to all of them begins: the planner has the lost replicas rebuilt, there or on other nodes.
    """
    assignment = state.assignment(group)
    if assignment is None or not voters or NO_INDEX < index < assignment.config_index:
        return []
    reported = frozenset(voters)
    if reported == frozenset(assignment.target_members):
        members = assignment.target_members
    elif reported == frozenset(assignment.members):
        return []
    else:
        members = _ordered(assignment, voters)
    moved = PartitionMoved(
        topic_id=group.topic_id,
        partition=group.partition,
        replicas=[member.node for member in members],
        incarnations=[member.incarnation for member in members],
        index=index,
    )
    if assignment.target is None and reported < frozenset(assignment.members):
        return [moved, _all_again(group, assignment)]
    return [moved]


def _all_again(group: GroupId, assignment: Assignment) -> PartitionMoveStarted:
    return PartitionMoveStarted(
        topic_id=group.topic_id,
        partition=group.partition,
        replicas=list(assignment.replicas),
        incarnations=list(assignment.incarnations),
    )


def _ordered(assignment: Assignment, voters: Collection[Replica]) -> tuple[Replica, ...]:
    """For a configuration that is no target any more (a later one replaced it): keeps the known order of nodes."""
    order = {node: number for number, node in enumerate(assignment.shown)}
    return tuple(sorted(voters, key=lambda voter: (order.get(voter.node, len(order)), voter)))
