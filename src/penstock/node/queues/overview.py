"""Queues of the whole cluster: descriptions, resets, deletion.

The stored state says which queues exist and where they begin. The leader of a partition is asked for the rest. If it
has loaded the queue, it knows which messages are leased or deferred. If not, no consumer uses the queue, and its
messages are counted where its state is stored. If a leader cannot be reached, its figures are left out.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

import msgspec

from penstock.batch import iter_headers
from penstock.cluster import ClusterState, Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.calls import Calls, LeaderOf, methods
from penstock.node.calls.messages.queue_state import CountState
from penstock.node.calls.messages.queues import DescribedQueue, DescribeQueue, QueueConsumer, QueueDescription
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.queues.consumers import LISTED_MAX, Interface, MergedConsumer, Sighting, merged
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.start_position import is_beyond_term
from penstock.node.queues.state_client import WHOLE_TOPIC, QueueStateClient
from penstock.node.replication.leaders import NO_LEADER
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.queue import Backlog, QueueKey
from penstock.types import NO_EVENTS, Caller, EventSink, GroupId, NodeId, Offset, Term, TopicPartition

NAMED_MAX = 3
"""Consumers that the refusal of a deletion names."""
REPORTED_IN_LOOP = 300
"""Partitions of queues; each takes some 20 µs, and more if it has many consumers."""
MARKERS_READ_BYTES = 64 * 1024
AT_ONCE = 32
"""Queues that are described at the same time. Each takes up to a tenth of a millisecond of the event loop's time."""


class DescribedPartition(NamedTuple):
    """One partition of a queue."""

    description: QueueDescription
    consumers: Sequence[QueueConsumer] = ()
    consumer_count: int = 0


class ConsumerList(NamedTuple):
    """The consumers of one queue that are listed."""

    listed: Sequence[MergedConsumer] = ()
    has_more: bool = False
    total: int = 0
    """How many there are, at least: if there are more than are listed, those of the partition that has most."""


class QueueReport(NamedTuple):
    """Queues, and their consumers, by group."""

    descriptions: list[QueueDescription]
    consumers: dict[str, ConsumerList]

    def consumers_of(self, group_id: str) -> ConsumerList:
        return self.consumers.get(group_id, ConsumerList())


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
        self, group_id: str | None = None, *, caller: Caller, opened: bool = False, counted: bool = False
    ) -> list[QueueDescription]:
        """The queues of one group, or of all. KafkaError if the stored state cannot be read now.

        A queue that is not loaded has numbers only if they are asked for. `counted`: its stored state is counted, in
        which messages that are not due for the first time count as available. `opened`: it is loaded and reads its
        log."""
        return (await self.report(group_id, caller=caller, opened=opened, counted=counted)).descriptions

    async def report(
        self,
        group_id: str | None = None,
        *,
        caller: Caller,
        topics: Collection[str] | None = None,
        opened: bool = False,
        counted: bool = False,
        max_consumers: int = 0,
    ) -> QueueReport:
        """The same, with consumers: so many of each partition. `topics`: only of these."""
        starts = await self._store.starts(group_id, caller=caller)
        requests = [
            DescribeQueue(queue, start, opened, max_consumers, counted or opened)
            for queue, start in starts.items()
            if topics is None or self._is_on(queue, topics)
        ]
        found = await self._describe_all(requests, caller)
        if len(found) <= REPORTED_IN_LOOP:
            return _report(found)
        return await asyncio.get_running_loop().run_in_executor(None, _report, found)

    def _is_on(self, queue: QueueKey, topics: Collection[str]) -> bool:
        topic = self._state.topic_by_id(queue.topic_id)
        return topic is not None and topic.name in topics

    async def topics(self, group_id: str, *, caller: Caller) -> list[str]:
        """The topics that a group has queues on. KafkaError if the stored state cannot be read now."""
        starts = await self._store.starts(group_id, caller=caller)
        found = (self._state.topic_by_id(topic_id) for topic_id in {queue.topic_id for queue in starts})
        return sorted(topic.name for topic in found if topic is not None)

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
            for one in report.consumers_of(group_id).listed
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

    async def _describe_all(
        self, requests: Sequence[DescribeQueue], caller: Caller
    ) -> list[DescribedPartition]:
        """AT_ONCE at the same time, so that thousands of queues do not hold up other work. A leader that leaves one
        request unanswered is not asked again."""
        found: list[DescribedPartition] = []
        silent: set[NodeId] = set()
        remaining = iter(requests)

        async def describe_in_turn() -> None:
            for request in remaining:
                described = await self._described(request, caller, silent)
                if described is not None:
                    found.append(described)
                await asyncio.sleep(0)

        await asyncio.gather(*(describe_in_turn() for _ in requests[:AT_ONCE]))
        return found

    async def _described(
        self, request: DescribeQueue, caller: Caller, silent: set[NodeId]
    ) -> DescribedPartition | None:
        queue = request.queue
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None or queue.partition >= topic.partitions:
            return None
        found = await self._calls.ask_known(
            LeaderOf(GroupId(queue.topic_id, queue.partition)),
            methods.DESCRIBE_QUEUE,
            request,
            caller=caller,
            silent=silent,
            is_refusal=lambda described: described.description is None,
        )
        if found is not None and found.description is not None:
            return DescribedPartition(found.description, found.consumers, found.consumer_count)
        return DescribedPartition(
            QueueDescription(
                group_id=queue.group_id,
                topic=topic.name,
                partition=queue.partition,
                leader=self._view.partition(topic, queue.partition).leader,
                start_offset=request.start_offset,
            )
        )

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
        queue = request.queue
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None:
            return DescribedQueue(None)
        try:
            partition = self._partitions.get(topic.name, queue.partition)
            partition.check_readable()
        except KafkaError:
            return DescribedQueue(None)
        if request.is_opened:
            with suppress(PenstockError):
                driver = await self._queues.driver(queue.group_id, queue.topic_id, partition, begin=False)
                await driver.read_on()
        loaded = self._queues.find(queue)
        if loaded is None:
            return DescribedQueue(await self._describe_stored(request, partition))
        loaded.refresh()
        listed = loaded.consumers.listed(loaded.now_ms, loaded.held_by, request.max_consumers)
        return DescribedQueue(self._describe_loaded(loaded), listed, loaded.consumers.count)

    def _describe_loaded(self, driver: QueueDriver) -> QueueDescription:
        topic, index = driver.partition.name
        backlog = driver.backlog
        return QueueDescription(
            group_id=driver.key.group_id,
            topic=topic,
            partition=index,
            leader=self._node_id,
            start_offset=driver.core.start_offset,
            end_offset=driver.end_offset,
            undone=backlog.undone,
            available=backlog.available,
            leased=backlog.leased,
            deferred=backlog.deferred,
            waiting=backlog.waiting,
            dying=backlog.dying,
            consumers=driver.core.describe().members,
            holder=str(holder) if (holder := driver.other_holder("")) is not None else None,
            workers=len(driver.consumers.connected),
            rate=driver.consumers.rate(driver.now_ms),
            deleted_undone=self._queues.deleted_undone(driver.key, topic),
        )

    async def _describe_stored(self, request: DescribeQueue, partition: Partition) -> QueueDescription:
        """A queue that is not loaded. It has no consumers."""
        queue, topic = request.queue, partition.name.topic
        end = partition.end_for(self._state.group_config(queue.group_id).isolation)
        blank = QueueDescription(
            group_id=queue.group_id,
            topic=topic,
            partition=queue.partition,
            leader=self._node_id,
            start_offset=max(request.start_offset, partition.start_offset),
            end_offset=end,
            deleted_undone=self._queues.deleted_undone(queue, topic),
        )
        if not request.is_counted:
            return blank
        try:
            backlog = await self._stored_backlog(queue, partition, end)
        except KafkaError:
            return blank
        return msgspec.structs.replace(
            blank, undone=backlog.undone, consumers=0, workers=0, rate=0.0, **backlog._asdict()
        )

    async def _stored_backlog(self, queue: QueueKey, partition: Partition, end: Offset) -> Backlog:
        config = self._state.group_config(queue.group_id)
        counted = await self._store.count(
            CountState(queue, partition.start_offset, end, config.delivery_count_limit, config.dead_letters)
        )
        if is_beyond_term(partition, Term(counted.term), counted.state_end):  # the queue will start again
            return Backlog(available=end - partition.start_offset)
        unread = Offset(max(counted.state_end, partition.start_offset))
        markers = count_markers(partition, unread, end)
        return counted.backlog._replace(available=max(0, counted.backlog.available - markers))

    def _reload_queue(self, caller: Caller, queue: QueueKey) -> None:
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is not None:
            self._queues.reload(queue, TopicPartition(topic.name, queue.partition))


