"""Which records all consumers have acked, so that they may be deleted (`cleanup.policy=acked`), and which ones the
queues have not, so that retention keeps them (`penstock.retention.keep.undone`).

*Consumers* here are queues, consumer groups and subscriptions. A queue has acked everything before the start of its
stored state; a group or a subscription, everything before its committed offset. A *progress source* knows some of them:
a partition of the topic in which groups commit, or of the topic in which queues are stored, in one term of its leader.
The leader of a partition with this policy asks all sources of the cluster at once (a `Poll`), combines their answers,
and deletes the records before the lowest offset. Retention on a partition that keeps undone messages asks the sources
of queues in the same way, and may delete expired records before the lowest offset of all queues; groups and
subscriptions do not count. Without a valid poll it deletes nothing.

Invariants:
 1. Nothing is deleted on partial knowledge. A poll is valid only if every source has answered it, each from the node
    and in the term that the asker took for its leader's before it asked, and still does afterwards. A consumer that was
    not counted could lose records that it has not read; a poll that fails costs a few seconds. So after a failover of a
    source the next poll starts from zero.
 2. A source reports only durable progress, and only while it is sure that no other node leads it.
 3. A group that consumes a topic has acked nothing in those partitions where it has committed nothing. It consumes the
    topics that its members read, also while they rebalance, and the topics in which it has committed.
 4. With `acked`, a topic without any consumer keeps everything: a first consumer may still come. Retention is not held
    back by queues that do not exist.
 5. A queue on a topic (it has state stored for any of the topic's partitions) has acked nothing in the partitions where
    it has not started: it reads a partition that was added later from the beginning. The state of a queue's partitions
    is spread over several sources, so only the asker, which has all answers, can tell where the queue has not started.
 6. The leader also asks the queues that it drives itself, at the moment of deletion: a queue that has just started is
    not missed because its source answered a moment earlier.

One gap remains, for the duration of a poll: a consumer group that commits for the first time, or moves back, while the
answers are on their way is treated as if it had come a moment later, when the records were already deleted. The same
holds for a queue that is created, or set back to an earlier offset, in that time.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from penstock.types import GroupId

NOTHING_ACKED = 0
"""The offset before which there are no records."""


class ProgressSource(NamedTuple):
    """A partition of an internal topic."""

    topic: str
    partition: int


class SourceLeader(NamedTuple):
    """The node that leads a source, and its term."""

    node: int
    term: int


class Progress(NamedTuple):
    """How many consumers a partition has, and the offset before which all of them have acked everything."""

    consumers: int
    offset: int


class ProgressTable:
    """The progress that the sources of one node report for some partitions."""

    def __init__(self, wanted: Iterable[GroupId]) -> None:
        self._partitions: dict[UUID, list[int]] = {}
        for topic_id, index in wanted:
            self._partitions.setdefault(topic_id, []).append(index)
        self.reported: dict[GroupId, Progress] = {}
        """The progress that sources have reported, for partitions that have consumers."""
        self.started: dict[UUID, dict[str, set[int]]] = {}
        """All partitions with stored state, by topic and queue, including partitions that were not asked for."""
        self.slowest: dict[GroupId, str] = {}
        """The queue that has come least far, for partitions that have queues."""

    def add_group(self, topic_id: UUID, offsets: Mapping[int, int]) -> None:
        """A group consumes this topic, and has acked everything before these offsets, by partition (3)."""
        for index in self._partitions.get(topic_id, ()):
            self.add(GroupId(topic_id, index), Progress(1, offsets.get(index, NOTHING_ACKED)))

    def add_queue(self, name: str, topic_id: UUID, index: int, start_offset: int) -> None:
        """A queue has acked everything before this offset of a partition."""
        if topic_id in self._partitions:
            self.add_started(topic_id, name, (index,))
        if index in self._partitions.get(topic_id, ()):
            self.add(GroupId(topic_id, index), Progress(1, start_offset), name)

    def add_started(self, topic_id: UUID, name: str, indexes: Collection[int]) -> None:
        """A queue is on this topic, and has started on these partitions."""
        self.started.setdefault(topic_id, {}).setdefault(name, set()).update(indexes)

    def add(self, partition: GroupId, progress: Progress, queue: str | None = None) -> None:
        """Adds consumers; `queue` names the slowest of them."""
        known = self.reported.get(partition)
        if queue is not None and (known is None or progress.offset < known.offset):
            self.slowest[partition] = queue
        if known is not None:
            progress = Progress(known.consumers + progress.consumers, min(known.offset, progress.offset))
        self.reported[partition] = progress

    def progress(self, partition: GroupId) -> Progress | None:
        """The progress of all consumers, also of queues that have not started there (5). None: it has no consumers."""
        queues = self.started.get(partition.topic_id, {}).values()
        not_started = sum(partition.partition not in indexes for indexes in queues)
        known = self.reported.get(partition)
        if not not_started:
            return known
        return Progress(not_started + (known.consumers if known is not None else 0), NOTHING_ACKED)

    def slowest_queue(self, partition: GroupId) -> str | None:
        """The queue that has come least far: one that has not started there, if there is any."""
        for name, indexes in sorted(self.started.get(partition.topic_id, {}).items()):
            if partition.partition not in indexes:
                return name
        return self.slowest.get(partition)


class Poll:
    """One request to all sources, and their answers."""

    def __init__(
        self,
        sources: Mapping[ProgressSource, SourceLeader],
        partitions: Iterable[GroupId],
        *,
        queues_only: bool = False,
    ) -> None:
        self.sources = dict(sources)
        self.queues_only = queues_only
        self._missing = dict(self.sources)
        self._table = ProgressTable(partitions)

    @property
    def nodes(self) -> list[int]:
        """The nodes to ask."""
        return sorted({leader.node for leader in self.sources.values()})

    def add_answer(
        self,
        node: int,
        answered: Mapping[ProgressSource, int],
        reported: Mapping[GroupId, Progress],
        started: Mapping[UUID, Mapping[str, Collection[int]]],
        slowest: Mapping[GroupId, str] = MappingProxyType({}),
    ) -> None:
        """A node's answer, at most one per node: the sources that it has counted, with their terms, and the result,
        with the slowest queues."""
        for source, term in answered.items():
            if self._missing.get(source) == SourceLeader(node, term):
                del self._missing[source]
        for partition, progress in reported.items():
            self._table.add(partition, progress, slowest.get(partition))
        for topic_id, queues in started.items():
            for name, indexes in queues.items():
                self._table.add_started(topic_id, name, indexes)

    def is_valid(self, sources: Mapping[ProgressSource, SourceLeader]) -> bool:
        """Whether all sources have answered, and have the same leaders now as when they were asked (1)."""
        return not self._missing and self.sources == sources

    @property
    def missing(self) -> list[ProgressSource]:
        """The sources that have not answered so far."""
        return list(self._missing)

    def progress(self, partition: GroupId) -> Progress | None:
        """None: it has no consumers, or an answer is missing."""
        return None if self._missing else self._table.progress(partition)

    def slowest_queue(self, partition: GroupId) -> str | None:
        """The queue that has come least far."""
        return self._table.slowest_queue(partition)


def acked_before(progress: Progress | None, queues: Sequence[int | None]) -> int:
    """The offset before which all consumers have acked everything. `queues` are the stored start offsets of the queues
    that the partition's leader drives, None where nothing is stored yet (4, 6)."""
    if progress is None or not progress.consumers:
        return NOTHING_ACKED
    starts = [NOTHING_ACKED if start is None else start for start in queues]
    return max(NOTHING_ACKED, min([progress.offset, *starts]))


def undone_from(progress: Progress | None, queues: Sequence[int | None]) -> int | None:
    """The offset from which on retention keeps all messages: the first that some queue has not settled. None if the
    partition has no queue. `progress` is that of the queues only; `queues` as in `acked_before` (6)."""
    starts = [NOTHING_ACKED if start is None else start for start in queues]
    if progress is not None and progress.consumers:
        starts.append(progress.offset)
    return max(NOTHING_ACKED, min(starts)) if starts else None
