"""Publishing through librdkafka: idempotent, acknowledged by all, batched in the background.

One thread serves delivery reports; it and librdkafka's own are all that a publisher has. The blocking client and the
asynchronous one share this file: a message's future is a concurrent.futures.Future, which either can wait for.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.client.amounts import MESSAGE_ID, RecordHeaders, as_bytes
from penstock.client.destinations import REACH_SECONDS, Destinations
from penstock.client.errors import ClientError, Closed, PublishFailed
from penstock.client.kafka_trouble import NOWHERE, PUBLISHING_HINTS, SILENCE, translate

POLL_SECONDS: Final = 0.1
ROOM_PAUSE_SECONDS: Final = 0.005
"""Between looks for room when librdkafka's queue is full (100,000 messages or a gigabyte, by default)."""


class Stored(NamedTuple):
    """Where a published message is. Of a message id that is known already: where the first one is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Outgoing(NamedTuple):
    """A message on its way."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: RecordHeaders
    partition: int | None

    @property
    def placing_id(self) -> bytes | None:
        """The message id, if that is what says where the message goes."""
        if self.partition is not None or self.key is not None:
            return None
        ids = [as_bytes(name, value) for name, value in self.headers if name == MESSAGE_ID]
        return ids[-1] if ids else None


class NoRoom(Exception):
    """Too much is under way; try again in a moment."""


class Publisher:
    """Made with the first message. Usable from all threads."""

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        # Keys by the hash of Java's clients and of publishing over HTTP, so that a key has one partition.
        defaults = {"linger.ms": 1, "client.id": "penstock", "partitioner": "murmur2_random"}
        ours = {"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", "logger": SILENCE}
        try:
            self._producer = Producer({**defaults, **settings, **ours})
        except KafkaException as problem:
            raise ClientError(f"librdkafka does not take these settings: {problem.args[0].str()}") from None
        self._destinations = Destinations(self._producer, servers)
        self._is_closed = False
        self._thread = threading.Thread(target=self._poll, name="penstock-publisher", daemon=True)
        self._thread.start()

    def knows(self, message: Outgoing) -> bool:
        """Whether it may be offered; else its topic has to be looked up before."""
        return self._destinations.knows(message.topic, counted=message.placing_id is not None)

    def look_up(self, message: Outgoing, patience_s: float = REACH_SECONDS) -> None:
        """Waits until its topic is there. PublishFailed: it is not, and nothing was sent."""
        self._check_open()
        counted = message.placing_id is not None
        self._destinations.look_up(message.topic, counted=counted, patience_s=patience_s)

    def offer(self, message: Outgoing) -> "Future[Stored]":
        """NoRoom if it has to wait."""
        self._check_open()
        future: Future[Stored] = Future()
        future.set_running_or_notify_cancel()  # what is under way cannot be called back
        report = partial(self._report, future)
        partition = self._partition_of(message)
        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        try:
            self._producer.produce(
                message.topic,
                message.value,
                message.key,
                headers=message.headers,
                on_delivery=report,
                **place,
            )
        except BufferError:
            raise NoRoom from None
        except KafkaException as problem:
            raise _failed(message.topic, problem.args[0]) from None
        return future

    def put(self, message: Outgoing, patience_s: float = REACH_SECONDS) -> "Future[Stored]":
        """Looks its topic up, if that is new, and waits for room."""
        if not self.knows(message):
            self.look_up(message, patience_s)
        while True:
            try:
                return self.offer(message)
            except NoRoom:
                time.sleep(ROOM_PAUSE_SECONDS)

    def flush(self, timeout_s: float) -> int:
        """How many messages are still under way."""
        return int(self._producer.flush(timeout_s))

    def close(self, timeout_s: float) -> None:
        """Waits for what is under way; what is left after that fails."""
        if not self._is_closed:
            self._is_closed = True
            self.flush(timeout_s)
            self._producer.purge()
            self._producer.flush(1.0)
            self._thread.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the client was closed")

    def _partition_of(self, message: Outgoing) -> int | None:
        placing_id = message.placing_id
        if placing_id is None:
            return message.partition
        return self._destinations.partition_of(message.topic, placing_id)

    def _poll(self) -> None:
        while not self._is_closed:
            self._producer.poll(POLL_SECONDS)

    def _report(self, future: "Future[Stored]", error: KafkaError | None, message: Message) -> None:
        topic = message.topic() or ""
        if error is None:
            place = (topic, message.partition() or 0, message.offset() or 0)
            future.set_result(Stored(*place, timestamp_ms=message.timestamp()[1]))
            return
        if error.code() in NOWHERE:
            self._destinations.forget(topic)
        future.set_exception(_failed(topic, error))


def _failed(topic: str, error: KafkaError) -> PublishFailed:
    cause = translate(error, f"publishing to {topic}", PUBLISHING_HINTS)
    is_doubtful = cause.retriable and error.code() not in NOWHERE
    doubt = (
        " It may be stored all the same: publish it again with the same message_id." if is_doubtful else ""
    )
    return PublishFailed(f"{cause}.{doubt}", retriable=cause.retriable)
