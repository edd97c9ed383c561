"""Records that the broker itself writes to topics, wherever their leaders are: dead letters, the status log.

A batch goes to the partition's leader. It is repeated while the leader changes, so it may be stored twice; it is never
lost once `append` has returned. If the topic is deleted meanwhile, the append fails at once; a new topic of the
same name does not get the batch, because it has another id.
"""

from collections.abc import Mapping

from penstock.batch import check_batch
from penstock.cluster import ClusterState, Topic
from penstock.cluster.decisions import DEFAULT
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import Calls, LeaderOf, methods
from penstock.node.calls.messages.records import AppendBatch
from penstock.node.metadata.controller import Controller
from penstock.node.replication.partition_table import PartitionTable
from penstock.types import Caller, GroupId


class RecordForwarder:
    """Sends batches to leaders, and appends those that other nodes send to this one."""

    def __init__(
        self, *, state: ClusterState, partitions: PartitionTable, controller: Controller, calls: Calls
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._controller = controller
        self._calls = calls
        calls.serve(methods.APPEND_BATCH, self._append)

    async def topic(
        self,
        name: str,
        *,
        caller: Caller,
        partitions: int = DEFAULT,
        configs: Mapping[str, str] | None = None,
    ) -> Topic:
        """The topic. If there is none, it is created with these configs."""
        if name not in self._state.topics:
            await self._controller.create_topic(name, caller=caller, partitions=partitions, configs=configs)
        return self._state.topics[name]

    async def append(self, topic: Topic, index: int, batch: bytes, *, caller: Caller) -> int:
        """The offset of the batch's first record, once it can no longer be lost. KafkaError says why it cannot be
        written."""
        group = GroupId(topic.topic_id, index)
        return await self._calls.ask(
            LeaderOf(group), methods.APPEND_BATCH, AppendBatch(group, batch), caller=caller
        )

    async def _append(self, caller: Caller, request: AppendBatch) -> int:
        topic_id, index = request.group
        topic = self._state.topic_by_id(topic_id)
        if topic is None or not 0 <= index < topic.partitions:
            message = "this node has not heard of the partition yet"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        partition = self._partitions.get(topic.name, index)
        batch = memoryview(bytearray(request.batch))  # the log writes offset and term into it
        appended = partition.append(batch, check_batch(batch))
        if (committed := partition.committed_at(appended)) is not None:
            await committed
        return appended.base_offset
