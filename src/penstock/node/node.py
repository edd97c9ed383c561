"""One broker without its ports: a data folder, its partitions, and everything that keeps them going."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from penstock.cluster import METADATA_TOPIC, OFFSETS_TOPIC, ClusterState, PlacementRules
from penstock.config import NodeConfig, TopicConfig, static_broker_configs
from penstock.errors import StorageError
from penstock.log import DataFolder
from penstock.log.disk import Disk
from penstock.log.memory_disk import MemoryDisk
from penstock.log.os_disk import OsDisk
from penstock.node.clock import Clock, SystemClock
from penstock.node.flusher import Flusher
from penstock.node.groups import GroupManager
from penstock.node.housekeeping import Housekeeping
from penstock.node.metadata import MetadataLog
from penstock.node.metrics import NodeMetrics
from penstock.node.partition import Partition
from penstock.node.partitions import PartitionTable
from penstock.node.workers import Workers
from penstock.types import NodeId, Term, TopicPartition

log = logging.getLogger("penstock.node")

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
METADATA_CONFIG = TopicConfig(cleanup_delete=False, retention_ms=-1, max_message_bytes=2**31 - 1)


class Node:
    """Start it, ask it for partitions, stop it. Everything happens on the loop that started it."""

    folder: DataFolder
    partitions: PartitionTable
    metadata: MetadataLog
    groups: GroupManager
    flusher: Flusher

    def __init__(self, config: NodeConfig, *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.node_id = NodeId(config.node_id)
        self.metrics = NodeMetrics(started_seconds=time.time())
        self.ready = False
        self._disk: Disk = disk or (MemoryDisk() if config.memory else OsDisk(config.data_dir))
        self._workers = Workers()
        self._housekeeping: Housekeeping | None = None
        self._slow: set[asyncio.Task[None]] = set()
        self._opened: list[Callable[[], object]] = []
        """What to undo, last first, when the node stops or its start fails half way."""

    # --- facts

    @property
    def cluster_id(self) -> str:
        return self.folder.cluster_id

    @property
    def advertised(self) -> tuple[str, int]:
        """The address that clients are led to."""
        address = self.config.advertised
        return address.host, address.port

    @property
    def log_dir(self) -> str:
        return "memory" if self.config.memory else self.config.data_dir

    def partition(self, topic: str, index: int) -> Partition:
        """Raises KafkaError when there is none, or when it is offline."""
        return self.partitions.get(topic, index)

    def leadership(self, topic: str, index: int) -> tuple[bool, Term]:
        """Whether the partition is served here, and under which leader epoch."""
        return self.partitions.is_online(topic, index), self.partitions.term

    def disk_space(self) -> tuple[int, int]:
        """Total and usable bytes of the disk; -1 where that means nothing."""
        return -1, -1 if self.config.memory else self._disk.free_bytes()

    # --- life

    async def start(self) -> None:
        """Recovers what the data folder holds. Partitions that cannot be opened stay offline; all else serves."""
        try:
            await self._start()
        except BaseException:
            self._undo()
            raise

    async def _start(self) -> None:
        self.folder = DataFolder.open(self._disk, node_id=self.node_id)
        self._opened.append(self.folder.release)
        self.flusher = Flusher(self._disk)
        self.partitions = PartitionTable(
            disk=self._disk,
            topics_dir=self.folder.topics_dir,
            clock=self.clock,
            term=self.folder.next_term(),
            mark_dirty=self.flusher.mark,
        )
        self._opened.append(self.partitions.close)
        metadata_partition = self.partitions.open_own(METADATA_PARTITION, METADATA_CONFIG)
        state = ClusterState(self.node_id, static_broker_configs(self.config))
        self.metadata = MetadataLog(metadata_partition, state, self._placement_rules(), follower=self)
        self.metadata.replay()
        self._open_topics()
        self.groups = GroupManager(
            metadata=self.metadata,
            partitions=self.partitions,
            clock=self.clock,
            settings=self.config.groups,
            limits=self.config.limits,
        )
        self.groups.load()
        self._housekeeping = Housekeeping(self.partitions, self._workers, self.clock, self.metrics)
        self._housekeeping.start()
        self.ready = True

    def _placement_rules(self) -> PlacementRules:
        return PlacementRules(
            nodes=(self.node_id,),
            limits=self.config.limits,
            default_partitions=self.config.num_partitions,
            default_replication_factor=self.config.default_replication_factor,
        )

    async def stop(self) -> None:
        """Flushes everything that was written, then closes cleanly: the next start has nothing to recover."""
        self.ready = False
        if self._housekeeping is not None:
            await self._housekeeping.stop()
        self.groups.stop()
        await self.metadata.drain()
        await self.flusher.stop()
        if self._slow:
            await asyncio.wait(self._slow)
        self._workers.stop()
        self._undo()

    def _undo(self) -> None:
        """Runs everything, whatever fails on the way, and then says what failed first."""
        problems: list[Exception] = []
        while self._opened:
            try:
                self._opened.pop()()
            except Exception as problem:  # noqa: BLE001 - raised below
                problems.append(problem)
        if problems:
            raise problems[0]

    # --- acting on metadata

    def topics_changed(self, names: Collection[str]) -> None:
        """A change of metadata is committed: carry it out here."""
        for name in names:
            try:
                self._follow(name)
            except StorageError as trouble:
                log.error("topic %s: %s", name, trouble)
        if OFFSETS_TOPIC in names:
            self.groups.load()

    def _follow(self, name: str) -> None:
        """Brings the partitions of one topic to what the metadata says of it."""
        topic = self.metadata.state.topics.get(name)
        if topic is None:
            self._destroy_topic(name)
        else:
            self.partitions.open_topic(name, topic.partitions, topic.config, new=True)
            self.partitions.reconfigure(name, topic.config)

    def _open_topics(self) -> None:
        topics = self.metadata.state.topics.values()
        known = {TopicPartition(topic.name, index) for topic in topics for index in range(topic.partitions)}
        self.partitions.move_orphans(known | {METADATA_PARTITION})
        for topic in topics:
            self.partitions.open_topic(topic.name, topic.partitions, topic.config, new=False)

    def _destroy_topic(self, name: str) -> None:
        self.groups.topic_deleted(name)
        for delete_files in self.partitions.destroy_topic(name):
            task = asyncio.get_running_loop().create_task(self._delete(name, delete_files))
            self._slow.add(task)
            task.add_done_callback(self._slow.discard)

    async def _delete(self, name: str, delete_files: Callable[[], None]) -> None:
        try:
            await self._workers.run(delete_files)
        except StorageError as trouble:
            log.error(
                "files of the deleted topic %s are left, the next start removes them: %s", name, trouble
            )
