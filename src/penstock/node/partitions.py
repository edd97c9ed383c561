"""All partitions of this node: opened, found by name, closed, destroyed.

A folder is never deleted because nobody knows it: one that belongs to no topic is moved to `orphans/` with a warning,
since the metadata may be what was lost. Only a topic that was deleted by decision loses its files.
"""

import logging
from collections.abc import Callable, Iterator

from penstock.config import TopicConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.log import Log
from penstock.log.disk import Disk
from penstock.log.memory_disk import MemoryDisk
from penstock.node.clock import Clock
from penstock.node.partition import Partition
from penstock.types import Term, TopicPartition

log = logging.getLogger("penstock.node")

ORPHANS = "orphans"

Offline = CorruptLog | StorageError
"""Why a partition could not be opened: it stays closed, and all others go on."""


class PartitionTable:
    """Finds a topic's partitions; opens and closes them as the metadata says."""

    def __init__(
        self,
        *,
        disk: Disk,
        topics_dir: str,
        clock: Clock,
        term: Term,
        mark_dirty: Callable[[Partition], None],
    ) -> None:
        self._disk = disk
        self._memory = disk if isinstance(disk, MemoryDisk) else MemoryDisk()
        self._topics_dir = topics_dir
        self._clock = clock
        self.term = term
        self._mark_dirty = mark_dirty
        self._topics: dict[str, list[Partition | Offline]] = {}
        self._own: list[Partition] = []

    # --- finding

    def get(self, topic: str, index: int) -> Partition:
        partitions = self._topics.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
        partition = partitions[index]
        if isinstance(partition, Partition):
            return partition
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{index} is offline: {partition}")

    def is_online(self, topic: str, index: int) -> bool:
        partitions = self._topics.get(topic, [])
        return index < len(partitions) and isinstance(partitions[index], Partition)

    def offline_count(self) -> int:
        rows = (partition for partitions in self._topics.values() for partition in partitions)
        return sum(not isinstance(partition, Partition) for partition in rows)

    def online(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            for partition in partitions:
                if isinstance(partition, Partition):
                    yield partition

    def tended(self) -> list[Partition]:
        """All that housekeeping looks after: those of topics and the node's own."""
        return [*self.online(), *self._own]

    # --- opening and closing

    def open_topic(self, topic: str, count: int, config: TopicConfig, *, new: bool) -> None:
        """Opens the partitions of `topic` up to `count`; those that are open stay as they are. A folder that is there
        although the partition is `new` holds somebody else's records: it is moved out of the way."""
        partitions = self._topics.setdefault(topic, [])
        for index in range(len(partitions), count):
            name = TopicPartition(topic, index)
            if new and not config.memory and self._disk.exists(f"{self._topics_dir}/{name}"):
                self._move_aside(str(name))
            partitions.append(self._open(name, config))

    def open_own(self, name: TopicPartition, config: TopicConfig) -> Partition:
        """A partition of the node itself, outside all topics: the metadata log. Raises if it cannot be opened."""
        partition = self._open_log(name, config)
        self._own.append(partition)
        return partition

    def _open_log(self, name: TopicPartition, config: TopicConfig) -> Partition:
        stored = Log.open(self._disk_of(config), f"{self._topics_dir}/{name}", config)
        for cut in stored.cuts:
            log.warning("recovered %s: %s", name, cut)
        return Partition(
            name=name,
            log=stored,
            config=config,
            term=self.term,
            clock=self._clock,
            mark_dirty=self._mark_dirty,
        )

    def reconfigure(self, topic: str, config: TopicConfig) -> None:
        for partition in self._topics.get(topic, []):
            if isinstance(partition, Partition):
                partition.reconfigure(config)

    def destroy_topic(self, topic: str) -> list[Callable[[], None]]:
        """Closes the topic's partitions for good; returns the slow part of deleting them, for a thread."""
        slow = []
        for index, partition in enumerate(self._topics.pop(topic, [])):
            if isinstance(partition, Partition):
                partition.close()
                slow.append(partition.log.destroy())
            else:  # its log could not be opened, but its name must be free for the next topic
                slow.append(Log(self._disk, f"{self._topics_dir}/{topic}-{index}", TopicConfig()).destroy())
        return slow

    def close(self) -> None:
        """Closes every log; one that cannot save what would make the next start quicker keeps none from closing."""
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

    def move_orphans(self, known: set[TopicPartition]) -> None:
        """Moves folders that belong to no known partition out of the way of topics that may take their names."""
        names = {str(name) for name in known}
        for folder in sorted(self._disk.list_dir(self._topics_dir)):
            if folder not in names:
                self._move_aside(folder)

    def _move_aside(self, folder: str) -> None:
        self._disk.make_dir(ORPHANS)
        self._disk.rename(f"{self._topics_dir}/{folder}", f"{ORPHANS}/{folder}.{self._clock.wall_ms()}")
        for changed in (ORPHANS, self._topics_dir):
            self._disk.sync_dir(changed)
        log.warning(
            "%s belongs to no topic: moved to %s/ (delete it there if you do not miss it)", folder, ORPHANS
        )

    def _open(self, name: TopicPartition, config: TopicConfig) -> Partition | Offline:
        try:
            return self._open_log(name, config)
        except (CorruptLog, StorageError) as trouble:
            log.error("%s stays offline: %s", name, trouble)
            return trouble

    def _disk_of(self, config: TopicConfig) -> Disk:
        return self._memory if config.memory else self._disk
