"""The queues of a node: their state, their drivers, and how any node is asked about them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from penstock.cluster import STATE_TOPIC
from penstock.config import NodeConfig
from penstock.errors import PenstockError
from penstock.node.calls import BROKER, Calls
from penstock.node.coordination.group_manager import GroupManager
from penstock.node.coordination.record_forwarder import RecordForwarder
from penstock.node.coordination.share_groups import ShareGroups
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part
from penstock.node.queues.dead_letters import DeadLetterWriter
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.overview import QueueOverview
from penstock.node.queues.router import QueueRouter
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.queues.state_log import QueueStateLog
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.scheduling.clock import Clock
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.transactions.led_partitions import LedPartitions
from penstock.queue import QueueKey
from penstock.types import EventSink, GroupId, NodeId


class Queues(Part):
    """All of a node's queues."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        metadata: MetadataLog,
        controller: Controller,
        view: ClusterView,
        partitions: PartitionTable,
        groups: GroupManager,
        transactions: LedPartitions,
        forwarder: RecordForwarder,
        calls: Calls,
        clock: Clock,
        events: EventSink,
    ) -> None:
        node_id, state = NodeId(config.node_id), metadata.state
        self.state = QueueStateLog(
            metadata=metadata,
            controller=controller,
            view=view,
            clock=clock,
            partitions=config.groups.state_topic_partitions,
        )
        store = QueueStateClient(state=state, local=self.state, transactions=transactions, calls=calls)
        self.manager = QueueManager(
            store=store,
            dead_letters=DeadLetterWriter(forwarder, clock, events),
            clock=clock,
            limits=config.limits,
            config_of=state.group_config,
            register=self._register,
            events=events,
        )
        """The queues on partitions that this node leads."""
        self.overview = QueueOverview(
            node_id=node_id,
            state=state,
            view=view,
            partitions=partitions,
            store=store,
            queues=self.manager,
            calls=calls,
            events=events,
        )
        self.router = QueueRouter(
            node_id=node_id, state=state, partitions=partitions, queues=self.manager, calls=calls
        )
        self._state = state
        self._store = store
        self._shortened: dict[GroupId, Partition] = {}
        """Partitions of which retention has deleted records that were not counted yet."""
        self._counting: asyncio.Task[None] | None = None
        self.share_groups = ShareGroups(groups.cores, erase=self.overview.forget, calls=calls)

    async def _register(self, group_id: str) -> None:
        await self.share_groups.begin(group_id, caller=BROKER)

    def role_changed(self, partition: Partition) -> None:
        with logged_bugs(f"the queues on {partition.name}"):
            self.manager.role_changed(partition)
        self.state.cores.role_changed(partition)

    def log_shortened(self, partitions: Sequence[Partition]) -> None:
        """Retention has deleted records of partitions that this node leads. Queues count those that were not done, also
        queues that are not in use: they are opened for that."""
        self.manager.log_shortened(frozenset(partitions))
        if STATE_TOPIC not in self._state.topics:
            return
        self._shortened.update((partition.group, partition) for partition in partitions)
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_task(self._count_deleted())

    async def _count_deleted(self) -> None:
        while self._shortened:
            shortened, self._shortened = self._shortened, {}
            with suppress(PenstockError):  # a queue that is not counted now is counted when it is opened next
                for queue, start in (await self._store.starts(caller=BROKER)).items():
                    partition = shortened.get(GroupId(queue.topic_id, queue.partition))
                    if partition is not None and start < partition.start_offset:
                        await self._open(queue, partition)

    async def _open(self, queue: QueueKey, partition: Partition) -> None:
        with suppress(PenstockError):
            await self.manager.driver(queue.group_id, queue.topic_id, partition, begin=False)

    async def tidy(self) -> None:
        """Closes queues that are idle, and deletes the state of topics that are gone."""
        await self.manager.tidy()
        await self.state.tidy()

    async def stop(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait({self._counting})
        await self.manager.stop()
        self.state.cores.stop()
