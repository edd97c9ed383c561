"""Repairs damaged replicas of this node: transfers leadership to an intact replica, reports the damage to the
controller, and carries out the controller's decision. `penstock.cluster.damage` has the rules, and why they are safe.

A replica is damaged if wrong bytes were found in it (by a scrub, or because a follower could not store its entries), or
if its log could not be opened because it is corrupt or gone. Other disk errors, such as too few file descriptors, are
not damage: they pass, and the bytes are intact.

The metadata says which *life* a replica should be in (the target of a move, or the members of the group). This node
stores durably which life its replica is in. If that life is earlier, the node rebuilds the replica. If it is later,
because the move was cancelled, the node does not go back: it reports the requested life as damaged and proposes the
next one.
"""

import asyncio
import logging
from collections.abc import Collection

from penstock.cluster import Assignment, ClusterState, why_not_rebuilt
from penstock.errors import CorruptLog, PenstockError, StorageError
from penstock.node.metadata.controller import Controller
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import LogLost, Offline, PartitionTable
from penstock.raft import RaftRefused
from penstock.types import GroupId, Replica, TopicPartition

log = logging.getLogger("penstock.node")

ROUNDS_BEFORE_ERROR = 10
"""An obstacle to a rebuild is logged after this many rounds of half a second. Common obstacles are over by then:
another replica that is being rebuilt, a node that is being restarted."""
TEXTS_MAX = 20
"""Different obstacles of one replica that are counted: errors of a disk may name another file each time."""


