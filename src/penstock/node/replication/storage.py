"""The data folder of a node, and everything that replicates logs in it."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from penstock.config import ClusterSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.log import DataFolder
from penstock.log.disk import Disk
from penstock.node.membership.no_network import NoNetwork
from penstock.node.parts import Part
from penstock.node.replication.flusher import Flusher
from penstock.node.replication.hard_states import HardStates
from penstock.node.replication.multi_raft import MultiRaft
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.replication.vote_files import open_votes
from penstock.node.scheduling.clock import Clock
from penstock.node.scheduling.threads import JobThread
from penstock.node.scheduling.workers import Workers
from penstock.raft import RaftRefused, RaftSettings
from penstock.types import GroupId, NodeId, Replica

if TYPE_CHECKING:
    from penstock.node.membership.links import MakeLinks

COLD_READ_THREADS = 4
"""Disks serve a few requests at a time quicker than one; more readers of old records wait for each other."""

HAND_OVER_SECONDS = 3.0
"""How long a stopping node waits for leadership transfers; partitions without one elect a leader afterwards."""
HAND_OVER_CHECK_SECONDS = 0.02


class Storage(Part):
    """Opens the folder at once; `stop` flushes everything that was written and closes the folder cleanly."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        disk: Disk,
        clock: Clock,
        threads: Callable[[str], JobThread],
        random: Random,
        make_links: "MakeLinks | None",
        on_role: Callable[[Partition], None],
    ) -> None:
        node_id = NodeId(config.node_id)
        self.disk = disk
        self.folder = DataFolder.open(disk, node_id=node_id, wait_for_cluster=make_links is not None)
        try:
            self.me = Replica(node_id, self.folder.incarnation)
            # Opened before a node of a cluster writes anything else: a folder with other files and without votes has
            # lost its votes.
            votes, is_older = open_votes(disk, self.folder, config.log_dir)
            self.hard_states = HardStates(
                votes, threads("penstock-votes"), volatile=disk.volatile, adopts=is_older
            )
            self.links = make_links(config, self.folder, disk, clock) if make_links is not None else None
        except BaseException:
            self.folder.release()
            raise
        self.workers = Workers()
        self.cold_reads = Workers(COLD_READ_THREADS, "penstock-cold-read")
        """Loads old records that are not in the system's cache, so that no other client waits for a reader of these."""
        self.flusher = Flusher(disk, threads("penstock-flush"))
        self.raft = MultiRaft(
            me=self.me,
            transport=self.links.network if self.links is not None else NoNetwork(),
            hard_states=self.hard_states,
            settings=_raft_settings(config.replication),
            clock=clock,
            random=random,
        )
        self.partitions = PartitionTable(
            disk=disk,
            topics_dir=self.folder.topics_dir,
            clock=clock,
            multi_raft=self.raft,
            mark_dirty=self.flusher.mark,
            on_role=on_role,
        )

    async def stop(self) -> None:
        try:
            await self.flusher.stop()
            await self.hard_states.stop()
            self.workers.stop()
            self.cold_reads.stop()
            self.partitions.close()
        finally:
            self.folder.release()

    def transfer(self, group: GroupId, to: int) -> None:
        """Lets the replica on node `to` lead. KafkaError if this node does not lead, or that replica cannot."""
        member = self.raft.find(group)
        config = member.core.config if member is not None else None
        if member is None or config is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.me.node} does not lead {group}")
        try:
            for replica in config.voters:
                if replica.node == to:
                    member.transfer(replica)
        except RaftRefused as refused:
            raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, str(refused)) from refused

    async def hand_over_all(self) -> None:
        """Lets other replicas lead every partition that this node leads, as far as that works in a few seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HAND_OVER_SECONDS
        while loop.time() < deadline:
            led = [one for one in self.partitions.tended() if one.leads and one.is_replicated]
            if not [one for one in led if one.replica.hand_over()]:
                return
            await asyncio.sleep(HAND_OVER_CHECK_SECONDS)


def _raft_settings(settings: ClusterSettings) -> RaftSettings:
    return RaftSettings(
        election_timeout_s=settings.election_timeout_ms / 1000,
        heartbeat_interval_s=settings.heartbeat_interval_ms / 1000,
        max_append_bytes=settings.max_append_bytes,
        max_inflight_messages=settings.max_in_flight_messages,
        max_inflight_bytes=settings.max_in_flight_bytes,
        max_uncommitted_bytes=settings.max_uncommitted_bytes,
    )
