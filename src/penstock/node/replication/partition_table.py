"""All partitions of which this node holds a replica: opened, found by name, closed, destroyed.

An unknown folder is never deleted: the table moves it to `orphans/` with a warning, because the metadata may be what
was lost. Files are deleted only by a decision: the topic was deleted, or the replica was moved to another node. The
store of terms and votes records which partition owns a folder, by the topic's id. So the folder of a topic that was
deleted and created again while this node was down is not mistaken for the new topic's.

A replica that is rebuilt (`renew`) leaves its old files in `orphans/` too: they may have records that no other replica
has.
"""

import logging
from collections.abc import Callable, Iterator

from penstock.config import TopicConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.log import Log
from penstock.log.disk import Disk
from penstock.log.layout import name_aside
from penstock.log.memory_disk import MemoryDisk
from penstock.node.replication.multi_raft import MultiRaft
from penstock.node.replication.partition import Partition
from penstock.node.replication.replica import PartitionReplica
from penstock.node.scheduling.clock import Clock
from penstock.raft import GroupConfig
from penstock.types import GroupId, Replica, TopicPartition

log = logging.getLogger("penstock.node")

ORPHANS = "orphans"

Offline = CorruptLog | StorageError
"""Why a partition could not be opened. It stays closed; other partitions are not affected."""


class LogLost(StorageError):
    """There was a log of this replica, and its files are gone."""


