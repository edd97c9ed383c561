"""Recovery of partitions whose other replicas are lost for good: those of this node continue alone.

Only a person can know that a replica will never come back, so this runs on request only, on the node whose copies are
to be kept. It is unsafe by nature; `penstock.raft.recovery` says why, and docs/cluster.md says it to operators.

The metadata group comes first: without it no other change can be recorded. After that, each recovered partition goes on
like one whose members have changed: its leader reports them, and the controller has the lost replicas copied to their
nodes again once these return empty (`penstock.cluster.moves.report_moved`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from penstock.cluster import ClusterState, MetadataRecord, NodeFenced, ProducerIdsReserved
from penstock.errors import ErrorCode, KafkaError
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.raft import GroupConfig, RaftRefused
from penstock.types import NodeId, Replica

log = logging.getLogger("penstock.node")

LEAD_SECONDS = 15.0
"""A replica that continues alone leads after two flushes."""
CHECK_SECONDS = 0.02
GOSSIP_SECONDS = 12.0
"""Longer than gossip suspects a silent node before it gives it up, in a small cluster. HTTP clients wait for 20 s."""
PRODUCER_IDS_SKIPPED = 1_000_000
"""The lost nodes may have given out producer ids that this node's metadata does not know of. A new producer with such
an id would be mistaken for the old one."""


class LostPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of which this node holds a replica, and which has no leader."""

    topic: str
    partition: int
    last_term: int
    start_offset: int
    end_offset: int
    """Of the copy on this node: to compare with the copies on other nodes that are left."""
    voters: tuple[int, ...]
    connected: tuple[int, ...]
    """Other voters whose nodes are connected with this one now: they may have more than this copy."""
    obstacle: str | None = None
    """Why it is not recovered here."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """`recovered` is false for a request that only looked. Partitions with an obstacle stay as they are."""

    node_id: int
    recovered: bool
    partitions: tuple[LostPartition, ...]


class PartitionRecovery:
    """Finds and recovers the lost partitions of this node."""

    def __init__(
        self,
        *,
        me: Replica,
        metadata: MetadataLog,
        partitions: PartitionTable,
        seen: Callable[[], dict[int, int]],
        opened: Callable[[], Awaitable[None]],
    ) -> None:
        """`seen`: nodes that gossip knows to be alive, with their incarnations. `opened` returns when the replicas that
        the metadata names are open."""
        self._me = me
        self._seen = seen
        self._metadata = metadata
        self._partitions = partitions
        self._opened = opened
        self._turn = asyncio.Lock()

    def find(self, topic: str | None = None, *, discarded: Sequence[int] = ()) -> RecoveryReport:
        """The lost partitions, of one topic or all, and the metadata log. `discarded`: nodes whose copies are given up,
        although they may have more."""
        own = [] if self._metadata_partition is None else [self._metadata_partition]
        lost = [one for one in [*own, *self._replicas(topic)] if not _has_leader(one)]
        found = tuple(self._describe(one, discarded) for one in lost)
        return RecoveryReport(node_id=self._me.node, recovered=False, partitions=found)

    async def recover(self, topic: str | None = None, *, discarded: Sequence[int] = ()) -> RecoveryReport:
        """Lets this node's replicas of all lost partitions without an obstacle continue alone. Raises KafkaError if the
        metadata cannot be recovered here: then nothing else is tried."""
        async with self._turn:
            found = await self._recover_metadata(discarded)
            for partition in list(self._replicas(topic)):
                found += await self._recover_one(partition, discarded)
            return RecoveryReport(node_id=self._me.node, recovered=True, partitions=tuple(found))

    # --- finding

    @property
    def _metadata_partition(self) -> Partition | None:
        """None until this node has found its cluster."""
        return next(iter(self._partitions.own()), None)

    def _replicas(self, topic: str | None) -> Iterator[Partition]:
        for partition in sorted(self._partitions.online(), key=lambda one: one.name):
            if topic in (None, partition.name.topic):
                yield partition

    def _describe(self, partition: Partition, discarded: Sequence[int]) -> LostPartition:
        config = partition.replica.group_config
        voters = () if config is None else dict.fromkeys(config.voters + config.outgoing)
        others = [voter for voter in voters if voter != partition.replica.me]
        connected = [voter for voter in others if self._partitions.is_connected(voter)]
        return LostPartition(
            topic=partition.name.topic,
            partition=partition.name.partition,
            last_term=partition.log.entries.last_term,
            start_offset=partition.start_offset,
            end_offset=partition.log.end_offset,
            voters=tuple(sorted({int(voter.node) for voter in voters})),
            connected=tuple(sorted({int(voter.node) for voter in connected})),
            obstacle=self._obstacle(partition, config, connected, discarded),
        )

    def _obstacle(
        self,
        partition: Partition,
        config: GroupConfig | None,
        connected: Sequence[Replica],
        discarded: Sequence[int],
    ) -> str | None:
        if partition.offline_reason is not None:
            return f"offline: {partition.offline_reason}"
        if partition.is_in_touch:
            return "it was opened, or heard its leader, a moment ago: look again in some seconds"
        if config is None or partition.log.entries.end_index == 0:
            return "this node has no copy of its own: it was only to get one"
        if config.is_quorum([partition.replica.me, *connected]):
            return "a majority of its replicas is connected, and will elect a leader"
        kept = [int(voter.node) for voter in connected if voter.node not in discarded]
        if kept:
            return f"node {kept[0]} has a replica too, which may have more: compare both, and name the one to discard"
        if self._seen_alive(config):
            return f"gossip saw node {self._seen_alive(config)[0]} a moment ago: look again in some seconds"
        if self._is_behind_metadata(partition):
            return "this copy ends before the last change of the partition's replicas"
        return None

    def _seen_alive(self, config: GroupConfig) -> list[int]:
        """Nodes of lost voters that gossip has not given up yet: the controller would not fence them."""
        seen = {NodeId(node): Replica(NodeId(node), number) for node, number in self._seen().items()}
        lost = [
            voter for voter in config.voters + config.outgoing if not self._partitions.is_connected(voter)
        ]
        alive = [
            voter.node for voter in lost if voter.node in seen and voter.life_of(seen[voter.node]) is not None
        ]
        return [int(node) for node in alive if node != self._me.node]

    def _is_behind_metadata(self, partition: Partition) -> bool:
        """Reports of members are ordered by their index in the log: one from a shorter log would be ignored."""
        assignment = self._metadata.state.assignment(partition.group)
        return assignment is not None and assignment.config_index > partition.log.entries.end_index

    # --- recovering

    async def _recover_metadata(self, discarded: Sequence[int]) -> list[LostPartition]:
        """When this returns, the metadata has a leader, and the replicas that it names are open."""
        partition = self._metadata_partition
        if partition is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node has not opened its metadata yet")
        found = await self._recover_one(partition, discarded)
        for one in found:
            if one.obstacle is not None:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, f"the metadata is not recovered: {one.obstacle}")
            await self._metadata.change(self._after_loss)
            await self._opened()
        return found

    def _after_loss(self, state: ClusterState) -> list[MetadataRecord]:
        """Fences the lost nodes at once: a new topic must not get replicas there, which would be lost too."""
        first = state.next_producer_id
        connected = {
            node for node, info in state.nodes.items() if self._partitions.is_connected(info.replica)
        }
        lost = [
            node
            for node, info in sorted(state.nodes.items())
            if node not in connected | {self._me.node} and info.alive
        ]
        skipped = ProducerIdsReserved(
            node_id=int(self._me.node), first=first, end=first + PRODUCER_IDS_SKIPPED
        )
        return [skipped, *(NodeFenced(node_id=node) for node in lost)]

    async def _finds_leader(self, partition: Partition) -> bool:
        """Gives a replica that was opened a moment ago the time in which it would hear its leader, and gossip the time
        in which it gives up the lost nodes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GOSSIP_SECONDS
        while not _has_leader(partition):
            config = partition.replica.group_config
            waits = config is not None and self._seen_alive(config) and loop.time() < deadline
            if not partition.is_in_touch and not waits:
                break
            await asyncio.sleep(CHECK_SECONDS)
        return _has_leader(partition)

    async def _recover_one(self, partition: Partition, discarded: Sequence[int]) -> list[LostPartition]:
        """Nothing if the partition has a leader."""
        if await self._finds_leader(partition):
            return []
        found = self._describe(partition, discarded)
        if found.obstacle is not None:
            return [found]
        log.warning(
            "%s: continues alone on this node, from term %d and offset %d, as an operator asked; its replicas on %s "
            "are given up, and records that only they had are lost",
            partition.name,
            found.last_term,
            found.end_offset,
            [node for node in found.voters if node != self._me.node],
        )
        try:
            partition.replica.consensus.continue_alone()
        except RaftRefused as refused:
            return [msgspec.structs.replace(found, obstacle=str(refused))]
        if not await _leads(partition):
            return [msgspec.structs.replace(found, obstacle=f"it does not lead after {LEAD_SECONDS:.0f} s")]
        return [found]


def _has_leader(partition: Partition) -> bool:
    """A leader that loses its majority resigns within an election timeout, and then knows of no leader."""
    return partition.leads or (partition.leader is not None and partition.is_in_touch)


async def _leads(partition: Partition) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LEAD_SECONDS
    while not partition.serves and loop.time() < deadline:
        await asyncio.sleep(CHECK_SECONDS)
    return partition.serves
