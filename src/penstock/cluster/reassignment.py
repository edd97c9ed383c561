"""AlterPartitionReassignments and ListPartitionReassignments, as Kafka answers them.

A reassignment is a move by an operator: any number of replicas at once, and also a change of the replication factor.
Balancing does not undo it while the cluster is level; otherwise it may move the partition again.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from penstock.cluster.assignments import Assignment
from penstock.cluster.decisions import check_memory_factor, known_topic
from penstock.cluster.moves import reordered
from penstock.cluster.placement import check_machines, check_replicas, wrong_assignment
from penstock.cluster.records import MetadataRecord, PartitionMoveCancelled, PartitionMoveStarted
from penstock.cluster.state import ClusterState
from penstock.errors import ErrorCode, KafkaError
from penstock.types import GroupId, Replica


class Reassignment(msgspec.Struct, frozen=True, kw_only=True):
    """A move under way as Kafka shows it: `replicas` are all old and new ones."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def reassign(
    state: ClusterState,
    topic: str,
    partition: int,
    replicas: Sequence[int] | None,
    *,
    nodes: Sequence[int] = (),
    may_change_factor: bool = True,
) -> list[MetadataRecord]:
    """Moves a partition to these replicas; None cancels the move under way. `nodes` are the nodes that exist while none
    has registered."""
    found = known_topic(state, topic)
    group = GroupId(found.topic_id, partition)
    assignment = state.assignment(group)
    if assignment is None:
        message = f"there is no partition {topic}-{partition}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if replicas is None:
        return _cancel(topic, group, assignment)
    _check_target(state, topic, partition, assignment, replicas, nodes)
    factor = len(assignment.replicas)
    if found.config.memory:
        check_memory_factor(topic, len(replicas))
    if len(replicas) != factor and not may_change_factor:
        message = (
            f"{topic}-{partition} has {factor} replicas, and the request does not allow a change of that"
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return _start(state, group, assignment, replicas)


def list_reassignments(
    state: ClusterState, wanted: Mapping[str, Collection[int]] | None = None
) -> list[Reassignment]:
    """All that are under way, or those of the wanted partitions. A replica that is rebuilt on its own node is not one:
    Kafka's tools would show no change."""
    return [
        Reassignment(
            topic=topic.name,
            partition=group.partition,
            replicas=assignment.shown,
            adding=assignment.adding,
            removing=assignment.removing,
        )
        for topic, group, assignment in state.groups()
        if (assignment.adding or assignment.removing)
        and (wanted is None or group.partition in wanted.get(topic.name, ()))
    ]


def _cancel(topic: str, group: GroupId, assignment: Assignment) -> list[MetadataRecord]:
    if not assignment.adding and not assignment.removing:
        message = f"{topic}-{group.partition} is not being moved"
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message)
    return [PartitionMoveCancelled(topic_id=group.topic_id, partition=group.partition)]


def _check_target(
    state: ClusterState,
    topic: str,
    partition: int,
    assignment: Assignment,
    replicas: Sequence[int],
    nodes: Sequence[int],
) -> None:
    """Nodes that hold the partition are allowed in any state; new ones must be usable."""
    check_replicas(partition, replicas, sorted(state.nodes) if state.nodes else nodes)
    if set(replicas) != set(assignment.replicas):  # an order may always be changed
        check_machines(state, partition, replicas)
    for node in replicas:
        info = state.nodes.get(node)
        if node in assignment.replicas or info is None or info.usable:
            continue
        problem = "is being decommissioned" if info.decommissioning else "is not available"
        raise wrong_assignment(f"{topic}-{partition} cannot go to node {node}, which {problem}")


def _start(
    state: ClusterState, group: GroupId, assignment: Assignment, replicas: Sequence[int]
) -> list[MetadataRecord]:
    if assignment.target is None and tuple(replicas) == assignment.replicas:
        return []
    if assignment.target is None and set(replicas) == set(assignment.replicas):
        return [reordered(group, assignment, replicas)]
    held: dict[int, Replica] = {
        member.node: member for member in assignment.members + assignment.target_members
    }
    incarnations = [_incarnation(state, node, held.get(node)) for node in replicas]
    return [
        PartitionMoveStarted(
            topic_id=group.topic_id,
            partition=group.partition,
            replicas=list(replicas),
            incarnations=incarnations,
        )
    ]


def _incarnation(state: ClusterState, node: int, replica: Replica | None) -> int:
    """A replica that stays keeps its incarnation; a new one, or one whose node has lost its data, gets the node's."""
    info = state.nodes.get(node)
    if replica is not None and (info is None or replica.life_of(info.replica) is not None):
        return replica.incarnation
    assert info is not None, "a node that does not hold the partition was checked to be registered"
    return info.incarnation
