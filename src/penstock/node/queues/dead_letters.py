"""Dead letters: records that were delivered too often, or that a consumer rejected, are copied whole to a topic of
their own, with headers that say why, where from and how often.

    penstock-dead-reason       delivery_limit or rejected
    penstock-dead-topic        where it was, with -partition and -offset
    penstock-dead-group        the queue
    penstock-dead-deliveries   how often it was delivered
    penstock-dead-at           when it was copied, milliseconds since 1970
    penstock-dead-worker       the consumer that had it last
    penstock-dead-error-type   why, as that consumer said: the type of its exception, with -text: its message
    penstock-dead-first-failure, -last-failure   when, milliseconds since 1970: see `failures.py`

A record may be copied twice if the node fails between the copy and the save that marks the record as done; topic,
partition and offset identify such copies.

A group that names its topic by Kafka's config (errors.deadletterqueue.topic.name, KIP-1191) gets dead letters as Kafka
writes them: with Kafka's headers beside ours, at the time of the copy, and with key, value and the record's own headers
only if the group asks for them. Such a topic must allow it (errors.deadletterqueue.group.enable): without that, a right
to configure a group would be a right to write to any topic.

    __dlq.errors.topic, .partition, .offset, .group, .delivery.count, .message

Records that would only move in circles are dropped instead, and the event says so: if the queue names the topic that it
consumes, or, by default, if that topic is itself a dead-letter topic.
"""

import logging
from collections.abc import Iterator

from penstock.batch import BatchHeader, Record, build_batch, check_batch, iter_headers, read_records
from penstock.cluster import Topic
from penstock.config.definitions import DEAD_LETTERS_ALLOWED
from penstock.errors import BatchError, CorruptLog, ErrorCode, KafkaError
from penstock.node.calls import BROKER
from penstock.node.coordination.record_forwarder import RecordForwarder
from penstock.node.queues.delivery_headers import most_unpacked
from penstock.node.queues.driver import QueueDriver
from penstock.node.scheduling.clock import Clock
from penstock.queue.values import DeadLetterRange, DeadLetterReason
from penstock.types import NO_EVENTS, EventSink, Offset

log = logging.getLogger("penstock.queues")

REASON = "penstock-dead-reason"
TOPIC = "penstock-dead-topic"
PARTITION = "penstock-dead-partition"
OFFSET = "penstock-dead-offset"
GROUP = "penstock-dead-group"
DELIVERIES = "penstock-dead-deliveries"
AT = "penstock-dead-at"
WORKER = "penstock-dead-worker"
ERROR_TYPE = "penstock-dead-error-type"
ERROR_TEXT = "penstock-dead-error-text"
FIRST_FAILURE = "penstock-dead-first-failure"
LAST_FAILURE = "penstock-dead-last-failure"
CONTENT = "penstock-dead-content"
"""OMITTED: the dead letter has neither key nor value of its record."""
OMITTED = "omitted"
HEADERS = frozenset(
    {REASON, TOPIC, PARTITION, OFFSET, GROUP, DELIVERIES, AT, WORKER, ERROR_TYPE, ERROR_TEXT, FIRST_FAILURE}
    | {LAST_FAILURE, CONTENT}
)
KAFKA_MARK = "__dlq.errors."
_KAFKA_MESSAGES = {
    DeadLetterReason.DELIVERY_LIMIT: "Offset delivery count exceeded the threshold.",
    DeadLetterReason.REJECTED: "Offset rejected by client.",
}
"""Kafka's words, because programs compare them."""

SUFFIX = ".dlq"
COPY_BYTES = 512 * 1024
"""About how much is copied in one batch."""
WARNED_MAX = 1_000
"""Queues whose dropped letters were logged. For more queues, only the events report it."""


