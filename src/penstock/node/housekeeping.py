"""Background work of a node: retention, compaction, expiry, scrubbing, and measuring the event loop's lag."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from penstock.errors import CorruptLog, PenstockError, StorageError
from penstock.log.scrub import SCRUB_BYTES
from penstock.node.metrics import NodeMetrics
from penstock.node.parts import Part
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.workers import Workers
from penstock.types import Offset

log = logging.getLogger("penstock.node")

ROUND_SECONDS = 5.0
"""How often every partition is checked. Kafka checks every five minutes; a check here costs microseconds."""

RETENTION_GRACE_MS = 300_000
"""How long expired records stay after a round found them, or retention.ms if that is less. Imports and tests write old
records and read them back: Kafka, which checks every five minutes, allows that."""

SCRUB_SECONDS = 30.0
"""Between two scrubs. Each reads about 64 MiB: two megabytes a second, a small load for any disk."""

SCRUBS_PER_TURN = 500
"""Partitions that one scrub reads from. A thousand small ones are scrubbed within a minute, and each costs the event
loop a tenth of a millisecond."""

PARTITIONS_PER_TURN = 50
"""Partitions that are processed before other work gets its turn on the event loop."""

PULSE_SECONDS = 0.5

CHORE_SECONDS = 60.0

BRISK_SECONDS = 2.0

Chore = Callable[[], Awaitable[None]]
"""Work of another part of the node, to be done every minute or every other second."""

RetainUndone = Callable[[Sequence[Partition]], Awaitable[list[Partition]]]
"""Applies retention to partitions that keep undone messages; returns those that are shorter now."""


async def _keep_all(partitions: Sequence[Partition]) -> list[Partition]:
    """Deletes nothing, on a node that cannot know what is undone."""
    return []


def _ignore(partitions: Sequence[Partition]) -> None:
    """For a node without queues."""


class Housekeeping(Part):
    """Background rounds over all partitions."""

    def __init__(
        self,
        partitions: "PartitionSource",
        workers: Workers,
        clock: Clock,
        metrics: NodeMetrics,
        chores: Sequence[Chore] = (),
        brisk_chores: Sequence[Chore] = (),
        *,
        retain_undone: RetainUndone = _keep_all,
        shortened: Callable[[Sequence[Partition]], None] = _ignore,
    ) -> None:
        """`shortened` is told the partitions of which retention has deleted records."""
        self._partitions = partitions
        self._workers = workers
        self._clock = clock
        self._metrics = metrics
        self._chores = chores
        self._brisk_chores = brisk_chores
        self._retain_undone = retain_undone
        self._shortened = shortened
        self._tasks: list[asyncio.Task[None]] = []
        self._expired_since_ms: WeakKeyDictionary[Partition, int] = WeakKeyDictionary()
        self._scrubbed: WeakKeyDictionary[Partition, Offset] = WeakKeyDictionary()
        """Where the next scrub of each partition continues."""
        self._scrub_turn = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._rounds()),
            loop.create_task(self._scrubs()),
            loop.create_task(self._pulse()),
            loop.create_task(self._do_chores(self._chores, CHORE_SECONDS)),
            loop.create_task(self._do_chores(self._brisk_chores, BRISK_SECONDS)),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            with logged_bugs("retention and compaction"):
                await self.tidy()

    async def _scrubs(self) -> None:
        while True:
            await asyncio.sleep(SCRUB_SECONDS)
            with logged_bugs("scrubbing"):
                try:
                    await self.scrub()
                except (StorageError, CorruptLog) as trouble:
                    log.error("scrubbing: %s", trouble)

    async def _do_chores(self, chores: Sequence[Chore], pause_seconds: float) -> None:
        while chores:
            await asyncio.sleep(pause_seconds)
            for chore in chores:
                with logged_bugs("housekeeping"):
                    try:
                        await chore()
                    except PenstockError as trouble:
                        log.warning("housekeeping: %s", trouble)

    async def scrub(self) -> None:
        """Reads some old bytes again: of the next partition, and as long as these are few, of the partitions after it.
        Damage that is found while other replicas are intact is repaired by a copy: see `repair`."""
        partitions = [one for one in self._partitions.tended() if not one.closed]
        left_bytes, left_scrubs = SCRUB_BYTES, SCRUBS_PER_TURN
        for count in range(len(partitions)):
            if left_bytes <= 0 or left_scrubs == 0:
                return
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            self._scrub_turn = (self._scrub_turn + 1) % len(partitions)
            read_bytes = await self._scrub(partitions[self._scrub_turn], left_bytes)
            left_bytes -= read_bytes
            left_scrubs -= read_bytes > 0

    async def _scrub(self, partition: Partition, max_bytes: int) -> int:
        """How many bytes were read."""
        if partition.closed:
            return 0
        plan = partition.log.scrubber.plan(self._scrubbed.get(partition, Offset(0)), max_bytes=max_bytes)
        if plan is None:
            return 0
        await self._workers.run(plan.run)
        rot = None if partition.closed else partition.log.scrubber.finish(plan)
        self._scrubbed[partition] = plan.next_offset
        if rot is not None:
            partition.damaged(rot)
        return plan.read_bytes

    async def tidy(self) -> None:
        """One round: applies retention, and compacts partitions that are dirty enough."""
        found = _Expired([], [])
        for count, partition in enumerate(self._partitions.tended()):
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            if partition.closed:
                continue
            try:
                await self._tidy(partition, found)
            except CorruptLog as rot:
                partition.damaged(rot)
            except StorageError as trouble:
                log.error("%s: %s", partition.name, trouble)
            except Exception:
                log.exception("%s: a bug in housekeeping; the other partitions go on", partition.name)
        with logged_bugs("the retention of undone messages"):
            found.shortened.extend(await self._retain_undone(found.keeping_undone))
        if found.shortened:
            self._shortened(found.shortened)

    async def _tidy(self, partition: Partition, found: "_Expired") -> None:
        """The leader decides where a log starts, and its followers take that over; every replica compacts by itself."""
        if partition.leads:
            self._retain(partition, self._clock.wall_ms(), found)
        plan = partition.log.compactor.plan(self._clock.wall_ms())
        if plan is not None:
            await self._workers.run(plan.run)
            if not partition.closed:
                partition.log.compactor.finish(plan)
        task = partition.log.maintenance.next_task()
        if task is not None:
            await self._workers.run(task)

    def _retain(self, partition: Partition, now_ms: int, found: "_Expired") -> None:
        """Deletes expired records, unless the partition keeps undone messages."""
        if not self._is_retention_due(partition, now_ms):
            return
        if partition.config.keep_undone:
            found.keeping_undone.append(partition)
            return
        self._expired_since_ms.pop(partition, None)
        if partition.apply_retention(now_ms):
            found.shortened.append(partition)

    def _is_retention_due(self, partition: Partition, now_ms: int) -> bool:
        """Whether there are expired records whose grace period is over. Records beyond retention.bytes have none: they
        take space."""
        stored, config = partition.log, partition.config
        if not stored.retention.expired(now_ms):
            stored.retention.apply(now_ms)  # forgets idle producers
            self._expired_since_ms.pop(partition, None)
            return False
        if 0 <= config.retention_bytes < stored.size_bytes:
            return True
        since_ms = self._expired_since_ms.setdefault(partition, now_ms)
        return now_ms - since_ms >= min(config.retention_ms, RETENTION_GRACE_MS)

    async def _pulse(self) -> None:
        """Measures how late the loop runs a timer: every request has that delay too."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PULSE_SECONDS
            await asyncio.sleep(PULSE_SECONDS)
            self._metrics.loop_lag_seconds = max(0.0, loop.time() - due)


class PartitionSource(Protocol):
    def tended(self) -> Iterable[Partition]: ...


class _Expired(NamedTuple):
    """Partitions that had expired records in one round."""

    shortened: list[Partition]
    keeping_undone: list[Partition]
    """Their records were not deleted yet: some may be undone in a queue."""
