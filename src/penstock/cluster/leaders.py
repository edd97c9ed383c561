"""Which replica should lead: the preferred one or, where that is not possible, one on the node that leads the least.

Groups elect their leaders; the metadata only has the preferred one, and the controller asks leaders to hand over. Only
a leader knows whether a replica has caught up, so callers that know pass it (`ready`).
"""

from collections.abc import Collection, Mapping

from penstock.cluster.assignments import Assignment
from penstock.cluster.decisions import known_topic
from penstock.cluster.state import ClusterState
from penstock.errors import ErrorCode, KafkaError
from penstock.types import GroupId

NO_LEADER = -1

Leaders = Mapping[GroupId, int]
"""The node that leads each group now; a group that is missing has no known leader."""

Ready = Mapping[GroupId, Collection[int]]
"""The replicas of each group that have caught up; in a group that is missing, all have."""


def plan_leaders(
    state: ClusterState, leaders: Leaders, ready: Ready | None = None
) -> list[tuple[GroupId, int]]:
    """Handovers, ordered by topic and partition: which group should be led by which node instead."""
    wanted = dict(_preferred_or_present(state, leaders, ready or {}))
    load = dict.fromkeys(state.alive_nodes(), 0)
    for leader, able in wanted.values():
        load |= {node: 0 for node in able if node not in load}
        load[leader] = load.get(leader, 0) + 1
    _even_out(wanted, load)
    return [(group, leader) for group, (leader, _) in wanted.items() if leader != leaders[group]]


def _preferred_or_present(
    state: ClusterState, leaders: Leaders, ready: Ready
) -> list[tuple[GroupId, tuple[int, tuple[int, ...]]]]:
    """For each group that has a leader: the node that should lead it, and others that could. No others, if it is the
    preferred one."""
    rows: list[tuple[GroupId, tuple[int, tuple[int, ...]]]] = []
    for _, group, assignment in state.groups():
        leader = leaders.get(group, NO_LEADER)
        if leader == NO_LEADER:
            continue
        able = _able(state, assignment, ready.get(group))
        if assignment.leader in able:
            rows.append((group, (assignment.leader, ())))
        elif leader in able or not able:
            rows.append((group, (leader, able)))
        else:
            rows.append((group, (able[0], able)))
    return rows


def _able(state: ClusterState, assignment: Assignment, ready: Collection[int] | None) -> tuple[int, ...]:
    """Nodes whose replicas could lead. One on a leaving node should not, nor a damaged one: it hands over as soon as
    another replica can lead."""
    there = tuple(
        member
        for member in assignment.members
        if (not state.nodes or state.is_available(member)) and (ready is None or member.node in ready)
    )
    whole = tuple(member for member in there if assignment.damage_of(member) is None) or there
    staying = tuple(member for member in whole if not state.nodes or state.nodes[member.node].usable)
    return tuple(member.node for member in staying or whole)


def _even_out(wanted: dict[GroupId, tuple[int, tuple[int, ...]]], load: dict[int, int]) -> None:
    """Terminates, because each handover reduces the sum of squares."""
    busy = True
    while busy:
        busy = False
        for group, (leader, able) in wanted.items():
            other = min(able, key=lambda node: (load[node], node), default=leader)
            if load[leader] - load[other] >= 2:
                load[leader] -= 1
                load[other] += 1
                wanted[group] = (other, able)
                busy = True


# --- ElectLeaders


def elect_preferred(
    state: ClusterState, topic: str, partition: int, leader: int, ready: Collection[int] | None = None
) -> int:
    """The node that should take over from `leader`. Raises the error of ElectLeaders if no node should or can."""
    assignment = _known(state, topic, partition)
    name = f"{topic}-{partition}"
    if leader == assignment.leader:
        raise KafkaError(
            ErrorCode.ELECTION_NOT_NEEDED, f"{name} is led by its preferred leader, node {leader}"
        )
    if leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"{name} has no leader that could hand over"
        )
    preferred = assignment.members[0]
    if state.nodes and not state.is_available(preferred):
        problem = "is not available"
    elif ready is not None and preferred.node not in ready:
        problem = "has not caught up"
    elif assignment.damage_of(preferred) is not None:
        problem = "holds a damaged replica"
    else:
        return preferred.node
    message = f"node {preferred.node}, the preferred leader of {name}, {problem}"
    raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)


def check_unclean(state: ClusterState, topic: str, partition: int, leader: int) -> None:
    """Always raises: a group elects by majority, and there is no other way to lead it."""
    _known(state, topic, partition)
    name = f"{topic}-{partition}"
    if leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{name} is led by node {leader}")
    message = (
        f"{name} has no majority of its replicas, and electing without one could lose acknowledged records"
    )
    raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)


def _known(state: ClusterState, topic: str, partition: int) -> Assignment:
    found = known_topic(state, topic)
    if not 0 <= partition < found.partitions:
        message = f"there is no partition {topic}-{partition}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return found.assignments[partition]
