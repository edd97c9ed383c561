"""Opens the replicas that this node shall hold by the metadata, and closes or deletes the others.

A replica's files are deleted only by a decision: its topic was deleted, or its group has reported that it continues
without the replica. A replica that the metadata does not mention stays (see `ClusterState.may_discard`): missing
metadata must never cost data.

A topic may have thousands of partitions, so all of this is done in slices (`scheduling.slices`): a topic is in the
cluster's state before all of its replicas are open.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock.cluster import ClusterState, Topic
from penstock.cluster.records import UNKNOWN_INCARNATION
from penstock.errors import StorageError, TooManyOpenFiles
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.scheduling.slices import SlicedWork
from penstock.node.scheduling.workers import Workers
from penstock.raft import GroupConfig
from penstock.types import GroupId, Replica, TopicPartition

log = logging.getLogger("penstock.node")

STEPS_PER_SLICE = 20
"""Replicas that are opened or closed without a pause: opening one takes about 0.2 ms."""
CHECKS_PER_STEP = 50
"""Replicas that are only looked at take a few microseconds each."""
GROWN_BY = 1_000
REMOVED_TOGETHER = 20
"""Replicas whose files one job in a thread deletes: a node that stops waits for the jobs that run."""


class LocalReplicas(Part):
    """Acts on committed metadata, topic by topic."""

    def __init__(
        self,
        *,
        me: Replica,
        state: ClusterState,
        partitions: PartitionTable,
        workers: Workers,
        on_growth: Callable[[int], None] | None = None,
    ) -> None:
        """`on_growth` is called with the number of replicas when there are GROWN_BY more than before."""
        self._me = me
        self._state = state
        self._partitions = partitions
        self._workers = workers
        self._pending: dict[str, bool] = {}
        """Topics that have changed, and whether they had vanished before that."""
        self._work = SlicedWork(self._steps, steps_per_slice=STEPS_PER_SLICE)
        self._slow: set[asyncio.Task[None]] = set()
        self._lacking_files: dict[TopicPartition, GroupId] = {}
        """Replicas that could not be opened because the process had too many files open."""
        self._on_growth = on_growth
        self._count_before = 0

    def metadata_changed(self, topics: TopicChanges) -> None:
        for name in topics.vanished:
            self._pending[name] = True
        for name in topics.changed:
            self._pending.setdefault(name, False)
        self._work.start()

    async def finished(self) -> None:
        """Returns when the replicas of this node are as the metadata says."""
        await self._work.finished()

    def _steps(self) -> Iterator[None]:
        while self._pending:
            name = next(iter(self._pending))
            has_vanished = self._pending.pop(name)
            try:
                if has_vanished:
                    yield from self._set_aside(name)
                yield from self._bring(name)
            except StorageError as trouble:
                log.error("topic %s: %s", name, trouble)

    def _set_aside(self, name: str) -> Iterator[None]:
        """That the topic was deleted is likely and not certain: its files are kept, in another place."""
        for index in self._partitions.held(name):
            self._partitions.set_aside(name, index)
            yield

    def _bring(self, name: str) -> Iterator[None]:
        """Opens and closes the replicas of one topic that was created, deleted or changed. Ends early when the topic
        changes again, because then it is pending again."""
        topic = self._state.topics.get(name)
        yield from self._let_go(name, topic)
        if topic is not None:
            yield from self._open_missing(topic)
            yield from self._reconfigure(topic)

    def _is_outdated(self, name: str, topic: Topic | None) -> bool:
        return self._state.topics.get(name) is not topic

    def _let_go(self, name: str, topic: Topic | None) -> Iterator[None]:
        """Deletes replicas of a deleted topic, of an earlier topic of that name, and those that were moved elsewhere.
        Each is deleted as soon as it is found to be superfluous: a later change may assign it to this node again."""
        removals: list[Callable[[], None]] = []
        for count, index in enumerate(self._partitions.held(name), 1):
            if self._is_outdated(name, topic):
                break
            if topic is None or self._is_superfluous(topic, index):
                removals.extend(self._destroy(name, index))
                self._count_before = min(self._count_before, self._partitions.count)
                yield
            elif count % CHECKS_PER_STEP == 0:
                yield
            if len(removals) >= REMOVED_TOGETHER:
                self._remove(name, removals)
                removals = []
        if removals:
            self._remove(name, removals)

    def _destroy(self, name: str, index: int) -> Iterator[Callable[[], None]]:
        try:
            yield self._partitions.destroy(name, index)
        except StorageError as trouble:
            log.error("%s-%d: %s", name, index, trouble)

    def _open_missing(self, topic: Topic) -> Iterator[None]:
        held = frozenset(self._partitions.held(topic.name))
        for index, assignment in enumerate(topic.assignments):
            if self._is_outdated(topic.name, topic):
                return
            if index not in held and (
                self._me.node in assignment.shown or self._is_left(GroupId(topic.topic_id, index))
            ):
                self._open(topic, index)
                self._tell_growth()
                yield
            elif index % CHECKS_PER_STEP == 0:
                yield

    def _tell_growth(self) -> None:
        if self._on_growth is not None and self._partitions.count >= self._count_before + GROWN_BY:
            self._count_before = self._partitions.count
            self._on_growth(self._count_before)

    def _reconfigure(self, topic: Topic) -> Iterator[None]:
        for count, index in enumerate(self._partitions.held(topic.name), 1):
            if self._is_outdated(topic.name, topic):
                return
            self._partitions.reconfigure(topic.name, index, topic.config)
            if count % CHECKS_PER_STEP == 0:
                yield

    def _open(self, topic: Topic, index: int) -> Partition | None:
        # A node that was never registered with others is not known by its incarnation.
        unregistered = Replica(self._me.node, UNKNOWN_INCARNATION)
        founders = tuple(
            self._me if founder == unregistered else founder for founder in topic.assignments[index].founders
        )
        name, group = TopicPartition(topic.name, index), GroupId(topic.topic_id, index)
        opened = self._partitions.open(
            name,
            group,
            topic.config,
            GroupConfig(voters=founders) if self._partitions.replica(group) in founders else None,
        )
        if isinstance(self._partitions.offline_reason(*name), TooManyOpenFiles):
            self._lacking_files[name] = group
        return opened

    async def open_again(self) -> None:
        """Opens replicas that could not be opened because the process had too many files open."""
        for name, group in list(self._lacking_files.items()):
            del self._lacking_files[name]
            topic = self._state.topics.get(name.topic)
            is_offline = isinstance(self._partitions.offline_reason(*name), TooManyOpenFiles)
            if topic is None or topic.topic_id != group.topic_id or not is_offline:
                continue
            if self._open(topic, name.partition) is None:
                return  # there are still none: the others need not try
            log.warning("%s is online again", name)
            await asyncio.sleep(0)

    def _is_left(self, group: GroupId) -> bool:
        """Whether this node has a replica that no assignment names and that the group may still need: a move was
        replaced by another one after the group had made this replica a voter. Without it the group may have no
        majority, and only the group's own log can tell."""
        return self._partitions.had_log(group) and not self._state.may_discard(
            group, self._partitions.replica(group)
        )

    def _is_superfluous(self, topic: Topic, index: int) -> bool:
        partition = self._partitions.find(topic.name, index)
        group = GroupId(topic.topic_id, index)
        if self._partitions.group_of(topic.name, index) != group:
            return True
        if self._me.node in topic.assignments[index].shown:
            # The assignment may mean another life of this replica: its absence does not decide what happens to this one
            # (see `repair`).
            return False
        if partition is not None and self._was_added_again(partition):
            return False
        return self._state.may_discard(group, self._partitions.replica(group))

    def _was_added_again(self, partition: Partition) -> bool:
        """Whether the group took this replica back after the report that this node knows of. A later record, which has
        not arrived here yet, says so too; until then the leader may count on the files."""
        assignment, core = self._state.assignment(partition.group), partition.replica.consensus.core
        return (
            assignment is not None
            and core.configs.newest_index > assignment.config_index
            and core.configs.is_member(core.me)
        )

    def orphans(self) -> None:
        """Moves folders that belong to no replica of this node out of the way, once all metadata has been read. Only
        for a node without a cluster, which knows when that is. In a cluster a node may be registered and not have read
        of later topics yet: an unknown folder stays there until a topic needs its name."""
        known = {
            TopicPartition(name, index)
            for name in self._partitions.names()
            for index in self._partitions.held(name)
        }
        self._partitions.move_orphans(known)

    async def stop(self) -> None:
        """Returns when the files of deleted replicas are deleted."""
        await self._work.finished()
        if self._slow:
            await asyncio.wait(self._slow)

    def _remove(self, name: str, removals: Sequence[Callable[[], None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._workers.run(partial(_remove_all, name, removals)))
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)


def _remove_all(name: str, removals: Sequence[Callable[[], None]]) -> None:
    """Deletes the files of some replicas; runs in a thread."""
    for remove in removals:
        try:
            remove()
        except StorageError as trouble:
            log.error(
                "files of the deleted topic %s are left, the next start removes them: %s", name, trouble
            )
