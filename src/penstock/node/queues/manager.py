"""Finds the driver of a queue on a partition, creates it for the first consumer, and ends it when the leader
changes."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from penstock.config import Limits, ShareGroupConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node.queues.consumers import ConsumerIdentity, QueueConsumers
from penstock.node.queues.dead_letters import DeadLetterWriter
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.lane_driver import LaneDriver
from penstock.node.queues.registration import QueueRegistration, Register
from penstock.node.queues.sessions import SessionPartition, ShareSession, ShareSessions
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.queues.stats import QueueFigures, QueueStats, QueueStatsTable, figures_of
from penstock.node.queues.values import unknown_queue
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.slices import in_slices
from penstock.queue import Backlog, QueueKey
from penstock.types import NO_EVENTS, EventSink, GroupId, TopicPartition

log = logging.getLogger("penstock.queues")

DRIVERS_PER_TURN = 100
"""Queues that are counted before other work gets its turn; each takes some 50 µs."""


async def _no_registration(group_id: str) -> None:
    """Does nothing, for nodes without a group coordinator."""


class QueueManager:
    """All queues on the partitions that this node leads. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        store: QueueStateClient,
        dead_letters: DeadLetterWriter,
        clock: Clock,
        limits: Limits,
        config_of: Callable[[str], ShareGroupConfig],
        register: Register = _no_registration,
        events: EventSink = NO_EVENTS,
    ) -> None:
        """`register` registers a share group at its coordinator."""
        self._events = events
        self._store = store
        self._dead_letters = dead_letters
        self._clock = clock
        self._limits = limits
        self._config_of = config_of
        self._registration = QueueRegistration(store, register)
        self._drivers: dict[QueueKey, QueueDriver] = {}
        self._on_partition: dict[GroupId, dict[QueueKey, QueueDriver]] = {}
        """The same drivers, by partition."""
        self._reloaded: dict[QueueKey, QueueConsumers] = {}
        """The consumers of queues whose driver has just ended to read the stored state again."""
        self._stats = QueueStatsTable()
        self.sessions = ShareSessions(
            limits.max_share_sessions,
            limits.max_partitions_per_session,
            self._session_closed,
            self._partition_removed,
        )

    async def driver(
        self, group_id: str, topic_id: UUID, partition: Partition, *, begin: bool = True
    ) -> QueueDriver:
        """The queue on this partition, which this node leads; KafkaError if it cannot be opened now. Without `begin`,
        only a queue with stored state: otherwise GROUP_ID_NOT_FOUND. POLICY_VIOLATION: it cannot have this name, or
        there are too many queues."""
        partition.check_readable()
        key = QueueKey(group_id, topic_id, partition.name.partition)
        if not begin and key not in self._drivers and await self._store.start_of(key) is None:
            raise unknown_queue(group_id)
        if begin and not self._is_driven(key):
            await self._registration.admit(key)
        driver = self._drivers.get(key)
        if driver is None or driver.ended is not None:
            if len(self._drivers) >= self._limits.max_queues:
                message = f"this node drives {self._limits.max_queues} queues, its limit (limits.max_queues)"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
            config = self._config_of(group_id)
            kind = LaneDriver if config.owner_ordered else QueueDriver
            driver = kind(
                key=key,
                partition=partition,
                store=self._store,
                config=config,
                clock=self._clock,
                write_dead_letter=self._dead_letters.write,
                on_end=self._ended,
                may_begin=begin,
                events=self._events,
                stats=self._stats.open(group_id, partition.name),
                consumers=self._reloaded.pop(key, None),
            )
            self._drivers[key] = driver
            self._on_partition.setdefault(partition.group, {})[key] = driver
            self._events.tell("queue.opened", **_labels(driver))
        elif begin:
            driver.may_begin = True
        await driver.opened()
        config = self._config_of(group_id)
        if config is not driver.config and config != driver.config:
            driver.configure(config)
            if driver.ended is not None:
                return await self.driver(group_id, topic_id, partition, begin=begin)
        return driver

    async def begin(self, group_id: str) -> None:
        """The caller is about to store where a queue of this name begins; POLICY_VIOLATION if it cannot have the
        name."""
        await self._registration.begin(group_id)

    def _is_driven(self, key: QueueKey) -> bool:
        driver = self._drivers.get(key)
        return driver is not None and driver.ended is None

    def find(self, key: QueueKey) -> QueueDriver | None:
        """The driver, if it serves requests."""
        driver = self._drivers.get(key)
        return driver if driver is not None and driver.is_open else None

    def drivers_of(self, group_id: str) -> list[QueueDriver]:
        """The drivers of one group, on all its partitions that this node leads."""
        return [driver for driver in self.drivers() if driver.key.group_id == group_id]

    def drivers(self) -> Iterable[QueueDriver]:
        return list(self._drivers.values())

    def reload(self, key: QueueKey, partition: TopicPartition) -> None:
        """The stored state was changed. The consumers stay: they will ask again."""
        driver = self.find(key)
        if driver is not None:
            self._reloaded[key] = driver.consumers
            driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this queue was reset; ask again"))
        self._stats.forget_idle(key.group_id, partition)

    def role_changed(self, partition: Partition) -> None:
        """This node began or ceased to lead a partition, or it was closed."""
        for driver in list(self._on_partition.get(partition.group, {}).values()):
            why = _why_it_ends(driver, partition)
            if why is not None:
                with logged_bugs(f"the end of the queue {driver.key.group_id!r} on {partition.name}"):
                    driver.end(why)

    def log_shortened(self, partitions: Collection[Partition]) -> None:
        """Records of these partitions were deleted."""
        for driver in self.drivers():
            if driver.partition in partitions and driver.is_open:
                driver.refresh()

    def deleted_undone(self, key: QueueKey, topic: str) -> int:
        """Messages on a partition that were deleted before they were done, since this node counts."""
        stats = self._stats.find(key.group_id, topic)
        return stats.deleted.get(key.partition, 0) if stats is not None else 0

    async def tidy(self) -> None:
        """Called periodically: closes idle queues (everything that matters is stored), and checks registrations."""
        for driver in self.drivers():
            if driver.is_open and driver.is_idle:
                driver.stats.add_idle(driver.partition, driver.config.isolation, driver.backlog)
                driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the queue was not used for a while"))
        self._reloaded.clear()
        self._registration.refresh(one.key.group_id for one in self.drivers() if one.may_begin)
        for stats in self._stats:
            stats.drop_outdated()

    def _ended(self, driver: QueueDriver) -> None:
        if self._drivers.get(driver.key) is driver:
            del self._drivers[driver.key]
        others = self._on_partition.get(driver.partition.group, {})
        if others.get(driver.key) is driver:
            del others[driver.key]
            if not others:
                del self._on_partition[driver.partition.group]
        self._registration.forget(driver.key.group_id)
        self._stats.close(driver.stats)
        if driver.partition.closed:
            self._stats.forget(driver.key.group_id, driver.partition.name.topic)
        reason = driver.ended.message if driver.ended is not None else None
        self._events.tell("queue.closed", **_labels(driver), reason=reason)

    def _session_closed(self, session: ShareSession) -> None:
        for topic_id, index in session.partitions:
            key = QueueKey(session.group_id, topic_id, index)
            driver = self._drivers.get(key)
            if driver is not None:
                driver.release(session.member_id)
            elif (consumers := self._reloaded.get(key)) is not None:
                consumers.detach(session.member_id)

    def _partition_removed(self, session: ShareSession, partition: SessionPartition) -> None:
        driver = self._drivers.get(QueueKey(session.group_id, *partition))
        if driver is not None:
            driver.consumers.detach(session.member_id)

    async def figures(self) -> list[QueueFigures]:
        """Figures for monitoring: the backlog and the counters of each queue on the partitions that this node leads."""
        backlogs: dict[QueueStats, Backlog] = {}
        consumers: dict[QueueStats, dict[str, ConsumerIdentity]] = {}
        async for driver in in_slices(self.drivers(), DRIVERS_PER_TURN):
            if driver.is_open:
                driver.refresh()
                backlogs[driver.stats] = backlogs.get(driver.stats, Backlog()).plus(driver.backlog)
                found = driver.consumers.identities(driver.now_ms, driver.held_by)
                consumers.setdefault(driver.stats, {}).update((one.consumer_id, one) for one in found)
        figures: list[QueueFigures] = []
        async for stats in in_slices(list(self._stats), DRIVERS_PER_TURN):
            stats.drop_outdated()
            for idle in stats.idle.values():
                backlogs[stats] = backlogs.get(stats, Backlog()).plus(idle.now)
            figures.append(figures_of(stats, backlogs.get(stats), consumers.get(stats, {}).values()))
        return figures

    async def stop(self) -> None:
        gone = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node is stopping")
        drivers = self.drivers()
        for driver in drivers:
            driver.end(gone)
        await asyncio.gather(*(driver.drain() for driver in drivers))
        self._registration.stop()


def _why_it_ends(driver: QueueDriver, partition: Partition) -> KafkaError | None:
    """After a change of the partition's role; None for a driver that goes on."""
    if partition.closed:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition.name} was deleted")
    if partition.serves and partition.term == driver.term and driver.partition is partition:
        return None
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} has a new leader")


def _labels(driver: QueueDriver) -> dict[str, object]:
    topic, index = driver.partition.name
    return {"group": driver.key.group_id, "topic": topic, "partition": index}