class ReplicaRepair:
    """Repairs the damaged replicas of this node."""

    def __init__(
        self, *, me: Replica, state: ClusterState, partitions: PartitionTable, controller: Controller
    ) -> None:
        self._me = me
        self._state = state
        self._partitions = partitions
        self._controller = controller
        self._reports: dict[GroupId, asyncio.Task[None]] = {}
        self._obstacles: dict[TopicPartition, dict[str, int]] = {}
        """How many rounds each obstacle has lasted, by damaged replica: each is logged once."""
        self._sound: dict[GroupId, Assignment] = {}
        """Replicas that were as assigned, with the assignment of that time: most replicas, in nearly every round."""

    def reports(self) -> Collection[asyncio.Task[None]]:
        """Reports that are under way."""
        return self._reports.values()

    def look(self) -> None:
        """One round."""
        replicas = list(self._partitions.replicas())
        for name, group, found in replicas:
            known = self._sound.get(group)
            if known is not None and known is self._state.assignment(group) and not _is_damaged(found):
                continue
            self._sound.pop(group, None)
            try:
                self._mind(name, group, found)
            except StorageError as trouble:
                self._say(name, f"cannot be rebuilt now: {trouble}", after_rounds=1)
            except Exception:
                log.exception("%s: a bug in its repair; other replicas are not affected", name)
        if len(self._sound) > len(replicas):
            self._sound.clear()
        for partition in self._partitions.own():
            # The metadata log cannot be rebuilt like the others, but another node can lead it.
            if partition.damage is not None:
                self._hand_over(partition, ())

    def _mind(self, name: TopicPartition, group: GroupId, found: Partition | Offline) -> None:
        assignment = self._state.assignment(group)
        assigned = None if assignment is None else _assigned(assignment, self._me)
        if assignment is None or assigned is None:
            return
        if assigned == self._partitions.replica(group) and not assignment.damaged and not _is_damaged(found):
            self._obstacles.pop(name, None)
            self._sound[group] = assignment
            return
        wanted, life = assigned.life_of(self._me), self._partitions.replica(group).life_of(self._me)
        if wanted is None or life is None:
            # The replica is of a data folder that this node no longer has: the planner replaces it without a report.
            return
        if wanted > life:
            self._renew(name, found, assignment, wanted)
        elif wanted < life or _is_damaged(found) or assignment.damage_of(assigned) is not None:
            self._report(name, group, assignment, assigned, self._me.in_life(life + 1))
            if isinstance(found, Partition):
                self._hand_over(found, assignment.damaged_nodes)

    # --- repairs

    def _renew(
        self, name: TopicPartition, found: Partition | Offline, assignment: Assignment, life: int
    ) -> None:
        if isinstance(found, Partition):
            if found.leads:
                self._hand_over(found, assignment.damaged_nodes)
                return
            # Other replicas may have failed since the decision, and a damaged replica that takes part is better than
            # none. The metadata may be `fence_after_ms` old, so the connections count: one ends with its process.
            obstacle = why_not_rebuilt(self._state, assignment, found.replica.me, self._away(assignment))
            if obstacle is not None:
                self._say(name, f"damaged, and not rebuilt now: {obstacle}")
                return
        topic = self._state.topics[name.topic]
        log.warning("%s is rebuilt from the other replicas", name)
        self._partitions.renew(name, life, topic.config)

    def _away(self, assignment: Assignment) -> list[int]:
        """Nodes of other replicas that are not connected with this one now."""
        others = [member for member in assignment.members if member.node != self._me.node]
        return [member.node for member in others if not self._partitions.is_connected(member)]

    def _hand_over(self, partition: Partition, damaged: Collection[int]) -> None:
        """Transfers leadership to a replica that has kept up and is not known to be damaged. Without one, this replica
        goes on leading: no other one has more entries."""
        if not partition.leads or not partition.is_replicated:
            return
        others = [
            node
            for node in partition.replica.in_sync_nodes()
            if node != self._me.node and node not in damaged
        ]
        if not others:
            self._say(
                partition.name, "damaged, and no other replica is known to be intact: it goes on leading"
            )
            return
        config = partition.replica.group_config
        successors = [] if config is None else [one for one in config.voters if one.node in others]
        try:
            for successor in successors[:1]:
                partition.replica.consensus.transfer(successor)
                log.warning("%s: damaged here, transfers leadership to node %s", partition.name, successor)
        except RaftRefused as not_now:
            log.debug("%s: %s", partition.name, not_now)

    def _report(
        self,
        name: TopicPartition,
        group: GroupId,
        assignment: Assignment,
        assigned: Replica,
        renewal: Replica,
    ) -> None:
        """Reports the damage until it is in the metadata. If the replica cannot be rebuilt then, an error is logged."""
        known = assignment.damage_of(assigned)
        if known is not None and known.renewal == renewal.incarnation:
            obstacle = why_not_rebuilt(self._state, assignment, assigned)
            if obstacle is not None:
                self._say(name, f"damaged, and not rebuilt: {obstacle}")
        elif group not in self._reports:
            report = self._tell_controller(name, group, assigned, renewal)
            self._reports[group] = asyncio.get_running_loop().create_task(report)

    async def _tell_controller(
        self, name: TopicPartition, group: GroupId, assigned: Replica, renewal: Replica
    ) -> None:
        try:
            await self._controller.report_damaged(group, assigned, renewal.incarnation)
        except PenstockError as trouble:
            log.info(
                "%s: its damage could not be reported yet, the next round tries again: %s", name, trouble
            )
        finally:
            self._reports.pop(group, None)

    def _say(self, name: TopicPartition, what: str, *, after_rounds: int = ROUNDS_BEFORE_ERROR) -> None:
        rounds = self._obstacles.setdefault(name, {})
        if len(rounds) >= TEXTS_MAX:
            rounds.clear()
        rounds[what] = rounds.get(what, 0) + 1
        if rounds[what] == after_rounds:
            log.error("%s: %s", name, what)


def _assigned(assignment: Assignment, me: Replica) -> Replica | None:
    """The replica that this node should hold."""
    members = assignment.target_members or assignment.members
    return next((member for member in members if member.node == me.node), None)


def _is_damaged(found: Partition | Offline) -> bool:
    if isinstance(found, Partition):
        return found.damage is not None
    return isinstance(found, CorruptLog | LogLost)
