"""Calls: a job whose handler's result comes back to the caller, over a reply topic.

    caller   publishes the job with two headers: the reply topic, and the call's id; the job expires with the call
    worker   publishes the handler's result to the reply topic, with the id; then it acks the job
    caller   reads the reply topic from where it ended before the first call, and drops the replies to other callers

A reply topic has the replies to all callers, so each caller reads all of them: calls are for results that are small or
rare. Invariants:

 1. A client listens to a reply topic before it publishes the first call that names it, so no reply is missed.
 2. A call ends once: with the first reply of its id, or with its timeout. Later replies are dropped.
 3. A client has at most CALLS_MAX calls under way.
"""

import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from confluent_kafka import Consumer, Message, TopicPartition

from penstock.client.admin import Admin
from penstock.client.arguments import RecordHeaders, as_bytes
from penstock.client.error_texts import ERROR_TEXT_MAX, error_text, error_type
from penstock.client.errors import CallFailed, ClientError, Closed
from penstock.client.forks import kept_in_child
from penstock.client.kafka_errors import LIBRDKAFKA_LOG
from penstock.client.publishing import OutgoingMessage

REPLY_TO: Final = "penstock-reply-to"
CALL_ID: Final = "penstock-call-id"
ERROR: Final = "penstock-reply-error"

CALLS_MAX: Final = 10_000
RETENTION_MS: Final = 3_600_000
"""Of a reply topic that a client creates: a reply is read at once, or never."""
POLL_SECONDS: Final = 0.2


class Reply:
    """The result of a handler."""

    __slots__ = ("value",)

    def __init__(self, value: bytes | None) -> None:
        self.value = value
        """The bytes or text that the handler returned; any other result as JSON."""

    def text(self) -> str:
        """The value decoded as UTF-8; "" if there is no value."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value parsed as JSON. Raises ValueError if it is not JSON."""
        return msgspec.json.decode(self.value or b"null")

    def __repr__(self) -> str:
        return f"<Reply {self.value!r:.80}>"


class CalledJob(Protocol):
    """A job of threads or of tasks."""

    def header(self, name: str) -> bytes | None: ...


def call_headers(call_id: bytes, reply_topic: str) -> RecordHeaders:
    return [(REPLY_TO, reply_topic.encode()), (CALL_ID, call_id)]


def reply_to(job: CalledJob, result: object, problem: Exception | None) -> OutgoingMessage | None:
    """The reply to a job that will not be tried again; None if its publisher does not wait for one."""
    topic, call_id = job.header(REPLY_TO), job.header(CALL_ID)
    if not topic or not call_id:
        return None
    made = OutgoingMessage(topic.decode(errors="replace"), None, None, [(CALL_ID, call_id)], None)
    if problem is not None:
        return error_reply(made, problem)
    try:
        return made._replace(value=_as_value(result))
    except (TypeError, ValueError) as unsuitable:
        return error_reply(made, TypeError(f"the handler's result cannot be sent: {unsuitable}"))


def error_reply(reply: OutgoingMessage, problem: Exception) -> OutgoingMessage:
    """The same reply with an error instead of a value."""
    text = f"{error_type(problem)}: {error_text(problem)}"[:ERROR_TEXT_MAX]
    return reply._replace(value=None, headers=[*reply.headers, (ERROR, text.encode())])


def _as_value(result: object) -> bytes | None:
    if isinstance(result, (str, bytes, bytearray, memoryview)):
        return as_bytes("result", result)  # type: ignore[arg-type]
    return msgspec.json.encode(result)


class _Consumer(Consumer):
    """librdkafka's, which as it is cannot be referred to weakly."""


class PendingCall(NamedTuple):
    call_id: bytes
    reply: "Future[Reply]"


class ReplyReader:
    """Made with the first call. Usable from all threads."""

    def __init__(self, servers: str, settings: Mapping[str, Any], admin: Admin) -> None:
        self._admin = admin
        ours = {
            "bootstrap.servers": servers,
            "client.id": "penstock",
            "group.id": f"penstock-replies-{uuid.uuid4().hex}",  # needed, but it joins no group
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "logger": LIBRDKAFKA_LOG,
        }
        self._consumer = kept_in_child(_Consumer({**settings, **ours}))
        self._lock = threading.Lock()
        self._topics: set[str] = set()
        self._new: SimpleQueue[list[TopicPartition]] = SimpleQueue()
        """Partitions, with the offsets from which to read them."""
        self._pending: dict[bytes, Future[Reply]] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="penstock-replies", daemon=True)
        self._thread.start()

    def listens_to(self, topic: str) -> bool:
        return topic in self._topics

    def listen(self, topic: str) -> None:
        """Creates the topic if it does not exist, and reads it from its end (1)."""
        with self._lock:
            if topic in self._topics:
                return
            configs = {"retention.ms": str(RETENTION_MS)}
            self._admin.create_topic(topic, partitions=1, configs=configs, exist_ok=True)
            ends = self._admin.topic_ends(topic)
            self._new.put([TopicPartition(topic, number, end) for number, end in ends.items()])
            self._topics.add(topic)

    def begin(self) -> PendingCall:
        if self._is_closed:
            raise Closed("the client was closed")
        if len(self._pending) >= CALLS_MAX:
            raise ClientError(f"{CALLS_MAX} calls are under way: wait for some of them first")
        call = PendingCall(uuid.uuid4().hex.encode(), Future())
        self._pending[call.call_id] = call.reply
        return call

    def end(self, call: PendingCall) -> None:
        """Later replies are dropped (2)."""
        self._pending.pop(call.call_id, None)

    def close(self) -> None:
        """Calls that are under way fail."""
        self._is_closed = True
        self._thread.join()
        for reply in list(self._pending.values()):
            _resolve(reply, Closed("the client was closed"))

    def _read(self) -> None:
        """Only this thread uses the consumer: some of its methods keep all other threads of Python waiting."""
        while not self._is_closed:
            while not self._new.empty():
                self._consumer.incremental_assign(self._new.get())
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                self._received(message)
        self._consumer.close()

    def _received(self, message: Message) -> None:
        headers: dict[str, Any] = dict(message.headers() or [])
        reply = self._pending.pop(headers.get(CALL_ID), None)  # type: ignore[arg-type]
        if reply is None:
            return
        error: bytes | None = headers.get(ERROR)
        _resolve(
            reply, Reply(message.value()) if error is None else CallFailed(error.decode(errors="replace"))
        )


def _resolve(future: "Future[Reply]", outcome: Reply | ClientError) -> None:
    with suppress(Exception):  # its caller was cancelled in this moment
        future.set_exception(outcome) if isinstance(outcome, ClientError) else future.set_result(outcome)


def call_timed_out(topic: str, timeout_s: float) -> TimeoutError:
    return TimeoutError(
        f"calling {topic}: no reply within {timeout_s:g} s. If no worker has begun the job, it has expired; "
        "otherwise it may be done, or tried again"
    )
