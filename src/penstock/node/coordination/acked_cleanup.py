"""Deletes records that all consumers have acked, on the partitions that this node leads (`penstock.queue.acked` has the
rules).

Every two seconds, if this node leads such a partition with records in it, it asks all nodes that store the progress of
groups or queues for that progress, with one request to each. No state is kept from one round to the next, so none can
be out of date: each round determines again which node leads, which node stores what, and which consumers hold records
back.

The cost: each node that is asked looks at all groups that it coordinates and all queues whose state it keeps, a few
microseconds each. A cluster without such topics sends no request.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import UUID

from penstock.cluster import OFFSETS_TOPIC, STATE_TOPIC, ClusterState
from penstock.errors import CorruptLog, ErrorCode, KafkaError, PenstockError
from penstock.groups import CommittedOffset, Coordinator, GroupListing, GroupState
from penstock.node.calls import BROKER, Calls, methods
from penstock.node.calls.messages.groups import AckedOffsets, ListAckedOffsets
from penstock.node.clock import Clock
from penstock.node.coordination.core_host import CoreHost
from penstock.node.coordination.group_manager import GroupManager
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.state_client import WHOLE_TOPIC
from penstock.node.queues.state_log import QueueStateLog
from penstock.node.replication.leaders import NO_LEADER
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.workers import Workers
from penstock.queue.acked import (
    NOTHING_ACKED,
    Poll,
    Progress,
    ProgressSource,
    ProgressTable,
    SourceLeader,
    acked_before,
)
from penstock.types import Caller, GroupId, NodeId, Offset

log = logging.getLogger("penstock.node")

GROUPS_PER_TURN = 100
"""Groups that are looked at before other work gets its turn on the event loop: a millisecond or so."""

PARTITIONS_PER_TURN = 50

WARN_AFTER_ROUNDS = 30
"""A minute."""

SOURCE_TOPICS = (OFFSETS_TOPIC, STATE_TOPIC)


class AckedCleanup:
    """Both sides: a leader asks and deletes, a source of progress answers."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        partitions: PartitionTable,
        groups: GroupManager,
        queues: QueueManager,
        store: QueueStateLog,
        clock: Clock,
        workers: Workers,
        calls: Calls,
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._partitions = partitions
        self._groups = groups
        self._queues = queues
        self._store = store
        self._clock = clock
        self._workers = workers
        self._calls = calls
        self._failures = 0
        """Rounds in a row in which some source has not answered."""
        calls.serve(methods.LIST_ACKED_OFFSETS, self._list_acked_offsets)

    # --- as a leader

    async def clean(self) -> None:
        """One round."""
        led = {one.group: (one, one.term) for one in self._partitions.online() if _has_work(one)}
        if not led or not (sources := self._leaders()):
            return
        poll = Poll(sources, led)
        if NO_LEADER not in poll.nodes:
            await self._ask(poll, list(led))
        self._note(poll)
        shortened = []
        for count, (place, (partition, term)) in enumerate(led.items()):
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
                if not poll.is_valid(self._leaders()):
                    break
            is_as_it_was = not partition.closed and partition.serves and partition.term == term
            if is_as_it_was and self._clean(partition, poll.progress(place)):
                shortened.append(partition)
        for partition in shortened:
            await self._give_back(partition)

    def _note(self, poll: Poll) -> None:
        """Warns the operator that no space is freed; once, and not while an election explains it."""
        self._failures = 0 if poll.is_valid(poll.sources) else self._failures + 1
        if self._failures == WARN_AFTER_ROUNDS:
            log.warning(
                "acked records are not deleted (cleanup.policy=acked): no node answers for %s",
                ", ".join(f"{source.topic}-{source.partition}" for source in poll.missing),
            )

    def _leaders(self) -> dict[ProgressSource, SourceLeader]:
        """All sources that this node knows of."""
        found = {}
        for name in SOURCE_TOPICS:
            topic = self._state.topics.get(name)
            for index in range(topic.partitions if topic is not None else 0):
                facts = self._view.partition(self._state.topics[name], index)
                found[ProgressSource(name, index)] = SourceLeader(facts.leader, facts.term)
        return found

    async def _ask(self, poll: Poll, partitions: Sequence[GroupId]) -> None:
        """Asks all sources. One that fails leaves the poll incomplete."""
        topics: dict[UUID, list[int]] = {}
        for topic_id, index in partitions:
            topics.setdefault(topic_id, []).append(index)
        request = ListAckedOffsets(list(topics.items()))
        answers = await self._calls.ask_nodes(poll.nodes, methods.LIST_ACKED_OFFSETS, request, caller=BROKER)
        for node, answer in answers.items():
            if isinstance(answer, KafkaError):
                log.debug("node %s does not say how far its groups and queues are: %s", node, answer)
            elif answer.partition_counts == self._partition_counts():
                self._add_answer(poll, node, list(topics), answer)

    def _add_answer(self, poll: Poll, node: int, ids: Sequence[UUID], answer: AckedOffsets) -> None:
        try:
            answered = {
                ProgressSource(SOURCE_TOPICS[topic], index): term for topic, index, term in answer.sources
            }
            progress = {GroupId(ids[at], index): Progress(*rest) for at, index, *rest in answer.progress}
            started: dict[UUID, dict[str, list[int]]] = {}
            for at, name, indexes in answer.started:
                started.setdefault(ids[at], {})[name] = indexes
        except IndexError as wrong:
            log.warning("node %s reports topics that it was not asked about: %s", node, wrong)
        else:
            poll.add_answer(node, answered, progress, started)

    def _clean(self, partition: Partition, progress: Progress | None) -> bool:
        try:
            return self._delete(partition, progress)
        except CorruptLog as rot:
            partition.damaged(rot)
        except PenstockError as trouble:
            log.warning("%s: acked records could not be deleted: %s", partition.name, trouble)
        return False

    async def _give_back(self, partition: Partition) -> None:
        """Frees the memory of topics in memory at once; files can wait for the next round of housekeeping."""
        if partition.config.memory and not partition.closed:
            garbage = partition.log.maintenance.next_task()
            if garbage is not None:
                await self._workers.run(garbage)

    def _delete(self, partition: Partition, progress: Progress | None) -> bool:
        """Moves the start of the log; whether it did."""
        acked = acked_before(progress, self.queue_starts(partition.group))
        limit = Offset(min(acked, partition.high_watermark, partition.log.flushed_offset))
        if limit <= partition.start_offset or not partition.may_serve:
            return False
        young_ms = self._clock.wall_ms() - partition.config.acked_min_age_ms + 1
        found = partition.log.find_timestamp(young_ms, limit)
        if found is not None:
            limit = Offset(found[1])
        return limit > partition.start_offset and partition.delete_records(limit) == limit

    def queue_starts(self, place: GroupId) -> list[int | None]:
        """The stored start of each queue that this node runs on a partition; None if nothing is stored yet."""
        return [
            driver.core.saved_start_offset if driver.is_open else None
            for driver in self._queues.drivers()
            if driver.partition.group == place and driver.ended is None
        ]

    # --- as a source

    async def _list_acked_offsets(self, caller: Caller, request: ListAckedOffsets) -> AckedOffsets:
        """KafkaError if this node does not know one of the topics yet: it cannot say who consumes it."""
        ids = [topic_id for topic_id, _ in request.partitions]
        names = {self._name_of(topic_id): topic_id for topic_id in ids}
        table = ProgressTable(
            GroupId(topic_id, index) for topic_id, indexes in request.partitions for index in indexes
        )
        counts = self._partition_counts()
        sources = [(0, index, term) async for index, term in self._count_groups(names, table)]
        sources += [(1, index, term) async for index, term in self._count_queues(table)]
        at = {topic_id: number for number, topic_id in enumerate(ids)}
        progress = [
            (at[place.topic_id], place.partition, *progress) for place, progress in table.reported.items()
        ]
        started = [
            (at[topic_id], name, sorted(indexes))
            for topic_id, queues in table.started.items()
            for name, indexes in queues.items()
        ]
        return AckedOffsets(counts, sources, progress, started)

    def _partition_counts(self) -> list[int]:
        topics = [self._state.topics.get(name) for name in SOURCE_TOPICS]
        return [topic.partitions if topic is not None else 0 for topic in topics]

    def _name_of(self, topic_id: UUID) -> str:
        topic = self._state.topic_by_id(topic_id)
        if topic is None:
            message = f"topic {topic_id} is not known on node {self._node_id}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, message)
        return topic.name

    def _is_of_this_log(self, topic_id: UUID, index: int, term: int) -> bool:
        """Whether an offset that was stored in this term of the partition refers to the log that exists now. A log in
        memory starts at 0 again when its node restarts, in a later term: an offset from before then does not refer to
        it. A log whose leader has only changed is treated the same, until its consumers ack under the new leader."""
        topic = self._state.topic_by_id(topic_id)
        if topic is None or not topic.config.memory or not 0 <= index < topic.partitions:
            return True
        return term >= self._view.partition(topic, index).term

    async def _count_groups(
        self, names: Mapping[str, UUID], table: ProgressTable
    ) -> AsyncIterator[tuple[int, int]]:
        """Counts groups and subscriptions; yields each coordinator that still serves after its groups were counted."""
        for index, driver in list(self._groups.cores.loaded().items()):
            for count, row in enumerate(driver.core.list_groups((), ("classic",))):
                if count % GROUPS_PER_TURN == 0:
                    await asyncio.sleep(0)
                for name, committed in _acked_by(driver, row, names).items():
                    table.add_group(names[name], self._true_offsets(names[name], committed))
            if driver.serves:
                yield index, driver.term

    def _true_offsets(self, topic_id: UUID, committed: Mapping[int, CommittedOffset]) -> dict[int, int]:
        """The committed offsets without those of a log that is gone. One without a leader epoch counts as valid."""
        return {
            index: one.offset
            for index, one in committed.items()
            if one.leader_epoch < 0 or self._is_of_this_log(topic_id, index, one.leader_epoch)
        }

    async def _count_queues(self, table: ProgressTable) -> AsyncIterator[tuple[int, int]]:
        for index in self._store.cores.loaded():
            try:
                term, heads = await self._store.committed_heads(index)
            except KafkaError:
                continue
            for queue, head in heads:
                if queue.partition == WHOLE_TOPIC:
                    continue
                is_true = self._is_of_this_log(queue.topic_id, queue.partition, head.term)
                table.add_queue(*queue, head.start_offset if is_true else NOTHING_ACKED)
            yield index, term


def _has_work(partition: Partition) -> bool:
    return (
        partition.config.cleanup_acked
        and not partition.closed
        and partition.serves
        and partition.start_offset < partition.high_watermark
    )


def _acked_by(
    driver: CoreHost[Coordinator], row: GroupListing, names: Mapping[str, UUID]
) -> dict[str, dict[int, CommittedOffset]]:
    """Those of the topics that a group consumes, with the offsets that it has committed. It consumes those that
    its members read and those in which it has committed an offset. A rebalance, in which no member reads, does not
    change that: its members will then read from the beginning where nothing was committed. A subscription's offsets
    end with their TTL, also before they are deleted."""
    is_empty = row.state is GroupState.EMPTY
    found: dict[str, dict[int, CommittedOffset]] = {
        name: {} for name in sorted(driver.core.wanted_topics(row.group_id)) if name in names
    }
    for (name, index), committed in driver.core.fetch_offsets(row.group_id).items():
        is_over = is_empty and 0 <= committed.expire_timestamp_ms <= driver.now_ms
        if name in names and not is_over:
            found.setdefault(name, {})[index] = committed
    return found