class PartitionTable:
    """Finds a topic's partitions; opens and closes them as the metadata says."""

    def __init__(
        self,
        *,
        disk: Disk,
        topics_dir: str,
        clock: Clock,
        multi_raft: MultiRaft,
        mark_dirty: Callable[[PartitionReplica], None],
        on_role: Callable[[Partition], None],
    ) -> None:
        self._disk = disk
        self._memory = disk if isinstance(disk, MemoryDisk) else MemoryDisk()
        self._topics_dir = topics_dir
        self._clock = clock
        self._multi_raft = multi_raft
        self._mark_dirty = mark_dirty
        self._on_role = on_role
        self._topics: dict[str, dict[int, Partition | Offline]] = {}
        self._own: list[Partition] = []
        self._groups: dict[TopicPartition, GroupId] = {}
        """The groups of all replicas that this node should have open, also of the offline ones."""

    # --- finding

    def find(self, topic: str, index: int) -> Partition | None:
        """The replica that this node holds and could open."""
        found = self._topics.get(topic, {}).get(index)
        return found if isinstance(found, Partition) else None

    def offline_reason(self, topic: str, index: int) -> Offline | None:
        """Why the replica that this node holds cannot serve."""
        found = self._topics.get(topic, {}).get(index)
        return found if not isinstance(found, Partition) else None

    def get(self, topic: str, index: int) -> Partition:
        """The replica; KafkaError says why there is none."""
        found = self._topics.get(topic, {}).get(index)
        if isinstance(found, Partition):
            return found
        if found is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is on other nodes")
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{index} is offline: {found}")

    def offline_count(self) -> int:
        rows = (partition for partitions in self._topics.values() for partition in partitions.values())
        return sum(not isinstance(partition, Partition) for partition in rows)

    def held(self, topic: str) -> list[int]:
        """Indexes of the topic's partitions of which a replica is here."""
        return sorted(self._topics.get(topic, ()))

    def holds(self, topic: str, index: int) -> bool:
        """Whether a replica of the partition is here, online or not."""
        return index in self._topics.get(topic, ())

    def group_of(self, topic: str, index: int) -> GroupId | None:
        """The group of the replica that is here, also of an offline one: that of an earlier topic of this name, until
        it is destroyed."""
        return self._groups.get(TopicPartition(topic, index))

    @property
    def count(self) -> int:
        """All replicas that are here, online or not."""
        return len(self._groups)

    def names(self) -> list[str]:
        return list(self._topics)

    def online(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            for partition in partitions.values():
                if isinstance(partition, Partition):
                    yield partition

    def replica(self, group: GroupId) -> Replica:
        """This node's replica of the group, in its present life."""
        return self._multi_raft.replica(group)

    def had_log(self, group: GroupId) -> bool:
        """Whether this node has stored entries of the group and has not discarded its replica since."""
        return self._multi_raft.hard_states.had_log(group)

    def is_connected(self, member: Replica) -> bool:
        """Whether the replica's node is connected with this one now, and still has the replica's data folder."""
        hello = self._multi_raft.transport.connected().get(member.node)
        return hello is not None and member.life_of(hello.replica) is not None

    def replicas(self) -> Iterator[tuple[TopicPartition, GroupId, Partition | Offline]]:
        """All replicas that this node should have open, also the offline ones."""
        for name, group in self._groups.items():
            found = self._topics.get(name.topic, {}).get(name.partition)
            if found is not None:
                yield name, group, found

    def own(self) -> list[Partition]:
        """The partitions of the node itself, which belong to no topic."""
        return list(self._own)

    def tended(self) -> list[Partition]:
        """All that housekeeping looks after: those of topics and the node's own."""
        return [*self.online(), *self._own]

    # --- opening and closing

    def open(
        self, name: TopicPartition, group: GroupId, config: TopicConfig, founding: GroupConfig | None
    ) -> Partition | None:
        """Opens a replica and lets it take part. None: it cannot be opened, and stays offline."""
        partitions = self._topics.setdefault(name.topic, {})
        try:
            partition = self._open(name, group, config, founding)
        except (CorruptLog, StorageError) as trouble:
            log.error("%s stays offline: %s", name, trouble)
            partitions[name.partition] = trouble
            return None
        partitions[name.partition] = partition
        partition.start()
        return partition

    def _open(
        self, name: TopicPartition, group: GroupId, config: TopicConfig, founding: GroupConfig | None
    ) -> Partition:
        self._groups[name] = group
        there = not config.memory and self._disk.exists(f"{self._topics_dir}/{name}")
        if there and not self._multi_raft.hard_states.is_known(group):
            # The records are those of an earlier topic of this name.
            self._move_aside(str(name))
        return self._partition(name, group, config, founding, on_commit=None)

    def open_own(
        self,
        name: TopicPartition,
        group: GroupId,
        config: TopicConfig,
        founding: GroupConfig | None,
        on_commit: Callable[[Partition], None],
    ) -> Partition:
        """A partition of the node itself, outside all topics: the metadata log. Raises if it cannot be opened. The
        caller starts it."""
        partition = self._partition(name, group, config, founding, on_commit, is_copied=False)
        self._own.append(partition)
        return partition

    def _partition(
        self,
        name: TopicPartition,
        group: GroupId,
        config: TopicConfig,
        founding: GroupConfig | None,
        on_commit: Callable[[Partition], None] | None,
        *,
        is_copied: bool = True,
    ) -> Partition:
        """`is_copied`: if the files are gone, the node starts without them, and other replicas may send them."""
        disk = self._disk_of(config)
        stored = Log.open(disk, f"{self._topics_dir}/{name}", config)
        for cut in stored.cuts:
            log.warning("recovered %s: %s", name, cut)
        if not disk.volatile:
            self._check_not_lost(stored, group, is_copied)
        return Partition(
            name=name,
            group=group,
            log=stored,
            config=config,
            founding=founding,
            multi_raft=self._multi_raft,
            clock=self._clock,
            mark_dirty=self._mark_dirty,
            on_role=self._on_role,
            on_commit=on_commit,
            is_lasting=not disk.volatile,
        )

    def _check_not_lost(self, stored: Log, group: GroupId, is_copied: bool) -> None:
        """A replica that has lost acknowledged entries must not vote: it could elect a replica that never had them."""
        if stored.entries.end_index == 0 and self._multi_raft.hard_states.had_log(group):
            copied = "where enough other nodes have it, it is copied from them; else " if is_copied else ""
            raise LogLost(
                f"{stored.path} is missing or empty, and with it what this node had acknowledged: {copied}bring the "
                "files back"
            )

    def renew(self, name: TopicPartition, life: int, config: TopicConfig) -> Partition | None:
        """Rebuilds a replica, in another life, with an empty log that its leader fills. The old files are moved aside
        before the new life is stored. A crash between the two leaves a replica without files, which is rebuilt again,
        and never a new life with the files of an old one. Raises StorageError; the replica is then closed."""
        found, group = self._topics[name.topic][name.partition], self._groups[name]
        if isinstance(found, Partition):
            self._close(found)
            found.log.abandon("is rebuilt")
            self._topics[name.topic][name.partition] = LogLost(f"{name} is being rebuilt")
        if self._disk.exists(f"{self._topics_dir}/{name}"):
            self._move_aside(str(name), "is rebuilt from the other replicas")
        self._multi_raft.hard_states.renew_now(group, life)
        return self.open(name, group, config, None)

    def reconfigure(self, topic: str, index: int, config: TopicConfig) -> None:
        partition = self.find(topic, index)
        if partition is not None and partition.config != config:
            partition.reconfigure(config)

    def destroy(self, topic: str, index: int) -> Callable[[], None]:
        """Closes a replica for good. Returns the slow part of its deletion, for a thread."""
        found, group = self._take_out(topic, index)
        if group is not None:
            self._multi_raft.hard_states.forget(group)
        if isinstance(found, Partition):
            self._close(found)
            return found.log.destroy()
        # Its log could not be opened, but its name must be free for the next topic.
        return Log(self._disk, f"{self._topics_dir}/{topic}-{index}", TopicConfig()).destroy()

    def set_aside(self, topic: str, index: int) -> None:
        """Closes a replica and moves its folder out of the way."""
        found, _ = self._take_out(topic, index)
        if isinstance(found, Partition):
            self._close(found)
            found.log.close()
        if self._disk.exists(f"{self._topics_dir}/{topic}-{index}"):
            self._move_aside(f"{topic}-{index}")

    def _take_out(self, topic: str, index: int) -> tuple[Partition | Offline, GroupId | None]:
        partitions = self._topics[topic]
        found = partitions.pop(index)
        if not partitions:
            del self._topics[topic]
        return found, self._groups.pop(TopicPartition(topic, index), None)

    def _close(self, partition: Partition) -> None:
        """Other parts of the node learn that they cannot use it any more."""
        partition.close()
        self._on_role(partition)

    def close(self) -> None:
        """Closes every log. A log that cannot save its checkpoint (the next start is then slower) does not keep others
        from closing."""
        for partition in self.tended():
            partition.close()
            try:
                partition.log.close()
            except StorageError as trouble:
                log.error(
                    "%s was not closed cleanly, the next start recovers it: %s", partition.name, trouble
                )
        self._topics.clear()
        self._own.clear()

    # --- folders

    def move_orphans(self, known: set[TopicPartition]) -> None:
        """Moves folders that belong to no known partition out of the way of topics that may take their names."""
        names = {str(name) for name in known} | {str(partition.name) for partition in self._own}
        for folder in sorted(self._disk.list_dir(self._topics_dir)):
            if folder not in names:
                self._move_aside(folder)

    def _move_aside(self, folder: str, why: str = "belongs to no topic") -> None:
        self._disk.make_dir(ORPHANS)
        # The name of the folder itself must be on the disk before files move there: they may be the only copy.
        self._disk.sync_dir("")
        now_ms = self._clock.wall_ms()
        while self._disk.exists(aside := f"{ORPHANS}/{name_aside(folder, f'.{now_ms}')}"):
            now_ms += 1
        self._disk.rename(f"{self._topics_dir}/{folder}", aside)
        for changed in (ORPHANS, self._topics_dir):
            self._disk.sync_dir(changed)
        log.warning(
            "%s %s: its files were moved to %s/ (delete them if you do not need them)",
            folder,
            why,
            ORPHANS,
        )

    def _disk_of(self, config: TopicConfig) -> Disk:
        return self._memory if config.memory else self._disk
