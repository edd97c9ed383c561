"""What the leader of a partition does for its group, unasked: brings its members to what the metadata says, tells who
keeps up, and hands the lead to whom it belongs. With each round, damaged replicas are looked after too (`mending`),
whoever leads them.

A change of members goes in the order that keeps data safe: the group changes in its own log, then its leader reports
that, and only when the report is in the metadata may a replica that has left delete its files.
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
from penstock.raft import Refused
from penstock.types import Replica

log = logging.getLogger("penstock.node")

ROUND_SECONDS = 0.5
FOUNDING = -1
PATIENT_ROUNDS = 10
"""For how many rounds a preferred leader must have kept up before it gets the lead: one that was just started has
better things to do, and clients dislike every move."""


class ReplicaReconciler(Part):
    """Looks after the partitions that this node leads."""

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
        self._mender = ReplicaRepair(me=me, state=state, partitions=partitions, controller=controller)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._rounds())

    async def stop(self) -> None:
        tasks = [*self._reports.values(), *self._mender.reports()]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            self._mender.look()
            for partition in list(self._partitions.online()):
                if (partition.serves and partition.is_replicated) or self._has_target(partition):
                    try:
                        self._look_after(partition)
                    except (Refused, ProtocolViolation) as not_now:
                        log.debug("%s: %s", partition.name, not_now)
                    except Exception:
                        log.exception("%s: a bug in looking after it; the others go on", partition.name)

    def _has_target(self, partition: Partition) -> bool:
        assignment = self._state.assignment(partition.group)
        return partition.serves and assignment is not None and assignment.target is not None

    def _look_after(self, partition: Partition) -> None:
        in_sync = partition.replica.sample_in_sync()
        self._announcer.announce(partition.group, partition.term, in_sync)
        assignment = self._state.assignment(partition.group)
        if assignment is None or partition.group in self._reports:
            return
        if not self._bring_members(partition, assignment):
            self._hand_over(partition, assignment, in_sync)

    # --- members

    def _bring_members(self, partition: Partition, assignment: Assignment) -> bool:
        """Whether there is something under way."""
        core = partition.replica.consensus.core
        config = core.config
        self._drop_unwanted(partition, assignment)
        if config is None or core.changing:
            return True
        voters = frozenset(config.voters)
        if any(
            one.node == self._me.node and one != partition.replica.me for one in assignment.target_members
        ):
            # Its own replica is to be made anew: that needs another leader.
            return True
        target = frozenset(assignment.target_members)
        if voters != frozenset(assignment.members) or (target and voters == target):
            self._report(partition, config.voters, core.configs.newest_index)
            return True
        if target:
            partition.replica.consensus.change_config(assignment.target_members)
            return True
        if config.learners:
            # Of a move that was given up: nobody else would ever send them away.
            partition.replica.consensus.change_config(config.voters)
            return True
        return False

    def _drop_unwanted(self, partition: Partition, assignment: Assignment) -> None:
        """A move that was overtaken or cancelled: its newcomers may never come, and what is wanted now waits."""
        wanted = assignment.target_members or assignment.members
        under_way = partition.replica.consensus.core.catching_up_for
        if under_way is not None and frozenset(under_way.voters) != frozenset(wanted):
            log.info("%s: no longer goes to %s", partition.name, [voter.node for voter in under_way.voters])
            partition.replica.consensus.abandon_change()

    def _report(self, partition: Partition, voters: tuple[Replica, ...], index: int) -> None:
        async def report() -> None:
            try:
                await self._controller.report_moved(partition.group, voters, index or FOUNDING)
            except PenstockError as trouble:
                log.info("%s: its members could not be reported, again soon: %s", partition.name, trouble)
            finally:
                self._reports.pop(partition.group, None)

        self._reports[partition.group] = asyncio.get_running_loop().create_task(report())

    # --- the lead

    def _hand_over(self, partition: Partition, assignment: Assignment, in_sync: Collection[int]) -> None:
        preferred = assignment.members[0]
        key = partition.group
        wanted = (
            self._hands_over and preferred != partition.replica.me and assignment.damage_of(preferred) is None
        )
        if not wanted or preferred.node not in in_sync or preferred.node not in self._alive():
            self._rounds_in_sync.pop(key, None)
            return
        rounds = self._rounds_in_sync[key] = self._rounds_in_sync.get(key, 0) + 1
        if rounds >= PATIENT_ROUNDS:
            self._rounds_in_sync.pop(key)
            log.info("%s: hands the lead to node %s, where it belongs", partition.name, preferred)
            partition.replica.consensus.transfer(preferred)
