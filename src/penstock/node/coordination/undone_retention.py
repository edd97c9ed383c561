"""Retention on partitions that keep undone messages (`penstock.retention.keep.undone`).

Retention there may delete expired records only before the first message that some queue has not settled. The leader of
the partition asks the nodes that store the state of queues each time it is about to delete (`consumer_progress`). It
keeps nothing of the answers, so a new leader cannot act on what it does not know, and neither can a leader whose
settings have changed. As long as one node does not answer, nothing is deleted.

DeleteRecords is not affected: it is the explicit request of an operator.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import msgspec

from penstock.errors import CorruptLog, KafkaError, StorageError
from penstock.log.segment import Segment
from penstock.node.coordination.consumer_progress import PARTITIONS_PER_TURN, ConsumerProgress
from penstock.node.queues.state_log import QueueStateLog
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.queue.acked import Poll, undone_from
from penstock.types import NO_EVENTS, EventSink

log = logging.getLogger("penstock.node")

WARN_AFTER_ROUNDS = 12
"""A minute."""


class HeldBack(msgspec.Struct, frozen=True, kw_only=True):
    """Expired records of a partition that retention keeps because of a queue."""

    topic: str
    partition: int
    queue: str | None
    """The queue whose first unsettled message is the oldest; None while not all queues are known."""
    size_bytes: int
    """Of the segments that would have been deleted."""
    records: int
    overdue_ms: int
    """How much older than retention.ms the oldest segment is; 0 if it is kept only beyond retention.bytes."""


class UndoneRetention:
    """Deletes expired records that no queue needs, and knows which partitions are held back."""

    def __init__(
        self,
        *,
        progress: ConsumerProgress,
        store: QueueStateLog,
        clock: Clock,
        events: EventSink = NO_EVENTS,
    ) -> None:
        self._progress = progress
        self._store = store
        self._clock = clock
        self._events = events
        self._held: WeakKeyDictionary[Partition, HeldBack] = WeakKeyDictionary()
        self._failures = 0
        """Rounds in a row in which some node has not answered."""

    def held_back(self) -> Iterator[tuple[Partition, HeldBack]]:
        """The partitions that this node leads and that hold more than retention allows."""
        for partition, held in list(self._held.items()):
            if partition.leads and not partition.closed:
                yield partition, held

    async def retain(self, partitions: Sequence[Partition]) -> list[Partition]:
        """One round over the partitions that have expired records; returns those of which some were deleted."""
        for partition in set(self._held) - set(partitions):
            del self._held[partition]
        led = [(partition, partition.term) for partition in partitions]
        poll = await self._poll(partitions) if led else None
        shortened: list[Partition] = []
        for first in range(0, len(led), PARTITIONS_PER_TURN):
            await asyncio.sleep(0)
            # Both are determined after the wait, and nothing else runs until the records are deleted.
            known = poll if poll is not None and self._progress.is_valid(poll) else None
            starts = self._progress.all_queue_starts()
            for partition, term in led[first : first + PARTITIONS_PER_TURN]:
                leads = not partition.closed and partition.may_serve and partition.term == term
                if leads and self._try(partition, known, starts.get(partition.group, ())):
                    shortened.append(partition)
        return shortened

    async def _poll(self, partitions: Sequence[Partition]) -> Poll | None:
        try:
            # Without this topic there are no queues, but this node may only not have heard of it.
            await self._store.cores.ensure_topic()
            poll = await self._progress.poll([one.group for one in partitions], queues_only=True)
        except KafkaError as trouble:
            log.debug("retention cannot ask for the queues: %s", trouble)
            poll = None
        self._failures = 0 if poll is not None and not poll.missing else self._failures + 1
        if self._failures == WARN_AFTER_ROUNDS:
            missing = (
                "any" if poll is None else ", ".join(f"{one.topic}-{one.partition}" for one in poll.missing)
            )
            log.warning("topics that keep undone messages are not shortened: no node answers for %s", missing)
        return poll

    def _try(self, partition: Partition, poll: Poll | None, queues: Sequence[int | None]) -> bool:
        try:
            return self._retain(partition, poll, queues)
        except CorruptLog as rot:
            partition.damaged(rot)
        except StorageError as trouble:
            log.error("%s: %s", partition.name, trouble)
        return False

    def _retain(self, partition: Partition, poll: Poll | None, queues: Sequence[int | None]) -> bool:
        now_ms, retention, queue = self._clock.wall_ms(), partition.log.retention, None
        below: int | None = partition.start_offset
        if poll is not None:
            below = undone_from(poll.progress(partition.group), queues)
            queue = poll.slowest_queue(partition.group)
        shortened = partition.apply_retention(now_ms, below)
        self._note(partition, retention.expired(now_ms), queue, now_ms)
        return shortened

    def _note(self, partition: Partition, kept: Sequence[Segment], queue: str | None, now_ms: int) -> None:
        """Segments that have expired are kept."""
        if not kept:
            self._held.pop(partition, None)
            return
        known = self._held.get(partition)
        oldest_ms, retention_ms = kept[0].max_timestamp, partition.config.retention_ms
        has_age = oldest_ms >= 0 and retention_ms >= 0
        topic, index = partition.name
        self._held[partition] = held = HeldBack(
            topic=topic,
            partition=index,
            queue=queue,
            size_bytes=sum(segment.size for segment in kept),
            records=kept[-1].next_offset - max(kept[0].base_offset, partition.start_offset),
            overdue_ms=max(0, now_ms - oldest_ms - retention_ms) if has_age else 0,
        )
        if queue is not None and (known is None or known.queue is None):
            self._events.tell(
                "retention.held_back",
                topic=topic,
                partition=index,
                group=queue,
                count=held.records,
                bytes=held.size_bytes,
            )
