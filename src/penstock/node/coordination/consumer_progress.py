"""How far all consumers have come in some partitions: a leader asks, the nodes that store progress answer.

Groups and subscriptions store their progress in one internal topic, queues in another. The leader of a partition asks
all nodes that lead a partition of these topics, with one request to each. An answer counts only if it comes from the
node and the term that the asker takes for the leader of the source (`penstock.queue.acked` has the rules).

The cost: each node that is asked looks at all groups that it coordinates and all queues whose state it keeps, a few
microseconds each. A cluster without topics that need it sends no request.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import UUID

from penstock.cluster import OFFSETS_TOPIC, STATE_TOPIC, ClusterState
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommittedOffset, Coordinator, GroupListing, GroupState
from penstock.node.calls import BROKER, Calls, methods
from penstock.node.calls.messages.groups import AckedOffsets, ListAckedOffsets
from penstock.node.coordination.core_host import CoreHost
from penstock.node.coordination.group_manager import GroupManager
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.state_client import WHOLE_TOPIC
from penstock.node.queues.state_log import QueueStateLog
from penstock.node.replication.leaders import NO_LEADER
from penstock.queue.acked import (
    NOTHING_ACKED,
    Poll,
    Progress,
    ProgressSource,
    ProgressTable,
    SourceLeader,
)
from penstock.types import Caller, GroupId, NodeId

log = logging.getLogger("penstock.node")

GROUPS_PER_TURN = 100
"""Groups that are looked at before other work gets its turn on the event loop: a millisecond or so."""

PARTITIONS_PER_TURN = 50

SOURCE_TOPICS = (OFFSETS_TOPIC, STATE_TOPIC)


class ConsumerProgress:
    """Both sides: a leader asks, a source of progress answers."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        groups: GroupManager,
        queues: QueueManager,
        store: QueueStateLog,
        calls: Calls,
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._groups = groups
        self._queues = queues
        self._store = store
        self._calls = calls
        calls.serve(methods.LIST_ACKED_OFFSETS, self._list_acked_offsets)

    # --- as a leader

    async def poll(self, partitions: Sequence[GroupId], *, queues_only: bool = False) -> Poll | None:
        """Asks all sources, or those of queues only. None: there are no sources."""
        if not (sources := self._leaders(queues_only)):
            return None
        poll = Poll(sources, partitions, queues_only=queues_only)
        if NO_LEADER not in poll.nodes:
            await self._ask(poll, partitions)
        return poll

    def is_valid(self, poll: Poll) -> bool:
        """Whether all sources have answered, and have the same leaders now as when they were asked."""
        return poll.is_valid(self._leaders(poll.queues_only))

    def _leaders(self, queues_only: bool) -> dict[ProgressSource, SourceLeader]:
        """The sources that this node knows of."""
        found = {}
        for name in SOURCE_TOPICS[queues_only:]:
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
        request = ListAckedOffsets(list(topics.items()), poll.queues_only)
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
            slowest = {GroupId(ids[at], index): name for at, index, name in answer.slowest}
            started: dict[UUID, dict[str, list[int]]] = {}
            for at, name, indexes in answer.started:
                started.setdefault(ids[at], {})[name] = indexes
        except IndexError as wrong:
            log.warning("node %s reports topics that it was not asked about: %s", node, wrong)
        else:
            poll.add_answer(node, answered, progress, started, slowest)

    def queue_starts(self, place: GroupId) -> list[int | None]:
        """The stored start of each queue that this node runs on a partition; None if nothing is stored yet."""
        return self.all_queue_starts().get(place, [])

    def all_queue_starts(self) -> dict[GroupId, list[int | None]]:
        """The same for all partitions that this node leads."""
        found: dict[GroupId, list[int | None]] = {}
        for driver in self._queues.drivers():
            if driver.ended is None:
                start = driver.core.saved_start_offset if driver.is_open else None
                found.setdefault(driver.partition.group, []).append(start)
        return found

    # --- as a source

    async def _list_acked_offsets(self, caller: Caller, request: ListAckedOffsets) -> AckedOffsets:
        """KafkaError if this node does not know one of the topics yet: it cannot say who consumes it."""
        ids = [topic_id for topic_id, _ in request.partitions]
        names = {self._name_of(topic_id): topic_id for topic_id in ids}
        table = ProgressTable(
            GroupId(topic_id, index) for topic_id, indexes in request.partitions for index in indexes
        )
        counts = self._partition_counts()
        sources = []
        if not request.queues_only:
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
        slowest = [(at[place.topic_id], place.partition, name) for place, name in table.slowest.items()]
        return AckedOffsets(counts, sources, progress, started, slowest)

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
