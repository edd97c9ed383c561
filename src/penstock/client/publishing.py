"""Publishing through librdkafka: idempotent, acknowledged by all in-sync replicas, batched in the background.

One thread polls for delivery reports; librdkafka has its own. The blocking and the asyncio client share this module: a
message's future is a concurrent.futures.Future, and either client can wait for it.

Some errors end librdkafka's producer for good (a user that may write to no topic gets no producer id, for example). All
messages that have no answer then fail, and the client makes another publisher for the next one.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.client.arguments import MESSAGE_ID, RecordHeaders, Text, as_bytes
from penstock.client.confirmations import Confirmation
from penstock.client.errors import ClientError, Closed, PublishFailed
from penstock.client.forks import kept_in_child
from penstock.client.kafka_errors import (
    LIBRDKAFKA_LOG,
    PUBLISHING_HINTS,
    UNKNOWN_TOPIC_CODES,
    client_error,
    fatal_error,
)
from penstock.client.topic_cache import REACH_SECONDS, Explain, TopicCache
from penstock.client.topic_rules import ReadConfigs, TopicRulesCache

log = logging.getLogger("penstock.client")

POLL_SECONDS: Final = 0.1
ANY_PARTITION: Final = -1
"""librdkafka chooses one, by the key if there is one."""
REASON_SECONDS: Final = 1.0
"""librdkafka refuses messages after a fatal error at once, and tells the polling thread a moment later why."""
FULL_PAUSE_SECONDS: Final = 0.005
"""Between two tries while librdkafka's queue is full (100,000 messages or a gigabyte, by default)."""


class Stored(NamedTuple):
    """Where a published message is stored. For a message id that the topic knows: where the first one is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OutgoingMessage(NamedTuple):
    """A message to publish."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: RecordHeaders
    partition: int | None

    @property
    def partitioning_id(self) -> bytes | None:
        """The message id, if it chooses the partition."""
        if not self.headers or self.partition is not None or self.key is not None:
            return None
        ids = [as_bytes(name, value) for name, value in self.headers if name == MESSAGE_ID]
        return ids[-1] if ids else None


def outgoing(
    topic: str,
    value: bytes | None,
    key: Text | None,
    headers: RecordHeaders,
    partition: int | None,
) -> OutgoingMessage:
    if partition is not None and partition < 0:
        raise ValueError(f"partition={partition!r}: expected 0 or more, or None for any")
    return OutgoingMessage(topic, value, as_bytes("key", key), headers, partition)


class QueueFull(Exception):
    """librdkafka's queue is full: try again in a moment."""


class _Producer(Producer):
    """librdkafka's, which as it is cannot be referred to weakly."""