class DeadLetterWriter:
    """Copies dead letters to their topics."""

    def __init__(self, forwarder: RecordForwarder, clock: Clock, events: EventSink = NO_EVENTS) -> None:
        self._events = events
        self._forwarder = forwarder
        self._clock = clock
        self._warned: set[tuple[str, str]] = set()
        """Queues and topics for which a warning was logged."""

    async def write(self, driver: QueueDriver, letter: DeadLetterRange) -> None:
        """Returns when the copies are committed; PenstockError if that is not possible now."""
        name, index = driver.partition.name
        target = driver.config.dead_letter_topic_of(name)
        if target == name or (name.endswith(SUFFIX) and not driver.config.names_dead_letter_topic):
            self._drop(driver, letter, target)
            return
        topic = await self._topic(driver, target)
        for batch in self._copies(driver, letter):
            await self._forwarder.append(topic, index % topic.partitions, batch, caller=BROKER)
        driver.failures.forget(letter.first, letter.last)
        self._tell(driver, letter)

    async def _topic(self, driver: QueueDriver, name: str) -> Topic:
        if not driver.config.kafka_dead_letter_topic:
            topic = await self._forwarder.topic(name, caller=BROKER)
            if topic.internal:
                message = f"{topic.name} is internal: name another one"
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
            return topic
        topic = await self._forwarder.topic(name, caller=BROKER, configs={DEAD_LETTERS_ALLOWED: "true"})
        if not topic.config.errors_deadletterqueue_group_enable:
            message = (
                f"{name} takes no dead letters: set {DEAD_LETTERS_ALLOWED}=true on it, or name another topic"
            )
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        return topic

    def _drop(self, driver: QueueDriver, letter: DeadLetterRange, target: str) -> None:
        group, topic = driver.key.group_id, driver.partition.name.topic
        if (group, topic) not in self._warned and len(self._warned) < WARNED_MAX:
            self._warned.add((group, topic))
            log.warning(
                "queue %s on %s: failed messages are dropped, because its dead letters would go to %s; "
                "set penstock.dead.letter.topic to another topic",
                group,
                topic,
                target,
            )
        self._tell(driver, letter, dropped=True)

    def _tell(self, driver: QueueDriver, letter: DeadLetterRange, **more: object) -> None:
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

    def _copies(self, driver: QueueDriver, letter: DeadLetterRange) -> Iterator[bytes]:
        rows: list[Record] = []
        size = 0
        for record in _records(driver, letter.first, letter.last):
            rows.append(self._with_reason(driver, letter, record, len(rows)))
            size += len(record.value or b"") + len(record.key or b"") + 256
            if size >= COPY_BYTES:
                yield build_batch(rows)
                rows, size = [], 0
        if rows:
            yield build_batch(rows)

    def _with_reason(
        self, driver: QueueDriver, letter: DeadLetterRange, record: Record, number: int
    ) -> Record:
        topic, index = driver.partition.name
        added = {
            REASON: letter.reason.value,
            TOPIC: topic,
            PARTITION: str(index),
            OFFSET: str(record.offset),
            GROUP: driver.key.group_id,
            DELIVERIES: str(letter.deliveries),
            AT: str(self._clock.wall_ms()),
            **_failure(driver, letter, record.offset),
        }
        kept = [(name, value) for name, value in record.headers if name not in HEADERS]
        if driver.config.kafka_dead_letter_topic:
            added |= _kafka_headers(driver, letter, record)
            kept = [(name, value) for name, value in kept if not name.startswith(KAFKA_MARK)]
            record = record._replace(timestamp=self._clock.wall_ms())
            if not driver.config.kafka_dead_letter_copies:
                added[CONTENT] = OMITTED
                record, kept = record._replace(key=None, value=None), []
        new = [(name, value.encode()) for name, value in added.items()]
        return record._replace(offset=number, headers=(*kept, *new))


def _kafka_headers(driver: QueueDriver, letter: DeadLetterRange, record: Record) -> dict[str, str]:
    topic, index = driver.partition.name
    return {
        f"{KAFKA_MARK}topic": topic,
        f"{KAFKA_MARK}partition": str(index),
        f"{KAFKA_MARK}offset": str(record.offset),
        f"{KAFKA_MARK}group": driver.key.group_id,
        f"{KAFKA_MARK}delivery.count": str(letter.deliveries),
        f"{KAFKA_MARK}message": _KAFKA_MESSAGES[letter.reason],
    }


def _failure(driver: QueueDriver, letter: DeadLetterRange, offset: int) -> dict[str, str]:
    """What is known about the failures of a message. A consumer that crashed has reported none, but had it last."""
    found: dict[str, str] = {}
    if letter.member is not None:
        found[WORKER] = driver.failures.name_of(letter.member)
    history = driver.failures.get(offset)
    if history is not None:
        found.setdefault(WORKER, history.worker)
        found[FIRST_FAILURE], found[LAST_FAILURE] = str(history.first_ms), str(history.last_ms)
        if history.failure is not None:
            found[ERROR_TYPE], found[ERROR_TEXT] = history.failure
    return found


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
    """No records if the batch cannot be unpacked. CorruptLog if the disk has changed the batch: then the records are
    not given up, because another replica may have them intact."""
    try:
        check_batch(data, position)
    except BatchError as damage:
        reason = f"in the batch of offset {header.base_offset}: {damage}"
        raise CorruptLog(driver.partition.log.path, position, reason) from None
    if header.control:
        return []
    try:
        return read_records(data, position, max_bytes=most_unpacked(data, position, header))
    except BatchError as wrong:
        log.error(
            "queue %s on %s: the batch of offsets %d to %d cannot be unpacked, so it is not copied: %s",
            driver.key.group_id,
            driver.partition.name,
            header.base_offset,
            header.next_offset - 1,
            wrong,
        )
        return []
