"""How a node enters service: it finds its cluster, opens its metadata, and is admitted.

A node without an inter-node port is a cluster of one, and does all of this at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cluster import METADATA_TOPIC
from penstock.config import NodeConfig, TopicConfig
from penstock.errors import ConfigError, CorruptLog, PromisesLost
from penstock.node.metadata.cluster_view import METADATA_GROUP
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.local_replicas import LocalReplicas
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition_table import LogLost
from penstock.node.replication.storage import Storage
from penstock.node.replication.vote_files import how_to_replace
from penstock.raft import GroupConfig
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.node.membership.membership import Membership

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
METADATA_CONFIG = TopicConfig(cleanup_delete=False, retention_ms=-1, max_message_bytes=2**31 - 1)


class ClusterEntry(Part):
    """Finds the cluster and opens this node's replica of the metadata, which leads to all other replicas."""

    def __init__(
        self, config: NodeConfig, storage: Storage, metadata: MetadataLog, replicas: LocalReplicas
    ) -> None:
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._replicas = replicas
        self.waits_for_others = storage.links is not None

    async def start(self) -> None:
        storage = self._storage
        if storage.links is None:
            self._open_metadata(GroupConfig(voters=(storage.me,)))
            await storage.hard_states.drain()
            await self._metadata.caught_up()
            await self._replicas.finished()
            await storage.hard_states.drain()
            self._check_leads()
            self._replicas.orphans()
            return
        await storage.links.membership.find()
        founders = tuple(storage.folder.founders)
        try:
            self._open_metadata(GroupConfig(voters=founders) if storage.me in founders else None)
        except (LogLost, CorruptLog) as lost:
            message = f"the metadata of this node is lost: {lost}"
            raise PromisesLost(message, how_to_replace(self._config.log_dir)) from lost

    def _check_leads(self) -> None:
        """A node that other nodes have joined needs its inter-node port to become the controller, also when they have
        left again. Without a controller it knows no topic, and would move the files of all partitions aside."""
        if not self._metadata.partition.leads:
            expected = (
                f"--cluster HOST:PORT: other nodes have been in the cluster of {self._config.log_dir}, and without an "
                "inter-node port this node cannot lead it"
            )
            raise ConfigError("cluster", None, expected)

    def _open_metadata(self, founding: GroupConfig | None) -> None:
        metadata = self._metadata
        metadata.partition = self._storage.partitions.open_own(
            METADATA_PARTITION, METADATA_GROUP, METADATA_CONFIG, founding, metadata.apply_committed
        )
        metadata.partition.start()


class NodeAdmission(Part):
    """Registers this node and keeps it registered; calls `ready` when its cluster has admitted it."""

    def __init__(
        self,
        membership: "Membership | None",
        controller: Controller,
        metadata: MetadataLog,
        ready: Callable[[], None],
    ) -> None:
        self._membership = membership
        self._controller = controller
        self._metadata = metadata
        self._ready = ready

    async def start(self) -> None:
        """Returns when this node is registered; raises if it never will be."""
        if self._membership is None:
            self._ready()
        else:
            self._membership.register(self._controller, self._metadata, self._ready)
            await self._membership.admitted()

    def metadata_changed(self, topics: TopicChanges) -> None:
        if self._membership is not None:
            self._membership.follow_nodes(self._metadata)

    async def stop(self) -> None:
        if self._membership is not None:
            await self._membership.stop()
