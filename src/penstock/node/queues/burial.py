"""Dead letters: records that were delivered too often, or that a consumer rejected, copied whole to a topic of their
own with headers that say why, where from and how often.

    penstock-dead-reason       delivery_limit or rejected
    penstock-dead-topic        where it was, with -partition and -offset
    penstock-dead-group        the queue that could not do it
    penstock-dead-deliveries   how often it was handed out
    penstock-dead-at           when it died, milliseconds since 1970

A letter may be copied twice when the node fails between the copy and the note that it was made; topic, partition and
offset tell.
"""

from collections.abc import Iterator

from penstock.batch import Record, build_batch, iter_headers, read_records
from penstock.errors import BatchError, ErrorCode, KafkaError
from penstock.node.clock import Clock
from penstock.node.courier import Courier
from penstock.node.queues.driver import QueueDriver
from penstock.queue import DeadLetter
from penstock.types import NO_EVENTS, EventSink, Offset

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


class Graveyard:
    """Where dead letters go."""

    def __init__(self, courier: Courier, clock: Clock, events: EventSink = NO_EVENTS) -> None:
        self._events = events
        self._courier = courier
        self._clock = clock

    async def bury(self, driver: QueueDriver, letter: DeadLetter) -> None:
        """Returns when the copies can no longer be lost; PenstockError if they cannot be made now."""
        name, index = driver.partition.name
        if name.endswith(SUFFIX):
            return  # what dies in a dead-letter topic stays where it is: it would only move in circles
        topic = await self._courier.topic(driver.config.dead_letter_topic_of(name))
        if topic.internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
        for batch in self._copies(driver, letter):
            await self._courier.append(topic, index % topic.partitions, batch)
        self._events.tell(
            "queue.dead_letter",
            group=driver.key.group_id,
            topic=name,
            partition=index,
            first_offset=letter.first,
            last_offset=letter.last,
            deliveries=letter.deliveries,
            reason=letter.reason.value,
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
    """The records of a range that still exist. A batch that cannot be read is no letter anybody could open."""
    at = max(first, driver.partition.start_offset)
    while at <= last:
        data = driver.partition.read(Offset(at), COPY_BYTES, at_least_one=True)
        if not data:
            return
        for position, header in iter_headers(data):
            if header.base_offset > last:
                return
            try:
                records = read_records(data, position)
            except BatchError:
                records = []
            yield from (record for record in records if first <= record.offset <= last)
            at = header.next_offset
