"""The periodic work of a partition's leader for its group: it changes the members as the metadata says, announces which
replicas are in sync, and transfers leadership to the preferred leader. Each round also repairs the damaged replicas of
this node (`repair`), whichever node leads them.

A change of members follows the order that keeps data safe: the group changes in its own log, then its leader reports
the change, and a replica that has left may delete its files only when the report is in the metadata.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from penstock.cluster import Assignment, ClusterState
from penstock.errors import PenstockError, ProtocolViolation
from penstock.node.metadata.controller import Controller
from penstock.node.parts import Part
from penstock.node.replication.leader_announcer import LeaderAnnouncer
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.replication.repair import ReplicaRepair
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.raft import RaftRefused
from penstock.types import GroupId, Replica

log = logging.getLogger("penstock.node")

ROUND_SECONDS = 0.5
PARTITIONS_PER_TURN = 200
"""Partitions that are looked after before other work gets its turn; each takes about 20 µs, and 2 µs where nothing has
changed."""
FOUNDING = -1
ROUNDS_IN_SYNC_MIN = 10
"""A preferred leader gets the leadership when it was in sync for this many rounds: a node that has just started is
busy, and every transfer costs clients a retry."""


class ReplicaReconciler(Part):
    """Does the periodic work for all partitions that this node leads."""

    def __init__(
        self,
        *,
        me: Replica,
        state: ClusterState,
        partitions: PartitionTable,
        controller: Controller,
        announcer: LeaderAnnouncer,
        alive: Callable[[], Collection[int]],
        hands_over: bool,
    ) -> None:
        self._me = me
        self._state = state
        self._partitions = partitions
        self._controller = controller
        self._announcer = announcer
        self._alive = alive
        self._hands_over = hands_over
        self._reports: dict[object, asyncio.Task[None]] = {}
        self._rounds_in_sync: dict[object, int] = {}
        self._settled: dict[GroupId, Assignment] = {}
        """Partitions that needed nothing in their last round, with the assignment of that time. Until that changes, or
        the replicas in sync do, they need nothing more: most partitions, in nearly every round."""
        self._repair = ReplicaRepair(me=me, state=state, partitions=partitions, controller=controller)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._rounds())

    async def stop(self) -> None:
        tasks = [*self._reports.values(), *self._repair.reports()]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            with logged_bugs("the repair of replicas"):
                self._repair.look()
            with logged_bugs("the reconciliation of replicas"):
                await self._look_after_all()

    async def _look_after_all(self) -> None:
        partitions = list(self._partitions.online())
        if len(self._settled) > len(partitions):
            self._settled.clear()
        for count, partition in enumerate(partitions):
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            if partition.serves and not self._is_settled(partition):
                try:
                    self._look_after(partition)
                except (RaftRefused, ProtocolViolation) as not_now:
                    log.debug("%s: %s", partition.name, not_now)
                except Exception:
                    log.exception("%s: a bug in its reconciliation; others are not affected", partition.name)

    def _is_settled(self, partition: Partition) -> bool:
        """Whether a look at the partition would do nothing."""
        assignment = self._state.assignment(partition.group)
        if not partition.is_replicated and (assignment is None or assignment.target is None):
            return True
        known = self._settled.get(partition.group)
        return known is not None and known is assignment and partition.replica.is_still_in_sync()

    def _look_after(self, partition: Partition) -> None:
        self._settled.pop(partition.group, None)
        in_sync = partition.replica.sample_in_sync()
        self._announcer.announce(partition.group, partition.term, in_sync)
        assignment = self._state.assignment(partition.group)
        if assignment is None or partition.group in self._reports:
            return
        if not self._bring_members(partition, assignment) and not self._hand_over(
            partition, assignment, in_sync
        ):
            self._settled[partition.group] = assignment

    # --- members

    def _bring_members(self, partition: Partition, assignment: Assignment) -> bool:
        """Whether a change of members, or the report of one, is under way."""
        core = partition.replica.consensus.core
        config = core.config
        self._drop_unwanted(partition, assignment)
        if config is None or core.changing:
            return True
        voters = frozenset(config.voters)
        if any(
            one.node == self._me.node and one != partition.replica.me for one in assignment.target_members
        ):
            # The leader's own replica is to be rebuilt: that needs another leader.
            return True
        target = frozenset(assignment.target_members)
        if any(learner not in target for learner in config.learners) and (not target or voters == target):
            # They are left over from a cancelled move. The report says that the group goes on without every replica
            # that it does not name, and such a replica deletes its files: so the learners leave the group first. A
            # learner that lost its files under the same name would be promoted for what it once had.
            partition.replica.consensus.change_config(config.voters)
            return True
        if voters != frozenset(assignment.members) or (target and voters == target):
            self._report(partition, config.voters, core.configs.newest_index)
            return True
        if target:
            partition.replica.consensus.change_config(assignment.target_members)
        return bool(target)

    def _drop_unwanted(self, partition: Partition, assignment: Assignment) -> None:
        """Abandons a change that was replaced or cancelled: its new members may never catch up, and the change that is
        wanted now would wait for them."""
        wanted = assignment.target_members or assignment.members
        under_way = partition.replica.consensus.core.catching_up_for
        if under_way is not None and frozenset(under_way.voters) != frozenset(wanted):
            log.info(
                "%s: abandons the move to %s", partition.name, [voter.node for voter in under_way.voters]
            )
            partition.replica.consensus.abandon_change()

    def _report(self, partition: Partition, voters: tuple[Replica, ...], index: int) -> None:
        async def report() -> None:
            try:
                await self._controller.report_moved(partition.group, voters, index or FOUNDING)
            except PenstockError as trouble:
                log.info(
                    "%s: its members could not be reported yet, the next round tries again: %s",
                    partition.name,
                    trouble,
                )
            finally:
                self._reports.pop(partition.group, None)

        self._reports[partition.group] = asyncio.get_running_loop().create_task(report())

    # --- leadership

    def _hand_over(self, partition: Partition, assignment: Assignment, in_sync: Collection[int]) -> bool:
        """Whether another node should lead: now, or as soon as it is in sync."""
        preferred = assignment.members[0]
        key = partition.group
        wanted = (
            self._hands_over and preferred != partition.replica.me and assignment.damage_of(preferred) is None
        )
        if not wanted or preferred.node not in in_sync or preferred.node not in self._alive():
            self._rounds_in_sync.pop(key, None)
            return wanted
        rounds = self._rounds_in_sync[key] = self._rounds_in_sync.get(key, 0) + 1
        if rounds >= ROUNDS_IN_SYNC_MIN:
            self._rounds_in_sync.pop(key)
            log.info("%s: transfers leadership to its preferred leader, node %s", partition.name, preferred)
            partition.replica.consensus.transfer(preferred)
        return True
