"""Queues of the whole cluster: descriptions, resets, deletion.

The stored state says which queues exist and where they begin. Only the leader of a partition knows which of its
messages are leased or deferred, and is asked for that. If it cannot be reached, these figures are left out.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.cluster import ClusterState, Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.calls import AtNode, Calls, LeaderOf, methods
from penstock.node.calls.messages.queues import DescribedQueue, DescribeQueue, QueueConsumer, QueueDescription
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.queues.consumers import LISTED_MAX, Interface, MergedConsumer, Sighting, merged
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.state_client import WHOLE_TOPIC, QueueStateClient
from penstock.node.replication.leaders import NO_LEADER
from penstock.node.replication.partition_table import PartitionTable
from penstock.queue import QueueKey
from penstock.types import NO_EVENTS, Caller, EventSink, GroupId, NodeId, TopicPartition

NAMED_MAX = 3
"""Consumers that the refusal of a deletion names."""


class QueueReport(NamedTuple):
    """Queues, and their consumers, by group."""

    descriptions: list[QueueDescription]
    consumers: dict[str, list[MergedConsumer]]


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
        calls: Calls,
        events: EventSink = NO_EVENTS,
    ) -> None:
        self._events = events
        self._node_id = node_id
        self._state = state
        self._view = view
        self._partitions = partitions
        self._store = store
        self._queues = queues
        self._calls = calls
        calls.serve(methods.DESCRIBE_QUEUE, self._describe_queue)
        calls.serve(methods.RELOAD_QUEUE, self._reload_queue)

    async def descriptions(
        self, group_id: str | None = None, *, caller: Caller, opened: bool = False
    ) -> list[QueueDescription]:
        """The queues of one group, or of all. `opened`: complete also for queues that have not been used since their
        leader was elected. KafkaError if the stored state cannot be read now."""
        return (await self.report(group_id, caller=caller, opened=opened)).descriptions

    async def report(
        self,
        group_id: str | None = None,
        *,
        caller: Caller,
        opened: bool = False,
        max_consumers: int = 0,
    ) -> QueueReport:
        """The same, with consumers: so many of each partition."""
        starts = await self._store.starts(group_id, caller=caller)
        asked = [
            self._described(DescribeQueue(queue, start, opened, max_consumers), caller)
            for queue, start in starts.items()
        ]
        found = [one for one in await asyncio.gather(*asked) if one is not None]
        found.sort(key=lambda one: (one[0].group_id, one[0].topic, one[0].partition))
        sightings: dict[str, list[Sighting]] = {}
        for description, consumers in found:
            sightings.setdefault(description.group_id, []).extend(_sightings(description, consumers))
        return QueueReport(
            [description for description, _ in found],
            {group: merged(rows)[:LISTED_MAX] for group, rows in sightings.items()},
        )

    async def forget(
        self, group_id: str, topics: Iterable[str] | None = None, *, caller: Caller
    ) -> list[str]:
        """Deletes the stored state of a group, of these topics or all; the names of the topics that it had state of.
        NON_EMPTY_GROUP while workers are connected: they would only begin the queue again."""
        wanted = None if topics is None else frozenset(topics)
        await self._check_unused(group_id, wanted, caller)
        gone: dict[str, int] = {}
        for queue in await self._store.starts(group_id, caller=caller):
            topic = self._state.topic_by_id(queue.topic_id)
            name = topic.name if topic is not None else ""
            if wanted is None or name in wanted:
                await self._store.forget(queue, caller=caller)
                await self._store.forget(queue._replace(partition=WHOLE_TOPIC), caller=caller)
                await self._reload(queue, caller)
                gone[name] = gone.get(name, 0) + 1
        for name, count in gone.items():
            self._events.tell("queue.deleted", group=group_id, topic=name or None, partitions=count)
        return list(gone)

    async def _check_unused(self, group_id: str, topics: frozenset[str] | None, caller: Caller) -> None:
        report = await self.report(group_id, caller=caller, max_consumers=LISTED_MAX)
        connected = [
            one
            for one in report.consumers.get(group_id, [])
            if one.interface != Interface.HTTP
            and (topics is None or any(topic in topics for topic, _ in one.partitions))
        ]
        if connected:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, has_consumers(group_id, connected))

    async def reset(
        self, group_id: str, topic: Topic, partition: int, start_offset: int, *, caller: Caller
    ) -> None:
        """A queue begins at this offset; messages behind it that were done are delivered again."""
        queue = QueueKey(group_id, topic.topic_id, partition)
        term = self._view.partition(topic, partition).term
        await self._store.reset(queue, start_offset, term, caller=caller)
        await self._reload(queue, caller)

    # --- asking the partitions' leaders

    async def _described(
        self, request: DescribeQueue, caller: Caller
    ) -> tuple[QueueDescription, list[QueueConsumer]] | None:
        queue = request.queue
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None or queue.partition >= topic.partitions:
            return None
        leader = self._view.partition(topic, queue.partition).leader
        blank = QueueDescription(
            group_id=queue.group_id,
            topic=topic.name,
            partition=queue.partition,
            leader=leader,
            start_offset=request.start_offset,
        )
        if leader == NO_LEADER:
            return blank, []
        try:
            found = await self._calls.ask(
                AtNode(NodeId(leader)), methods.DESCRIBE_QUEUE, request, caller=caller
            )
        except KafkaError:
            return blank, []
        return found.description or blank, found.consumers

    async def _reload(self, queue: QueueKey, caller: Caller) -> None:
        """Has the queue's driver, if there is one, read the stored state again. A driver that this does not reach finds
        out with its next save."""
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None or queue.partition >= topic.partitions:
            return
        if self._view.partition(topic, queue.partition).leader != NO_LEADER:
            target = LeaderOf(GroupId(queue.topic_id, queue.partition))
            await self._calls.ask(target, methods.RELOAD_QUEUE, queue, caller=caller)

    # --- answering

    async def _describe_queue(self, caller: Caller, request: DescribeQueue) -> DescribedQueue:
        if request.is_opened:
            with suppress(PenstockError):
                await self._open(request.queue)
        driver = self._queues.find(request.queue)
        consumers: list[QueueConsumer] = []
        if driver is not None:
            driver.refresh()
            consumers = driver.consumers.listed(driver.now_ms, driver.held_by, request.max_consumers)
        return DescribedQueue(self._describe(request.queue, request.start_offset), consumers)

    async def _open(self, queue: QueueKey) -> None:
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is not None:
            partition = self._partitions.get(topic.name, queue.partition)
            await self._queues.driver(queue.group_id, queue.topic_id, partition, begin=False)

    def _describe(self, queue: QueueKey, start_offset: int) -> QueueDescription | None:
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None:
            return None
        try:
            partition = self._partitions.get(topic.name, queue.partition)
            partition.check_readable()
        except KafkaError:
            return None
        end = partition.end_for(self._state.group_config(queue.group_id).isolation)
        deleted = self._queues.deleted_undone(queue, topic.name)
        driver = self._queues.find(queue)
        if driver is None:
            start = max(start_offset, partition.start_offset)
            return QueueDescription(
                group_id=queue.group_id,
                topic=topic.name,
                partition=queue.partition,
                leader=self._node_id,
                start_offset=start,
                end_offset=end,
                deleted_undone=deleted,
            )
        seen = driver.core.describe()
        known = seen.available + seen.leased + seen.deferred + seen.waiting + seen.dying
        return QueueDescription(
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
            workers=len(driver.consumers.connected),
            rate=driver.consumers.rate(driver.now_ms),
            deleted_undone=deleted,
        )

    def _reload_queue(self, caller: Caller, queue: QueueKey) -> None:
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is not None:
            self._queues.reload(queue, TopicPartition(topic.name, queue.partition))


def has_consumers(queue: str, connected: Sequence[MergedConsumer]) -> str:
    """Why a queue cannot be deleted."""
    shown = ", ".join(f"{one.name} at {one.address} ({one.interface})" for one in connected[:NAMED_MAX])
    more = f" and {len(connected) - NAMED_MAX} more" if len(connected) > NAMED_MAX else ""
    return f"queue {queue!r} has consumers connected: {shown}{more}; stop them first"


def _sightings(description: QueueDescription, consumers: Iterable[QueueConsumer]) -> Iterable[Sighting]:
    for one in consumers:
        yield Sighting(
            node=description.leader,
            topic=description.topic,
            partition=description.partition,
            consumer=one,
        )
