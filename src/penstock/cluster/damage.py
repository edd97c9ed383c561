"""Damaged replicas, and when they may be rebuilt.

A node that finds bit rot in a replica, or misses its files, reports it (ReplicaDamaged). The planner then moves the
partition from that replica to another *life* of it on the same node: for Raft another member of the group, with an
empty log. Why that is safe:

1. The new life is another identity (`Replica.in_life`), which its node has never used for this group and stores on the
   disk, beside its vote, before it sends anything under it. Votes and acknowledgements of the old life do not count
   for it.
2. The new life joins as every new member does: as a learner, and with a vote only in a configuration that is committed
   after it has caught up. Until then decisions need a majority of the old voters, without the damaged one: so the
   rebuild begins only where a majority of them is available and intact (`may_rebuild`). A node that died a moment ago
   is not fenced yet, and may have been the only other one with the last records: so nodes that are not seen or not
   connected at this moment (`away`) do not count, neither when the move begins nor when the node carries it out.
3. The node moves the old files aside and does not delete them: if the other replicas turn out to be damaged as well,
   they can be used.
4. A damaged replica that leads hands over first, to one that has kept up and is not known to be damaged. Where there is
   none, it continues to lead: no other replica has more entries.

Until then a damaged replica takes part. Its votes and flushed entries count, and damaged bytes cannot spread: every
receiver compares checksums.
"""

from collections.abc import Collection

from penstock.cluster.assignments import Assignment, Damage
from penstock.cluster.records import MetadataRecord, ReplicaDamaged
from penstock.cluster.state import ClusterState
from penstock.types import GroupId, Replica


def report_damaged(
    state: ClusterState, group: GroupId, replica: Replica, renewal: int
) -> list[MetadataRecord]:
    """A node reports that its replica is damaged or missing. No record results if the replica is not a member, or if
    the damage is known."""
    assignment = state.assignment(group)
    if assignment is None or replica not in assignment.members + assignment.target_members:
        return []
    if assignment.damage_of(replica) == Damage(replica, renewal):
        return []
    return [
        ReplicaDamaged(
            topic_id=group.topic_id,
            partition=group.partition,
            node_id=replica.node,
            incarnation=replica.incarnation,
            renewal=renewal,
        )
    ]


def intact_others(
    state: ClusterState, assignment: Assignment, replica: Replica, away: Collection[int]
) -> list[Replica]:
    """Voters on other nodes that are available and not known to be damaged."""
    return [
        member
        for member in assignment.members
        if member.node != replica.node
        and member.node not in away
        and state.is_available(member)
        and assignment.damage_of(member) is None
    ]


def may_rebuild(
    state: ClusterState, assignment: Assignment, replica: Replica, away: Collection[int] = ()
) -> bool:
    """Whether enough others are available and intact to continue without this replica, and to copy from (2)."""
    return len(intact_others(state, assignment, replica, away)) * 2 > len(assignment.members)


def why_not_rebuilt(
    state: ClusterState, assignment: Assignment, replica: Replica, away: Collection[int] = ()
) -> str | None:
    """Why a damaged replica cannot be rebuilt, for log lines and commands; None if it can."""
    if may_rebuild(state, assignment, replica, away):
        return None
    count = len(assignment.members)
    if count == 1:
        return "it is the only copy: restore it from a backup"
    if count == 2:
        return "with two copies, the other one cannot decide alone: reassign the partition to other nodes"
    others = intact_others(state, assignment, replica, away)
    nodes = ", ".join(str(member.node) for member in others) or "none"
    return (
        f"of its {count} copies, these others are available and intact: {nodes}; {count // 2 + 1} are needed"
    )
