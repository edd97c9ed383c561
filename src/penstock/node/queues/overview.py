"""Queues as people see and change them, wherever they are: pictures, resets, deletion.

What is stored says which queues there are and where they begin; what is under way only the leaders of their partitions
know, and are asked for. A leader that cannot be reached leaves that part of the picture blank.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.cluster import ClusterState, Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.state_client import WHOLE_TOPIC, Place, QueueStateClient
from penstock.node.replication.leaders import NO_LEADER
from penstock.node.replication.partition_table import PartitionTable
from penstock.queue import QueueKey
from penstock.types import NO_EVENTS, EventSink, NodeId

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

LOOK, END = 28, 29
"""Methods of the inter-node port."""

ANSWER_MS = 5_000


class Look(msgspec.Struct, frozen=True, array_like=True):
    """Asks a leader for what is under way in a queue that begins at `start_offset` by what is stored."""

    place: Place
    start_offset: int
    is_opened: bool = False
    """Whether the queue is to be brought to life, so that it can be counted."""


class QueuePicture(msgspec.Struct, frozen=True, kw_only=True):
    """One queue on one partition. Numbers are None where the partition's leader could not be asked, or nobody has
    asked it for anything since it leads."""

    group_id: str
    topic: str
    partition: int
    leader: int
    start_offset: int
    """Everything before is done."""
    end_offset: int | None = None
    undone: int | None = None
    """Messages that are not done, also those that nobody has looked at."""
    available: int | None = None
    leased: int | None = None
    deferred: int | None = None
    waiting: int | None = None
    """For an earlier message of their key."""
    dying: int | None = None
    consumers: int | None = None
    holder: str | None = None
    """Who has it, of an exclusive queue."""
    workers: int | None = None
    """Consumers that are connected to it, whether or not anything is in their hands: of WebSockets only, as Kafka's are
    members of the group."""


class QueueOverview:
    """All queues of the cluster."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        partitions: PartitionTable,
        store: QueueStateClient,
        queues: QueueManager,
        rpc: "Rpc | None",
        events: EventSink = NO_EVENTS,
    ) -> None:
        self._events = events
        self._node_id = node_id
        self._state = state
        self._view = view
        self._partitions = partitions
        self._store = store
        self._queues = queues
        self._rpc = rpc
        if rpc is not None:
            rpc.handle(LOOK, self._serve_look)
            rpc.handle(END, self._serve_end)

    async def pictures(self, group_id: str | None = None, *, opened: bool = False) -> list[QueuePicture]:
        """Of one group, or of all; `opened`, complete also where nobody has asked the leader for anything so far.
        KafkaError if what is stored cannot be read now."""
        starts = await self._store.starts(group_id)
        asked = [self._picture(queue, start, opened) for queue, start in starts.items()]
        found = await asyncio.gather(*asked)
        return sorted(
            (one for one in found if one is not None),
            key=lambda one: (one.group_id, one.topic, one.partition),
        )

    async def forget(self, group_id: str, topics: Iterable[str] | None = None) -> list[str]:
        """Deletes what is stored of a group, of these topics or all; the names of those that there was something of.
        NON_EMPTY_GROUP while workers are connected: they would only begin it anew."""
        wanted = None if topics is None else frozenset(topics)
        await self._check_unused(group_id, wanted)
        gone: dict[str, int] = {}
        for queue in await self._store.starts(group_id):
            topic = self._state.topic_by_id(queue.topic_id)
            name = topic.name if topic is not None else ""
            if wanted is None or name in wanted:
                await self._store.forget(queue)
                await self._store.forget(queue._replace(partition=WHOLE_TOPIC))
                await self._end(queue)
                gone[name] = gone.get(name, 0) + 1
        for name, count in gone.items():
            self._events.tell("queue.deleted", group=group_id, topic=name or None, partitions=count)
        return list(gone)

    async def _check_unused(self, group_id: str, topics: frozenset[str] | None) -> None:
        pictures = await self.pictures(group_id)
        count = sum(one.workers or 0 for one in pictures if topics is None or one.topic in topics)
        if count:
            message = f"queue {group_id!r} has workers connected ({count}, counted on each partition): end them first"
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, message)

    async def reset(self, group_id: str, topic: Topic, partition: int, start_offset: int) -> None:
        """A queue begins there; what was done behind it is to be done again."""
        queue = QueueKey(group_id, topic.topic_id, partition)
        await self._store.reset(queue, start_offset, self._view.partition(topic, partition).term)
        await self._end(queue)

    # --- asking the partitions' leaders

    async def _picture(self, queue: QueueKey, start_offset: int, opened: bool) -> QueuePicture | None:
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None or queue.partition >= topic.partitions:
            return None
        leader = self._view.partition(topic, queue.partition).leader
        blank = QueuePicture(
            group_id=queue.group_id,
            topic=topic.name,
            partition=queue.partition,
            leader=leader,
            start_offset=start_offset,
        )
        question = msgspec.msgpack.encode(Look(Place.of(queue), start_offset, opened))
        if leader == self._node_id:
            answer: bytes | memoryview = await self._serve_look(self._node_id, memoryview(question))
        elif leader == NO_LEADER or self._rpc is None:
            return blank
        else:
            from penstock.node.peers import CallFailed

            try:
                answer = await self._rpc.call(NodeId(leader), LOOK, question, ANSWER_MS)
            except (CallFailed, KafkaError):
                return blank
        seen = msgspec.msgpack.decode(answer, type=QueuePicture | None)
        return seen or blank

    async def _end(self, queue: QueueKey) -> None:
        """Whoever drives it must read what is stored again. One that cannot be told learns it with its next save."""
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None or queue.partition >= topic.partitions:
            return
        leader = self._view.partition(topic, queue.partition).leader
        question = msgspec.msgpack.encode(Place.of(queue))
        if leader == self._node_id:
            await self._serve_end(self._node_id, memoryview(question))
        elif leader != NO_LEADER and self._rpc is not None:
            from penstock.node.peers import CallFailed

            try:
                await self._rpc.call(NodeId(leader), END, question, ANSWER_MS)
            except CallFailed as failed:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failed)) from failed

    # --- answering

    async def _serve_look(self, sender: NodeId, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=Look)
        if wish.is_opened:
            with suppress(PenstockError):
                await self._bring_to_life(wish.place.queue)
        return msgspec.msgpack.encode(self._look(wish.place.queue, wish.start_offset))

    async def _bring_to_life(self, queue: QueueKey) -> None:
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is not None:
            partition = self._partitions.get(topic.name, queue.partition)
            await self._queues.driver(queue.group_id, queue.topic_id, partition, begin=False)

    def _look(self, queue: QueueKey, start_offset: int) -> QueuePicture | None:
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None:
            return None
        try:
            partition = self._partitions.get(topic.name, queue.partition)
            partition.check_readable()
        except KafkaError:
            return None
        end = partition.end_for(self._state.group_config(queue.group_id).isolation)
        driver = self._queues.find(queue)
        if driver is None:
            start = max(start_offset, partition.start_offset)
            return QueuePicture(
                group_id=queue.group_id,
                topic=topic.name,
                partition=queue.partition,
                leader=self._node_id,
                start_offset=start,
                end_offset=end,
            )
        seen = driver.core.describe()
        known = seen.available + seen.leased + seen.deferred + seen.waiting + seen.dying
        return QueuePicture(
            group_id=queue.group_id,
            topic=topic.name,
            partition=queue.partition,
            leader=self._node_id,
            start_offset=seen.start_offset,
            end_offset=end,
            undone=known + max(0, end - seen.next_offset),
            available=seen.available + max(0, end - seen.next_offset),
            leased=seen.leased,
            deferred=seen.deferred,
            waiting=seen.waiting,
            dying=seen.dying,
            consumers=seen.members,
            holder=str(holder) if (holder := driver.other_holder("")) is not None else None,
            workers=driver.worker_count,
        )

    async def _serve_end(self, sender: NodeId, question: memoryview) -> bytes:
        driver = self._queues.find(msgspec.msgpack.decode(question, type=Place).queue)
        if driver is not None:
            driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this queue was reset; ask again"))
        return b""
