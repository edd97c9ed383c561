"""Dead letters: records that were delivered too often, or that a consumer rejected, copied whole to a topic of their
own with headers that say why, where from and how often.

    penstock-dead-reason       delivery_limit or rejected
    penstock-dead-topic        where it was, with -partition and -offset
    penstock-dead-group        the queue that could not do it
    penstock-dead-deliveries   how often it was handed out
    penstock-dead-at           when it died, milliseconds since 1970

A letter may be copied twice when the node fails between the copy and the note that it was made; topic, partition and
offset tell.

Nothing is copied where a letter would only move in circles: into the topic that it died in, if the queue is told to, or
by default from a dead-letter topic into one of its own. It is dropped then, and the event says so.
"""

import logging
from collections.abc import Iterator

from penstock.batch import BatchHeader, Record, build_batch, check_batch, iter_headers, read_records
from penstock.errors import BatchError, CorruptLog, ErrorCode, KafkaError
from penstock.node.clock import Clock
from penstock.node.coordination.record_forwarder import RecordForwarder
from penstock.node.queues.delivery_headers import most_unpacked
from penstock.node.queues.driver import QueueDriver
from penstock.queue import DeadLetter
from penstock.types import NO_EVENTS, EventSink, Offset

log = logging.getLogger("penstock.queues")

REASON = "penstock-dead-reason"
TOPIC = "penstock-dead-topic"
PARTITION = "penstock-dead-partition"
OFFSET = "penstock-dead-offset"
GROUP = "penstock-dead-group"
DELIVERIES = "penstock-dead-deliveries"
AT = "penstock-dead-at"

SUFFIX = ".dlq"
COPY_BYTES = 512 * 1024
"""About how much is copied in one batch."""
TOLD_MAX = 1_000
"""Queues whose losses were logged; of more, the events tell."""


class DeadLetterWriter:
    """Where dead letters go."""

    def __init__(self, forwarder: RecordForwarder, clock: Clock, events: EventSink = NO_EVENTS) -> None:
        self._events = events
        self._forwarder = forwarder
        self._clock = clock
        self._told: set[tuple[str, str]] = set()
        """Queues and topics whose letters are dropped, of which people know."""

    async def bury(self, driver: QueueDriver, letter: DeadLetter) -> None:
        """Returns when the copies can no longer be lost; PenstockError if they cannot be made now."""
        name, index = driver.partition.name
        target = driver.config.dead_letter_topic_of(name)
        if target == name or (name.endswith(SUFFIX) and not driver.config.dead_letter_topic):
            self._drop(driver, letter, target)
            return
        topic = await self._forwarder.topic(target)
        if topic.internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
        for batch in self._copies(driver, letter):
            await self._forwarder.append(topic, index % topic.partitions, batch)
        self._tell(driver, letter)

    def _drop(self, driver: QueueDriver, letter: DeadLetter, target: str) -> None:
        group, topic = driver.key.group_id, driver.partition.name.topic
        if (group, topic) not in self._told and len(self._told) < TOLD_MAX:
            self._told.add((group, topic))
            log.warning(
                "%s on %s: what dies there is dropped, since its dead letters would go to %s; "
                "penstock.dead.letter.topic names another topic",
                group,
                topic,
                target,
            )
        self._tell(driver, letter, dropped=True)

    def _tell(self, driver: QueueDriver, letter: DeadLetter, **more: object) -> None:
        topic, index = driver.partition.name
        self._events.tell(
            "queue.dead_letter",
            group=driver.key.group_id,
            topic=topic,
            partition=index,
            first_offset=letter.first,
            last_offset=letter.last,
            deliveries=letter.deliveries,
            reason=letter.reason.value,
            **more,
        )

    def _copies(self, driver: QueueDriver, letter: DeadLetter) -> Iterator[bytes]:
        rows: list[Record] = []
        size = 0
        for record in _records(driver, letter.first, letter.last):
            rows.append(self._marked(driver, letter, record, len(rows)))
            size += len(record.value or b"") + len(record.key or b"") + 256
            if size >= COPY_BYTES:
                yield build_batch(rows)
                rows, size = [], 0
        if rows:
            yield build_batch(rows)

    def _marked(self, driver: QueueDriver, letter: DeadLetter, record: Record, number: int) -> Record:
        topic, index = driver.partition.name
        told = {
            REASON: letter.reason.value,
            TOPIC: topic,
            PARTITION: str(index),
            OFFSET: str(record.offset),
            GROUP: driver.key.group_id,
            DELIVERIES: str(letter.deliveries),
            AT: str(self._clock.wall_ms()),
        }
        kept = [(name, value) for name, value in record.headers if name not in told]
        added = [(name, value.encode()) for name, value in told.items()]
        return record._replace(offset=number, headers=(*kept, *added))


def _records(driver: QueueDriver, first: int, last: int) -> Iterator[Record]:
    """The records of a range that still exist."""
    at = max(first, driver.partition.start_offset)
    while at <= last:
        data = driver.partition.read(Offset(at), COPY_BYTES, end=driver.end_offset, at_least_one=True)
        if not data:
            return
        for position, header in iter_headers(data):
            if header.base_offset > last:
                return
            start = max(first, driver.partition.start_offset)
            for record in _opened(driver, data, position, header):
                if start <= record.offset <= last:
                    yield record
            at = header.next_offset


def _opened(driver: QueueDriver, data: bytes, position: int, header: BatchHeader) -> list[Record]:
    """None of a batch that does not unpack. CorruptLog if that is because the disk has changed it: then nothing is to
    be given up, since another replica may have it as it was."""
    try:
        check_batch(data, position)
    except BatchError as rotten:
        reason = f"in the batch of offset {header.base_offset}: {rotten}"
        raise CorruptLog(driver.partition.log.path, position, reason) from None
    try:
        return read_records(data, position, max_bytes=most_unpacked(data, position, header))
    except BatchError as wrong:
        log.error(
            "%s on %s: the batch of offsets %d to %d does not unpack, and is no letter anybody could open: %s",
            driver.key.group_id,
            driver.partition.name,
            header.base_offset,
            header.next_offset - 1,
            wrong,
        )
        return []
