"""Reports what retention does to the messages of a queue: it has deleted some that were not done, or will delete some
before they are due. The broker finds the second when the queue reads the messages; a Kafka client has its answer by
then."""

import logging

from penstock.node.queues.stats import QueueStats
from penstock.node.replication.partition import Partition
from penstock.queue import QueueKey
from penstock.queue.values import ScanResult
from penstock.types import NO_EVENTS, EventSink

log = logging.getLogger("penstock.queues")

DELAY_NOTICE_MS = 3_600_000
"""Between two reports about delays beyond retention, for each queue and partition."""


class RetentionNotices:
    """Those of one queue on one partition, in one term of its leader."""

    def __init__(
        self, key: QueueKey, partition: Partition, stats: QueueStats, events: EventSink = NO_EVENTS
    ) -> None:
        self._group_id = key.group_id
        self._partition = partition
        self._stats = stats
        self._events = events
        self._told_at_ms: int | None = None

    def deleted(self, count: int) -> None:
        """So many messages were deleted before they were done."""
        topic, index = self._partition.name
        self._stats.count_deleted(index, count)
        self._events.tell(
            "queue.undone_deleted",
            group=self._group_id,
            topic=topic,
            partition=index,
            last_offset=self._partition.start_offset - 1,
            count=count,
        )
        log.warning(
            "queue %s on %s: %d messages were deleted, by retention or on request, before they were done; with "
            "penstock.retention.keep.undone=true on the topic, retention keeps them",
            self._group_id,
            self._partition.name,
            count,
        )

    def read(self, now_ms: int, scan: ScanResult) -> None:
        """The queue has read these messages."""
        if not scan.deferred:
            return
        config = self._partition.config
        if not config.may_delete_undone or config.retention_ms < 0:
            return
        late = [(due_ms, offset) for offset, due_ms in scan.deferred if due_ms - now_ms > config.retention_ms]
        if late and (self._told_at_ms is None or now_ms - self._told_at_ms >= DELAY_NOTICE_MS):
            self._told_at_ms = now_ms
            self._tell_late(*max(late))

    def _tell_late(self, due_ms: int, offset: int) -> None:
        topic, index = self._partition.name
        self._events.tell(
            "queue.delay_beyond_retention",
            group=self._group_id,
            topic=topic,
            partition=index,
            first_offset=offset,
            due_ms=due_ms,
        )
        log.warning(
            "queue %s on %s: the message at offset %d, and perhaps others, is due after retention.ms and may be "
            "deleted before that; set penstock.retention.keep.undone=true on the topic",
            self._group_id,
            self._partition.name,
            offset,
        )