class Publisher:
    """Made with the first message. Usable from all threads."""

    def __init__(
        self, servers: str, settings: Mapping[str, Any], read_configs: ReadConfigs, explain: Explain
    ) -> None:
        # The same hash as Java's clients and publishing over HTTP, so that a key always has the same partition.
        defaults = {"linger.ms": 1, "client.id": "penstock", "partitioner": "murmur2_random"}
        ours = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "logger": LIBRDKAFKA_LOG,
        }
        try:
            self._producer = kept_in_child(_Producer({**defaults, **settings, **ours}))
        except KafkaException as problem:
            raise ClientError(f"librdkafka does not take these settings: {problem.args[0].str()}") from None
        self._topics = TopicCache(self._producer, servers, explain)
        self._rules = TopicRulesCache(read_configs)
        self._is_closed = False
        self._awaited: dict[Future[Stored], str] = {}
        """Messages without an answer, except those that their caller has given up, and their topics."""
        self._fatal: KafkaError | None = None
        self._has_reason = threading.Event()
        """Set with `_fatal`."""
        self._thread = threading.Thread(target=self._poll, name="penstock-publisher", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Whether no message can be published any more."""
        return self._fatal is not None

    def knows(self, message: OutgoingMessage) -> bool:
        """Whether the message may be offered; otherwise its topic has to be looked up first."""
        if not message.headers:
            return self._topics.knows(message.topic, counted=False)
        if not self._topics.knows(message.topic, counted=message.partitioning_id is not None):
            return False
        return self._rules.allows(message.topic, message.headers)

    def look_up(self, message: OutgoingMessage, timeout_s: float = REACH_SECONDS) -> None:
        """Waits until the message's topic is known. Raises PublishFailed if it does not exist, or cannot do what the
        message asks for."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        counted = message.partitioning_id is not None
        if not self._topics.knows(message.topic, counted=counted):
            self._topics.look_up(message.topic, counted=counted, timeout_s=timeout_s)
        if not self._rules.allows(message.topic, message.headers):
            self._rules.check(message.topic, message.headers, max(0.0, deadline - time.monotonic()))

    def offer(self, message: OutgoingMessage) -> "Future[Stored]":
        """Raises QueueFull if it has to wait."""
        self._check_open()
        topic, value, key, headers, partition = message
        future: Confirmation[Stored] = Confirmation()
        report = partial(self._report, future)
        if headers and partition is None:
            partition = self._partition_of(message)
        self._awaited[future] = topic
        try:
            self._producer.produce(
                topic,
                value,
                key,
                partition=ANY_PARTITION if partition is None else partition,
                on_delivery=report,
                headers=headers or None,
            )
        except BufferError:
            self._awaited.pop(future, None)
            raise QueueFull from None
        except KafkaException as problem:
            self._awaited.pop(future, None)
            raise _failed(topic, self._reason(problem.args[0])) from None
        return future

    def put(self, message: OutgoingMessage, timeout_s: float = REACH_SECONDS) -> "Future[Stored]":
        """Looks up the topic if it is new, and waits while the queue is full."""
        if not self.knows(message):
            self.look_up(message, timeout_s)
        try:
            return self.offer(message)
        except QueueFull:
            return self._put_when_there_is_room(message, timeout_s)

    def _put_when_there_is_room(self, message: OutgoingMessage, timeout_s: float) -> "Future[Stored]":
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            time.sleep(FULL_PAUSE_SECONDS)
            with suppress(QueueFull):
                return self.offer(message)
        raise queue_stays_full(message.topic, timeout_s)

    def publish(self, message: OutgoingMessage, timeout_s: float) -> Stored:
        """Returns when the message is stored."""
        deadline = time.monotonic() + timeout_s
        future = self.put(message, timeout_s)
        try:
            return future.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            self.abandon(future)
            raise publish_timed_out(message.topic, timeout_s) from None

    def abandon(self, future: "Future[Stored]") -> None:
        """Its caller has been told that there is no answer: `close` does not wait for it."""
        self._awaited.pop(future, None)

    def flush(self, timeout_s: float) -> int:
        """The number of messages that are not acknowledged yet."""
        return self._served(lambda: self._producer.flush(timeout_s))

    def close(self, timeout_s: float) -> None:
        """Waits for acknowledgements that a caller still waits for; after that, the remaining messages fail."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + timeout_s
        while self._awaited and (left_s := deadline - time.monotonic()) > 0:
            self.flush(min(left_s, POLL_SECONDS))
        if self._awaited:
            log.warning("%d messages were not acknowledged before the client was closed", len(self._awaited))
        self._producer.purge()
        self.flush(1.0)
        self._thread.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the client was closed")

    def _reason(self, refusal: KafkaError) -> KafkaError:
        if refusal.code() == KafkaError._FATAL:
            self._has_reason.wait(REASON_SECONDS)
        return self._fatal or refusal

    def _partition_of(self, message: OutgoingMessage) -> int | None:
        partitioning_id = message.partitioning_id
        if partitioning_id is None:
            return message.partition
        return self._topics.partition_of(message.topic, partitioning_id)

    def _poll(self) -> None:
        while not self._is_closed:
            self._served(lambda: self._producer.poll(POLL_SECONDS))

    def _served(self, wait: Callable[[], int]) -> int:
        """Calls poll or flush, which raise an error that is fatal for the producer."""
        try:
            return wait()
        except (KafkaException, SystemError) as crash:
            self._break(crash)
            return 0

    def _break(self, crash: BaseException) -> None:
        """All messages that have no answer fail."""
        self._fatal = self._fatal or fatal_error(crash)
        if self._fatal is None:
            raise crash
        self._has_reason.set()
        for future in list(self._awaited):
            topic = self._awaited.pop(future, "")
            if not future.done():
                future.set_exception(_failed(topic, self._fatal))

    def _report(self, future: "Future[Stored]", error: KafkaError | None, message: Message) -> None:
        try:
            if error is not None:
                self._fail(future, error, message)
                return
            topic = self._awaited.pop(future, None)
            if topic is not None:
                partition, offset = message.partition() or 0, message.offset() or 0
                future.set_result(Stored(topic, partition, offset, message.timestamp()[1]))
        except SystemError as crash:
            # confluent-kafka calls this while the exception of a fatal error is pending: any call into C fails then.
            self._awaited.setdefault(future, "")
            self._break(crash)

    def _fail(self, future: "Future[Stored]", error: KafkaError, message: Message) -> None:
        topic = self._awaited.pop(future, None)
        if error.code() in UNKNOWN_TOPIC_CODES:
            self._topics.forget(message.topic() or "")
        if topic is not None:  # otherwise it failed with the producer, or its caller has given it up
            future.set_exception(_failed(topic, error))


def publish_timed_out(topic: str, timeout: float) -> PublishFailed:
    doubt = "it is still under way and may be stored; publish it again only with a message_id"
    return PublishFailed(f"publishing to {topic}: no answer within {timeout} s: {doubt}")


def queue_stays_full(topic: str, timeout: float) -> PublishFailed:
    full = "librdkafka's queue has been full for"
    return PublishFailed(f"publishing to {topic}: {full} {timeout} s. Nothing was stored.", retriable=True)


def check_flushed(left: int, timeout: float) -> None:
    if left:
        raise PublishFailed(f"{left} messages are not acknowledged after {timeout} s: flush again, or close")


def _failed(topic: str, error: KafkaError) -> PublishFailed:
    cause = client_error(error, f"publishing to {topic}", PUBLISHING_HINTS)
    is_doubtful = cause.retriable and error.code() not in UNKNOWN_TOPIC_CODES
    doubt = (
        " It may be stored all the same: publish it again with the same message_id." if is_doubtful else ""
    )
    failed = PublishFailed(f"{cause}.{doubt}", retriable=cause.retriable)
    failed.kafka_code = error.code()
    return failed