def count_markers(partition: Partition, first: Offset, end: Offset) -> int:
    """The markers of transactions among these offsets, of which the stored state of a queue says nothing. They are no
    messages. Only MARKERS_READ_BYTES are read: exact for the last messages of a log, where it would be seen."""
    try:
        data = partition.read(first, MARKERS_READ_BYTES, end=end, at_least_one=False)
    except PenstockError:
        return 0
    return sum(
        head.record_count for _, head in iter_headers(data) if head.control and head.base_offset >= first
    )


def has_consumers(queue: str, connected: Sequence[MergedConsumer]) -> str:
    """Why a queue cannot be deleted."""
    shown = ", ".join(f"{one.name} at {one.address} ({one.interface})" for one in connected[:NAMED_MAX])
    more = f" and {len(connected) - NAMED_MAX} more" if len(connected) > NAMED_MAX else ""
    return f"queue {queue!r} has consumers connected: {shown}{more}; stop them first"


def _place(description: QueueDescription) -> tuple[str, str, int]:
    return description.group_id, description.topic, description.partition


def _report(found: list[DescribedPartition]) -> QueueReport:
    """May run in a thread."""
    found.sort(key=lambda one: _place(one.description))
    groups = groupby(found, key=lambda one: one.description.group_id)
    return QueueReport(
        [one.description for one in found], {group: _consumers(list(rows)) for group, rows in groups}
    )


def _consumers(partitions: Sequence[DescribedPartition]) -> ConsumerList:
    """The consumers of all partitions of one queue."""
    found = merged(sighting for one in partitions for sighting in _sightings(one))
    is_cut = any(one.consumer_count > len(one.consumers) for one in partitions)
    return ConsumerList(
        found[:LISTED_MAX],
        is_cut or len(found) > LISTED_MAX,
        max(len(found), *(one.consumer_count for one in partitions)),
    )


def _sightings(described: DescribedPartition) -> Iterable[Sighting]:
    for one in described.consumers:
        yield Sighting(
            node=described.description.leader,
            topic=described.description.topic,
            partition=described.description.partition,
            consumer=one,
        )
