"""The replicas of a partition, and how they change.

A move has three steps. The controller records a target (PartitionMoveStarted). The partition's leader changes the
members in the group's own log: learners first, then the configuration. It reports the configuration once that is
committed (PartitionMoved), and only then a replica that has left may be deleted. The metadata is never ahead of the
group: it has the members that the group's leader last reported, and the target.

1. `replicas` changes by reports only, never by a request.
2. Reports count in the order of the group's log, whenever they arrive.
3. A move ends with a report, also a cancelled one: the metadata does not know how far the leader had got.
"""

from collections.abc import Sequence

import msgspec

from penstock.cluster.records import (
    NO_INDEX,
    UNKNOWN_INCARNATION,
    PartitionMoved,
    PartitionMoveStarted,
    ReplicaDamaged,
)
from penstock.types import GroupId, NodeId, Replica

replace = msgspec.structs.replace


class Damage(msgspec.Struct, frozen=True):
    """A replica that has lost or damaged entries, and the incarnation under which its node would rebuild it."""

    replica: Replica
    renewal: int


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one partition. The preferred leader is the first one.

    `replicas` are those that the group's leader reported last (or the founders); `target` are those of a move, and
    None when no move is under way. `incarnations` and `target_incarnations` are parallel to them. `config_index` is the
    index of the reported configuration in the group's log; -1 while the group has its founding configuration.
    `damaged` are the present and future members that reported damage.
    """

    replicas: tuple[int, ...]
    incarnations: tuple[int, ...] = ()
    target: tuple[int, ...] | None = None
    target_incarnations: tuple[int, ...] = ()
    config_index: int = NO_INDEX
    damaged: tuple[Damage, ...] = ()

    def damage_of(self, replica: Replica) -> Damage | None:
        return next((damage for damage in self.damaged if damage.replica == replica), None)

    @property
    def damaged_nodes(self) -> tuple[int, ...]:
        """Nodes whose present replica is damaged."""
        return tuple(member.node for member in self.members if self.damage_of(member) is not None)

    @property
    def leader(self) -> int:
        """The preferred leader."""
        return self.replicas[0]

    @property
    def isr(self) -> tuple[int, ...]:
        return self.replicas

    @property
    def members(self) -> tuple[Replica, ...]:
        return paired(self.replicas, self.incarnations)

    @property
    def target_members(self) -> tuple[Replica, ...]:
        """The members that the group is to have after the move; empty when no move is under way."""
        return () if self.target is None else paired(self.target, self.target_incarnations)

    @property
    def founders(self) -> tuple[Replica, ...]:
        """The group's first configuration, for a founder whose log is still empty.

        Empty once the group has moved: a replica with an empty log then has lost its log or is new, and must neither
        vote nor campaign until the leader sends it the configuration. (If the founders were always returned, nodes that
        gave a partition away and get it back later could elect one of themselves, with an empty log.)
        """
        return self.members if self.config_index == NO_INDEX else ()

    @property
    def future(self) -> tuple[int, ...]:
        """The replicas once everything that is under way is done."""
        return self.replicas if self.target is None else self.target

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(node for node in self.target or () if node not in self.replicas)

    @property
    def removing(self) -> tuple[int, ...]:
        if self.target is None:
            return ()
        return tuple(node for node in self.replicas if node not in self.target)

    @property
    def renewing(self) -> tuple[int, ...]:
        """Nodes that stay and whose replica is being rebuilt."""
        return tuple(
            member.node
            for member in self.target_members
            if member.node in self.replicas and member not in self.members
        )

    @property
    def shown(self) -> tuple[int, ...]:
        """All replicas as Kafka shows them during a move: those that stay or are added, then those that are removed."""
        return self.future + self.removing


def paired(nodes: Sequence[int], incarnations: Sequence[int]) -> tuple[Replica, ...]:
    known = incarnations or (UNKNOWN_INCARNATION,) * len(nodes)
    return tuple(Replica(NodeId(node), number) for node, number in zip(nodes, known, strict=True))


def after_report(now: Assignment, reported: Assignment, index: int) -> Assignment:
    """A move is done when the report equals its target. A report older than the last one changes nothing else: it
    occurs when a log is read again, after the record of the target that it fulfilled."""
    members = frozenset(reported.members)
    if now.target is not None and members == frozenset(now.target_members):
        now = replace(now, target=None, target_incarnations=())
    if NO_INDEX < index < now.config_index:
        return now
    if members != frozenset(now.members):
        index = max(index, 0)
    staying = frozenset(reported.members + now.target_members)
    return replace(
        now,
        replicas=reported.replicas,
        incarnations=reported.incarnations,
        config_index=max(now.config_index, index),
        damaged=tuple(damage for damage in now.damaged if damage.replica in staying),
    )


def with_damage(now: Assignment, damage: Damage) -> Assignment:
    others = tuple(known for known in now.damaged if known.replica != damage.replica)
    return replace(now, damaged=(*others, damage))


def adopted(assignment: Assignment, node_id: int, incarnation: int) -> Assignment:
    def known(nodes: Sequence[int], incarnations: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            incarnation if (node, number) == (node_id, UNKNOWN_INCARNATION) else number
            for node, number in zip(nodes, incarnations, strict=True)
        )

    return replace(
        assignment,
        incarnations=known(assignment.replicas, assignment.incarnations),
        target_incarnations=known(assignment.target or (), assignment.target_incarnations),
    )


def as_moved(group: GroupId, assignment: Assignment) -> PartitionMoved:
    return PartitionMoved(
        topic_id=group.topic_id,
        partition=group.partition,
        replicas=list(assignment.replicas),
        incarnations=list(assignment.incarnations),
        index=assignment.config_index,
    )


def as_damaged(group: GroupId, damage: Damage) -> ReplicaDamaged:
    return ReplicaDamaged(
        topic_id=group.topic_id,
        partition=group.partition,
        node_id=damage.replica.node,
        incarnation=damage.replica.incarnation,
        renewal=damage.renewal,
    )


def as_started(group: GroupId, assignment: Assignment) -> PartitionMoveStarted:
    return PartitionMoveStarted(
        topic_id=group.topic_id,
        partition=group.partition,
        replicas=list(assignment.target or ()),
        incarnations=list(assignment.target_incarnations),
    )
