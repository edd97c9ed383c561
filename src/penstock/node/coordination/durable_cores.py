"""One durable core per partition of an internal topic, on the node that leads the partition.

When this node begins to lead a partition, it starts the core; when it no longer leads, it stops the core
(`role_changed`). Clients get a retriable error while a core loads, and while this node's metadata is older than the
core's records.
"""

from collections.abc import Callable, Iterator
from typing import Generic

from penstock.batch import EndMarker
from penstock.cluster import offsets_partition
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.log import Appended
from penstock.node.coordination.core_host import C, CoreHost, Sender
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.replication.leaders import NO_LEADER
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.types import Producer


class DurableCores(Generic[C]):
    """The cores of one internal topic on this node."""

    def __init__(
        self,
        topic: str,
        make: Callable[[], C],
        *,
        partitions: int,
        metadata: MetadataLog,
        controller: Controller,
        view: ClusterView,
        clock: Clock,
        send: Sender[C] | None = None,
    ) -> None:
        """`partitions` is how many the topic gets when it is created; `send` passes on the cores' messages."""
        self.topic = topic
        self._make = make
        self._partitions = partitions
        self._metadata = metadata
        self._state = metadata.state
        self._controller = controller
        self._view = view
        self._clock = clock
        self._send = send
        self._hosts: dict[int, CoreHost[C]] = {}

    # --- the topic

    async def ensure_topic(self) -> None:
        """Creates the topic when the first request needs it. COORDINATOR_NOT_AVAILABLE if that is not possible now."""
        if self.topic in self._state.topics:
            return
        try:
            await self._controller.create_internal_topic(self.topic, self._partitions)
        except KafkaError as refused:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
        except StorageError as refused:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(refused)) from refused

    def index_of(self, name: str) -> int:
        """The partition whose core decides for `name`, by the hash that Kafka uses for groups."""
        topic = self._state.topics.get(self.topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        return offsets_partition(name, topic.partitions)

    # --- the cores

    def role_changed(self, partition: Partition) -> None:
        """This node began or ceased to lead a partition of any topic."""
        if partition.name.topic != self.topic:
            return
        index = partition.name.partition
        host = self._hosts.get(index)
        if host is not None:
            if partition.serves and partition.term == host.term and (host.is_ready or host.is_loading):
                return
            self._hosts.pop(index).stop()
        if partition.serves:
            self._start(partition)

    def _start(self, partition: Partition) -> CoreHost[C]:
        host = CoreHost(self._make(), partition, self._clock, self._metadata, self._send)
        self._hosts[partition.name.partition] = host
        host.start()
        return host

    def stop(self) -> None:
        for host in self._hosts.values():
            host.stop()

    def get(self, index: int) -> CoreHost[C]:
        """The core of a partition, which may answer now. KafkaError tells the client where or when to look for it."""
        host = self._hosts.get(index)
        if host is not None and host.is_broken:
            host.stop()
            host = self._start(host.partition)
        if host is not None and host.serves:
            return host
        raise self._refusal(index)

    def check_serves(self, host: CoreHost[C]) -> None:
        """After a wait: KafkaError if another node may have taken over."""
        if not host.serves:
            raise self._refusal(host.partition.name.partition)

    def _refusal(self, index: int) -> KafkaError:
        host, name = self._hosts.get(index), f"{self.topic}-{index}"
        if host is not None and host.is_loading:
            message = f"the coordinator on {name} is reading its log"
            return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
        if host is not None and host.is_ready:
            message = f"another node may be the coordinator on {name} by now"
            return KafkaError(ErrorCode.NOT_COORDINATOR, message)
        topic = self._state.topics.get(self.topic)
        if (
            topic is None or not 0 <= index < topic.partitions
        ):  # this node may have been away when it was created
            message = f"this node has not heard of {name} yet"
            return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        leader = self._view.partition(topic, index).leader
        if leader not in (self._state.node_id, NO_LEADER):
            return KafkaError(ErrorCode.NOT_COORDINATOR, f"the coordinator on {name} is node {leader}")
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator on {name} is offline")

    def write_marker(self, index: int, marker: EndMarker, producer: Producer) -> Appended:
        """Ends a transaction on a partition of the topic, like `Partition.append_marker`: the core there must hear of
        it. KafkaError if the marker is refused; NOT_LEADER_OR_FOLLOWER means: ask the leader, or again."""
        try:
            host = self.get(index)
        except KafkaError as refusal:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, refusal.message) from refusal
        return host.write_marker(marker, producer_id=producer.producer_id, producer_epoch=producer.epoch)

    def find(self, name: str) -> CoreHost[C] | None:
        """The core that decides for `name`; None while the topic does not exist."""
        return self.get(self.index_of(name)) if self.topic in self._state.topics else None

    async def host_of(self, name: str) -> CoreHost[C]:
        """The core that decides for `name`; creates the topic if it must."""
        await self.ensure_topic()
        return self.get(self.index_of(name))

    def loaded(self) -> dict[int, CoreHost[C]]:
        """The cores on this node that have loaded, by partition."""
        return {index: host for index, host in self._hosts.items() if host.is_ready}

    def hosts(self) -> Iterator[CoreHost[C]]:
        """All on this node, also those that are loading."""
        return iter(self._hosts.values())

    @property
    def all_online(self) -> bool:
        """Whether every core that should be on this node has loaded."""
        topic = self._state.topics.get(self.topic)
        return topic is None or not any(self._is_missing(index) for index in range(topic.partitions))

    def _is_missing(self, index: int) -> bool:
        host = self._hosts.get(index)
        if host is not None and host.is_ready:
            return False
        # A node without a cluster leads all partitions; one without a leader could not be opened.
        leader = self._view.partition(self._state.topics[self.topic], index).leader
        return not self._state.nodes or leader == self._state.node_id
