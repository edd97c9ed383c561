"""Replicas whose bytes are not what they acknowledged, and when they may be made anew.

A node that finds rot in a replica, or misses its files, says so (ReplicaDamaged). The planner then moves the partition
from that replica to another *life* of it on the same node: another member of the group as far as Raft knows, with
nothing in its log. Why that is safe:

1. The new life is another identity (`Replica.in_life`), which its node has never used for this group and keeps on the
   disk, beside its vote, before it says anything under it. What the old one voted and acknowledged is nobody's.
2. The new life joins as every newcomer does: it learns, and votes only by a configuration that is committed when it has
   caught up. Until then decisions need a majority of the old voters, of whom the damaged one takes no more part: so it
   is begun only where a majority of them is there and whole without it (`may_renew`). A node that died a moment ago is
   not fenced yet, and may have been the only other one with the last records: so those who are not seen or not
   connected at this moment (`away`) do not count, neither when the move is begun nor when its node carries it out.
3. The old bytes are moved aside by their node, and deleted by nobody: should the others turn out to be damaged as well,
   they are still there.
4. A replica that leads hands over first, to one that has kept up and is not known to be damaged. Where there is none,
   it goes on as it is: nobody has more than it has.

Rot does not keep a replica from taking part until then. Votes and flushed entries are what it says they are, and what
has rotted cannot spread: whoever is sent it compares checksums.
"""

from collections.abc import Collection

from penstock.cluster.assignments import Assignment, Damage
from penstock.cluster.records import MetadataRecord, ReplicaDamaged
from penstock.cluster.state import ClusterState
from penstock.types import GroupId, Replica


def report_damaged(
    state: ClusterState, group: GroupId, replica: Replica, renewal: int
) -> list[MetadataRecord]:
    """A node says that it holds a damaged replica, or none although it should. Nothing follows for one that is no
    member, nor if it has been said before."""
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


def whole_others(
    state: ClusterState, assignment: Assignment, replica: Replica, away: Collection[int]
) -> list[Replica]:
    """Voters on other nodes that are there and not known to be damaged."""
    return [
        member
        for member in assignment.members
        if member.node != replica.node
        and member.node not in away
        and state.is_there(member)
        and assignment.damage_of(member) is None
    ]


def may_renew(
    state: ClusterState, assignment: Assignment, replica: Replica, away: Collection[int] = ()
) -> bool:
    """Whether enough others are there and whole to go on without this replica, and to copy from (2)."""
    return len(whole_others(state, assignment, replica, away)) * 2 > len(assignment.members)


def why_not_renewed(
    state: ClusterState, assignment: Assignment, replica: Replica, away: Collection[int] = ()
) -> str | None:
    """For people: what keeps a damaged replica from being made anew; None if nothing does."""
    if may_renew(state, assignment, replica, away):
        return None
    count = len(assignment.members)
    if count == 1:
        return "it is the only copy: restore it from a backup"
    if count == 2:
        return "with two copies, the other one cannot decide alone: reassign the partition to other nodes"
    others = whole_others(state, assignment, replica, away)
    nodes = ", ".join(str(member.node) for member in others) or "none"
    return f"of its {count} copies, others that are there and whole: {nodes}; expected {count // 2 + 1}"
