"""Opens the replicas that this node shall hold by the metadata, and closes or deletes the others.

A replica's files are deleted only by a decision: its topic was deleted, or its group has reported that it continues
without the replica. A replica that the metadata does not mention stays (see `ClusterState.may_discard`): missing
metadata must never cost data.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from penstock.cluster import ClusterState, Topic
from penstock.cluster.records import UNKNOWN_INCARNATION
from penstock.errors import StorageError
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.workers import Workers
from penstock.raft import GroupConfig
from penstock.types import GroupId, Replica, TopicPartition

log = logging.getLogger("penstock.node")


class LocalReplicas(Part):
    """Acts on committed metadata, topic by topic."""

    def __init__(
        self, *, me: Replica, state: ClusterState, partitions: PartitionTable, workers: Workers
    ) -> None:
        self._me = me
        self._state = state
        self._partitions = partitions
        self._workers = workers
        self._slow: set[asyncio.Task[None]] = set()

    def metadata_changed(self, topics: TopicChanges) -> None:
        for name in topics.vanished:
            # That the topic was deleted is likely and not certain: its files are kept, in another place.
            self._partitions.set_aside(name)
        for name in topics.changed:
            self._bring(name)

    def _bring(self, name: str) -> None:
        """Opens and closes the replicas of one topic that was created, deleted or changed."""
        try:
            topic = self._state.topics.get(name)
            held = self._partitions.held(name)
            if topic is None:
                self._destroy(name, held)
                return
            self._let_go(topic, held)
            for index, assignment in enumerate(topic.assignments):
                if index not in self._partitions.held(name) and (
                    self._me.node in assignment.shown or self._is_left(GroupId(topic.topic_id, index))
                ):
                    self._open(topic, index)
            self._partitions.reconfigure(name, topic.config)
        except StorageError as trouble:
            log.error("topic %s: %s", name, trouble)

    def _open(self, topic: Topic, index: int) -> Partition | None:
        # A node that was never registered with others is not known by its incarnation.
        unregistered = Replica(self._me.node, UNKNOWN_INCARNATION)
        founders = tuple(
            self._me if founder == unregistered else founder for founder in topic.assignments[index].founders
        )
        group = GroupId(topic.topic_id, index)
        return self._partitions.open(
            TopicPartition(topic.name, index),
            group,
            topic.config,
            GroupConfig(voters=founders) if self._partitions.replica(group) in founders else None,
        )

    def _is_left(self, group: GroupId) -> bool:
        """Whether this node has a replica that no assignment names and that the group may still need: a move was
        replaced by another one after the group had made this replica a voter. Without it the group may have no
        majority, and only the group's own log can tell."""
        return self._partitions.had_log(group) and not self._state.may_discard(
            group, self._partitions.replica(group)
        )

    def _let_go(self, topic: Topic, held: Collection[int]) -> None:
        """Replicas of an earlier topic of that name, and those that were moved elsewhere."""
        gone = [index for index in held if self._is_superfluous(topic, index)]
        if gone:
            self._destroy(topic.name, gone)

    def _is_superfluous(self, topic: Topic, index: int) -> bool:
        partition = self._partitions.find(topic.name, index)
        group = GroupId(topic.topic_id, index)
        if partition is not None and partition.group != group:
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
        if self._slow:
            await asyncio.wait(self._slow)

    def _destroy(self, name: str, indexes: Collection[int]) -> None:
        for delete_files in self._partitions.destroy(name, indexes):
            task = asyncio.get_running_loop().create_task(self._delete(name, delete_files))
            self._slow.add(task)
            task.add_done_callback(self._slow.discard)

    async def _delete(self, name: str, delete_files: Callable[[], None]) -> None:
        try:
            await self._workers.run(delete_files)
        except StorageError as trouble:
            log.error(
                "files of the deleted topic %s are left, the next start removes them: %s", name, trouble
            )
