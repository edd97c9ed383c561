"""Deletes records that all consumers have acked, on the partitions that this node leads (`penstock.queue.acked` has the
rules).

Every two seconds, if this node leads such a partition with records in it, it asks for the progress of all groups and
queues (`consumer_progress`). No state is kept from one round to the next, so none can be out of date: each round
determines again which consumers hold records back.
"""

import asyncio
import logging

from penstock.errors import CorruptLog, PenstockError
from penstock.node.coordination.consumer_progress import PARTITIONS_PER_TURN, ConsumerProgress
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.scheduling.clock import Clock
from penstock.node.scheduling.workers import Workers
from penstock.queue.acked import Poll, Progress, acked_before
from penstock.types import Isolation, Offset

log = logging.getLogger("penstock.node")

WARN_AFTER_ROUNDS = 30
"""A minute."""


class AckedCleanup:
    """Asks for the consumers' progress, and deletes."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        progress: ConsumerProgress,
        clock: Clock,
        workers: Workers,
    ) -> None:
        self._partitions = partitions
        self._progress = progress
        self._clock = clock
        self._workers = workers
        self._failures = 0
        """Rounds in a row in which some source has not answered."""

    async def clean(self) -> None:
        """One round."""
        led = {one.group: (one, one.term) for one in self._partitions.online() if _has_work(one)}
        if not led or (poll := await self._progress.poll(list(led))) is None:
            return
        self._note(poll)
        shortened = []
        for count, (place, (partition, term)) in enumerate(led.items()):
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
                if not self._progress.is_valid(poll):
                    break
            is_as_it_was = not partition.closed and partition.serves and partition.term == term
            if is_as_it_was and self._clean(partition, poll.progress(place)):
                shortened.append(partition)
        for partition in shortened:
            await self._give_back(partition)

    def _note(self, poll: Poll) -> None:
        """Warns the operator that no space is freed; once, and not while an election explains it."""
        self._failures = 0 if poll.is_valid(poll.sources) else self._failures + 1
        if self._failures == WARN_AFTER_ROUNDS:
            log.warning(
                "acked records are not deleted (cleanup.policy=acked): no node answers for %s",
                ", ".join(f"{source.topic}-{source.partition}" for source in poll.missing),
            )

    def _clean(self, partition: Partition, progress: Progress | None) -> bool:
        try:
            return self._delete(partition, progress)
        except CorruptLog as rot:
            partition.damaged(rot)
        except PenstockError as trouble:
            log.warning("%s: acked records could not be deleted: %s", partition.name, trouble)
        return False

    async def _give_back(self, partition: Partition) -> None:
        """Frees the memory of topics in memory at once; files can wait for the next round of housekeeping."""
        if partition.config.memory and not partition.closed:
            garbage = partition.log.maintenance.next_task()
            if garbage is not None:
                await self._workers.run(garbage)

    def _delete(self, partition: Partition, progress: Progress | None) -> bool:
        """Moves the start of the log; whether it did."""
        acked = acked_before(progress, self._progress.queue_starts(partition.group))
        limit = Offset(
            min(acked, partition.end_for(Isolation.READ_UNCOMMITTED), partition.log.flushed_offset)
        )
        if limit <= partition.start_offset or not partition.may_serve:
            return False
        young_ms = self._clock.wall_ms() - partition.config.acked_min_age_ms + 1
        found = partition.log.find_timestamp(young_ms, limit)
        if found is not None:
            limit = Offset(found[1])
        return limit > partition.start_offset and partition.delete_records(limit) == limit


def _has_work(partition: Partition) -> bool:
    return (
        partition.config.cleanup_acked
        and not partition.closed
        and partition.serves
        and partition.start_offset < partition.end_for(Isolation.READ_UNCOMMITTED)
    )
