"""Finds the driver of a queue on a partition, makes it when the first consumer comes, and ends it with the lead."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from uuid import UUID

from penstock.config import Limits, ShareGroupConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node.clock import Clock
from penstock.node.queues.dead_letters import DeadLetterWriter
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.registration import Note, QueueRegistration
from penstock.node.queues.sessions import ShareSession, ShareSessions
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.queues.stats import Backlog, QueueFigures, QueueStats, QueueStatsTable, figures_of
from penstock.node.queues.values import unknown_queue
from penstock.node.replication.partition import Partition
from penstock.queue import QueueKey
from penstock.types import NO_EVENTS, EventSink

log = logging.getLogger("penstock.queues")


async def _unasked(group_id: str) -> None:
    """Where there is no group coordinator, nobody has to note anything."""


class QueueManager:
    """All queues on the partitions that this node leads. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        store: QueueStateClient,
        graveyard: DeadLetterWriter,
        clock: Clock,
        limits: Limits,
        config_of: Callable[[str], ShareGroupConfig],
        note: Note = _unasked,
        events: EventSink = NO_EVENTS,
    ) -> None:
        """`note` tells the coordinator of a group that it is there."""
        self._events = events
        self._store = store
        self._graveyard = graveyard
        self._clock = clock
        self._limits = limits
        self._config_of = config_of
        self._admission = QueueRegistration(store, note)
        self._drivers: dict[QueueKey, QueueDriver] = {}
        self._tallies = QueueStatsTable()
        self.sessions = ShareSessions(
            limits.max_share_sessions, limits.max_partitions_per_session, self._session_closed
        )

    async def driver(
        self, group_id: str, topic_id: UUID, partition: Partition, *, begin: bool = True
    ) -> QueueDriver:
        """The queue on this partition, which this node leads; KafkaError if it cannot be asked now. Without `begin`
        only one of which something is stored: else GROUP_ID_NOT_FOUND. POLICY_VIOLATION: it cannot be under this name,
        or there are too many."""
        partition.check_readable()
        key = QueueKey(group_id, topic_id, partition.name.partition)
        if not begin and key not in self._drivers and await self._store.start_of(key) is None:
            raise unknown_queue(group_id)
        if begin and not self._is_at_work(key):
            await self._admission.admit(key)
        driver = self._drivers.get(key)
        if driver is None or driver.ended is not None:
            if len(self._drivers) >= self._limits.max_queues:
                message = f"this node drives {self._limits.max_queues} queues, its limit (limits.max_queues)"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
            driver = self._drivers[key] = QueueDriver(
                key=key,
                partition=partition,
                store=self._store,
                config=self._config_of(group_id),
                clock=self._clock,
                bury=self._graveyard.bury,
                on_end=self._ended,
                may_begin=begin,
                events=self._events,
                tally=self._tallies.begin(group_id, partition.name),
            )
            self._events.tell("queue.opened", **_place(driver))
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
        """Somebody is about to store where a queue of this name begins; POLICY_VIOLATION if it cannot have the name."""
        await self._admission.begin(group_id)

    def _is_at_work(self, key: QueueKey) -> bool:
        driver = self._drivers.get(key)
        return driver is not None and driver.ended is None

    def find(self, key: QueueKey) -> QueueDriver | None:
        """The driver that is at work, if there is one."""
        driver = self._drivers.get(key)
        return driver if driver is not None and driver.is_open else None

    def drivers(self) -> Iterable[QueueDriver]:
        return list(self._drivers.values())

    def role_changed(self, partition: Partition) -> None:
        """This node began or ceased to lead a partition, or it was closed."""
        for driver in self.drivers():
            if driver.partition.group == partition.group and not (
                partition.serves and partition.term == driver.term and driver.partition is partition
            ):
                driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} has a new leader"))

    def topics_changed(self) -> None:
        """Some may have been deleted, and others be there under their names."""
        for driver in self.drivers():
            if driver.partition.closed:
                message = f"{driver.partition.name} was deleted"
                driver.end(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))

    async def tidy(self) -> None:
        """Now and then: forgets queues that nobody uses (what matters of them is stored), and what is stored of topics
        that are gone."""
        for driver in self.drivers():
            if driver.is_open and driver.is_idle:
                driver.tally.park(driver.partition, driver.config.isolation, driver.backlog)
                driver.end(
                    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "nobody has used the queue for a while")
                )
        self._admission.look_after(one.key.group_id for one in self.drivers() if one.may_begin)
        for tally in self._tallies:
            tally.look_over()

    def _ended(self, driver: QueueDriver) -> None:
        if self._drivers.get(driver.key) is driver:
            del self._drivers[driver.key]
        self._admission.forget(driver.key.group_id)
        self._tallies.end(driver.tally)
        if driver.partition.closed:
            self._tallies.forget(driver.key.group_id, driver.partition.name.topic)
        reason = driver.ended.message if driver.ended is not None else None
        self._events.tell("queue.closed", **_place(driver), reason=reason)

    def _session_closed(self, session: ShareSession) -> None:
        for topic_id, index in session.places:
            driver = self._drivers.get(QueueKey(session.group_id, topic_id, index))
            if driver is not None:
                driver.release(session.member_id)

    def figures(self) -> list[QueueFigures]:
        """For whoever watches: what each queue has to do on the partitions that this node leads, and has done."""
        backlogs: dict[QueueStats, Backlog] = {}
        workers: dict[QueueStats, set[str]] = {}
        for driver in self._drivers.values():
            if driver.is_open:
                backlogs[driver.tally] = backlogs.get(driver.tally, Backlog()).plus(driver.backlog)
            workers.setdefault(driver.tally, set()).update(driver.workers)
        for session in self.sessions:
            for topic_id, index in session.places:
                found = self._drivers.get(QueueKey(session.group_id, topic_id, index))
                if found is not None:
                    workers[found.tally].add(session.member_id)
        for tally in self._tallies:
            tally.look_over()
            for parked in tally.parked.values():
                backlogs[tally] = backlogs.get(tally, Backlog()).plus(parked.now)
        return [figures_of(one, backlogs.get(one), len(workers.get(one, ()))) for one in self._tallies]

    async def stop(self) -> None:
        gone = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node is stopping")
        drivers = self.drivers()
        for driver in drivers:
            driver.end(gone)
        await asyncio.gather(*(driver.drain() for driver in drivers))
        self._admission.stop()


def _place(driver: QueueDriver) -> dict[str, object]:
    topic, index = driver.partition.name
    return {"group": driver.key.group_id, "topic": topic, "partition": index}
