"""Flushes all dirty partitions in one cycle, in a thread.

Readers see nothing that is not flushed, so a cycle starts as soon as a partition is dirty and no cycle runs.

Flushing file by file costs about 0.3 ms each, one `syncfs` about as much as two of them whatever their number
(measured: 100 files take 15.7 ms one by one and 0.6 ms with syncfs), so from SYNC_ALL_FROM_FILES on the whole file
system is synced instead.
"""

import logging
import time
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from penstock.errors import CorruptLog, StorageError
from penstock.log import FlushTicket
from penstock.log.disk import Disk
from penstock.node.replication.flush_cycle import FlushCycle, attempt
from penstock.node.replication.replica import PartitionReplica
from penstock.node.scheduling.threads import JobThread

log = logging.getLogger("penstock.node")

SYNC_ALL_FROM_FILES = 4
PARTITIONS_PER_CYCLE = 500
"""The event loop begins and finishes a cycle without a pause, and each partition takes it some 30 µs. The next cycle
takes the partitions that are left."""

BUG = "%s: a bug in its flush; the other partitions go on"

Work = list[tuple[PartitionReplica, FlushTicket]]


class Outcome(NamedTuple):
    """How a cycle ended."""

    seconds: float
    errors: dict[int, StorageError]
    """Why an item of the work was not flushed, by its index."""
    whole: StorageError | None = None
    """The disk as a whole could not be synced. The kernel may have dropped what was written meanwhile as well, and a
    later sync would not report it."""


class Flusher:
    """The partitions that are not flushed. Everything except `_flush` runs on the event loop."""

    def __init__(self, disk: Disk, thread: JobThread) -> None:
        self._disk = disk
        self._dirty: dict[PartitionReplica, None] = {}
        self._cycle = FlushCycle(thread, begin=self._begin, flush=self._flush, finish=self._finish)
        self.cycles = 0
        self.seconds_total = 0.0

    def mark(self, partition: PartitionReplica) -> None:
        """`partition` has bytes that are not flushed."""
        if not self._dirty:
            self._cycle.request()
        self._dirty[partition] = None

    async def drain(self) -> None:
        """Returns when no partition is dirty and no cycle runs."""
        await self._cycle.drain()

    async def stop(self) -> None:
        await self._cycle.stop()

    # --- one cycle

    def _begin(self) -> Work | None:
        work: Work = []
        for partition in self._take():
            try:
                ticket = self._begin_one(partition)
            except Exception as bug:  # noqa: BLE001 - logged there
                _abort(partition, bug)
            else:
                if ticket is not None:
                    work.append((partition, ticket))
        if any(ticket.files for _, ticket in work):
            return work
        self._finish(work, Outcome(0.0, {}))
        return None

    def _take(self) -> Iterable[PartitionReplica]:
        """The partitions of this cycle: those that have waited longest."""
        dirty, self._dirty = self._dirty, {}
        if len(dirty) <= PARTITIONS_PER_CYCLE:
            return dirty
        waiting = iter(dirty)
        taken = list(islice(waiting, PARTITIONS_PER_CYCLE))
        self._dirty = dict.fromkeys(waiting)
        return taken

    def _begin_one(self, partition: PartitionReplica) -> FlushTicket | None:
        """A partition that cannot be flushed fails alone: the others are flushed all the same."""
        try:
            ticket = partition.log.flushes.begin()
        except (StorageError, CorruptLog) as trouble:
            partition.fail(trouble)
            return None
        if ticket is None:
            failed = partition.log.failed
            if failed is None:
                partition.flushed()
            else:  # a write has failed since, and what was written before it will not be flushed
                partition.fail(failed)
        return ticket

    def _flush(self, work: Work) -> Outcome:
        """Flushes the logs; runs in the flush thread."""
        started = time.perf_counter()
        errors: dict[int, StorageError] = {}
        whole: StorageError | None = None
        if sum(ticket.files for _, ticket in work) >= SYNC_ALL_FROM_FILES:
            whole = attempt(self._disk.sync_all)
            if whole is not None:
                errors = dict.fromkeys(range(len(work)), whole)
        else:
            for index, (_, ticket) in enumerate(work):
                error = attempt(ticket.run)
                if error is not None:
                    errors[index] = error
        return Outcome(time.perf_counter() - started, errors, whole)

    def _finish(self, work: Work, outcome: Outcome) -> None:
        """Reaches its end whatever one partition raises: `mark` requests no cycle while others are dirty, so that no
        partition of this node would ever be flushed again."""
        self.cycles += 1
        self.seconds_total += outcome.seconds
        for index, (partition, ticket) in enumerate(work):
            try:
                self._finish_one(partition, ticket, outcome.errors.get(index))
            except Exception as bug:  # noqa: BLE001 - logged there
                _abort(partition, bug)
        if outcome.whole is not None:
            dirty, self._dirty = self._dirty, {}
            for partition in dirty:
                try:
                    partition.fail(outcome.whole)
                except Exception:
                    log.exception(BUG, partition.label)
        elif self._dirty:
            self._cycle.request()

    def _finish_one(
        self, partition: PartitionReplica, ticket: FlushTicket, error: StorageError | None
    ) -> None:
        try:
            partition.log.flushes.finish(ticket, error)
        except StorageError as trouble:
            error = trouble
        if error is not None:
            partition.fail(error)
        else:
            partition.flushed()


def _abort(partition: PartitionReplica, bug: Exception) -> None:
    """A bug kept a partition's flush from its end, and the partition is no longer dirty. If it went on, it would wait
    for this flush for ever and look healthy."""
    log.error(BUG, partition.label, exc_info=bug)
    error = StorageError(f"a bug in its flush: {bug!r}")
    try:
        partition.log.flushes.abort(error)
        partition.fail(error)
    except Exception:
        log.exception(BUG, partition.label)
