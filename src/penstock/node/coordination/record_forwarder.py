"""Records that the broker itself writes to topics, wherever these are led: dead letters, the status log.

A batch goes to the partition's leader: this node, or another over the inter-node port. It is repeated while the lead
moves, so it may arrive twice; it is never lost once `append` has returned. A topic that is deleted meanwhile is not
waited for, and another one that gets its name is not written to: whoever sends a batch knows whether it belongs there.
"""

import asyncio
from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.batch import check_batch
from penstock.cluster import ClusterState, Topic
from penstock.cluster.decisions import DEFAULT
from penstock.errors import ErrorCode, KafkaError
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.replication.leaders import NO_LEADER
from penstock.node.replication.partition_table import PartitionTable
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

APPEND = 25
"""The method of the inter-node port."""

PATIENCE_SECONDS = 10.0
ANSWER_MS = 10_000
RETRY_SECONDS = 0.1

_PLACE = Struct(">16si")
_OFFSET = Struct(">q")

_MOVING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


class RecordForwarder:
    """Brings batches to leaders."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        partitions: PartitionTable,
        controller: Controller,
        rpc: "Rpc | None",
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._partitions = partitions
        self._controller = controller
        self._rpc = rpc
        if rpc is not None:
            rpc.handle(APPEND, self._serve_append)

    async def topic(
        self, name: str, *, partitions: int = DEFAULT, configs: Mapping[str, str] | None = None
    ) -> Topic:
        """The topic, made if there is none, and then with these configs."""
        if name not in self._state.topics:
            await self._controller.create_topic(name, partitions=partitions, configs=configs)
        return self._state.topics[name]

    async def append(self, topic: Topic, index: int, batch: bytes) -> int:
        """The offset of the batch's first record, once it can no longer be lost. KafkaError says why it cannot be
        written; StorageError if this node's disk refuses it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._append_once(topic, index, batch)
            except KafkaError as refused:
                if refused.code not in _MOVING or loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    def _check_there(self, topic: Topic) -> None:
        """This node has known it: if it knows it no more, it is not on its way but gone."""
        if self._state.topic_by_id(topic.topic_id) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {topic.name} was deleted")

    async def _append_once(self, topic: Topic, index: int, batch: bytes) -> int:
        self._check_there(topic)
        leader = self._view.partition(topic, index).leader
        if leader == self._node_id:
            return await self._append_here(topic.name, index, memoryview(bytearray(batch)))
        if leader == NO_LEADER or self._rpc is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads {topic.name}-{index} now")
        from penstock.node.peers import CallFailed

        question = _PLACE.pack(topic.topic_id.bytes, index) + batch
        try:
            answer = await self._rpc.call(NodeId(leader), APPEND, question, ANSWER_MS)
        except CallFailed as failed:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(failed)) from failed
        return int(_OFFSET.unpack(answer)[0])

    async def _append_here(self, name: str, index: int, batch: memoryview) -> int:
        partition = self._partitions.get(name, index)
        appended = partition.append(batch, check_batch(batch))
        if (committed := partition.committed_at(appended)) is not None:
            await committed
        return appended.base_offset

    async def _serve_append(self, sender: NodeId, body: memoryview) -> bytes:
        raw_id, index = _PLACE.unpack_from(body)
        topic = self._state.topic_by_id(UUID(bytes=raw_id))
        if topic is None or not 0 <= index < topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition here yet")
        batch = memoryview(bytearray(body[_PLACE.size :]))
        return _OFFSET.pack(await self._append_here(topic.name, index, batch))
