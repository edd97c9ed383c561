"""`penstock produce`: each line of stdin becomes a message."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import click
import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import ResourceType

from penstock.cli.common_options import json_option
from penstock.cli.connection import Connection, connects
from penstock.cli.help import examples
from penstock.cli.kafka_problems import explain
from penstock.cli.key_values import key_values
from penstock.cli.output import note, show_json
from penstock.cli.parameters import Duration, moment_ms
from penstock.cli.problem import Problem
from penstock.client.admin import read_configs
from penstock.client.arguments import DELAY, DELIVER_AT, MESSAGE_ID, MESSAGE_ID_BYTES_MAX, TTL
from penstock.client.errors import ClientError, PublishFailed
from penstock.client.kafka_errors import fatal_error
from penstock.client.topic_cache import REACH_SECONDS, TopicCache
from penstock.client.topic_rules import TopicRulesCache, UnsuitableTopic

LINE_NUMBER = "{n}"
QUEUE_FULL_WAIT_S = 0.1
AFTER_A_FATAL_ERROR = frozenset({KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Errors of messages when the producer has failed. Its own error, which comes a moment later, has the reason."""
REASON_S = 1.0
FLUSH_STEP_S = 0.5
"""librdkafka does not answer Ctrl-C while it waits, so it waits in steps."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """How a line is taken apart."""

    key_separator: bytes | None = None
    key: bytes | None = None
    null_marker: bytes | None = None

    def split(self, number: int, line: bytes) -> tuple[bytes | None, bytes | None]:
        """The message's key and value."""
        key, value = self.key, line
        if self.key_separator:
            key, found, value = line.partition(self.key_separator)
            if not found:
                separator = self.key_separator.decode(errors="replace")
                raise Problem(f"line {number} has no key separator {separator!r}: nothing after it was sent")
        return key, None if value == self.null_marker else value


class Headers:
    """The headers of each message: the person's, and those that control delivery."""

    def __init__(
        self,
        given: tuple[str, ...],
        *,
        delay: int | None,
        deliver_at: str | None,
        ttl: int | None,
        message_id: str | None,
    ) -> None:
        if delay is not None and deliver_at is not None:
            raise click.UsageError("--delay and --deliver-at exclude each other")
        self._id = message_id
        self._made = [(name, value.encode()) for name, value in key_values(given).items()]
        at_ms = None if deliver_at is None else moment_ms("--deliver-at", deliver_at)
        for header, value in ((DELAY, delay), (DELIVER_AT, at_ms), (TTL, ttl)):
            if value is not None:
                self._made.append((header, b"%d" % value))

    def message_id(self, number: int) -> bytes | None:
        """The id of a line. A second line with the same id would be dropped as a duplicate."""
        if self._id is None:
            return None
        if number > 1 and LINE_NUMBER not in self._id:
            message = (
                f"line {number} would have the id of line 1, and be dropped: nothing after line 1 was sent"
            )
            raise Problem(message, f"--message-id {self._id}-{LINE_NUMBER} gives each line its own")
        made = self._id.replace(LINE_NUMBER, str(number)).encode()
        if not 1 <= len(made) <= MESSAGE_ID_BYTES_MAX:
            raise click.UsageError(f"--message-id: {len(made)} bytes, expected 1 to {MESSAGE_ID_BYTES_MAX}")
        return made

    def of(self, message_id: bytes | None) -> list[tuple[str, bytes]] | None:
        found = self._made if message_id is None else [*self._made, (MESSAGE_ID, message_id)]
        return found or None


class Sender:
    """Sends messages and counts their results."""

    def __init__(self, connection: Connection, topic: str, **settings: Any) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self._bootstrap = connection.bootstrap
        self._topic = topic
        self._error: KafkaError | None = None
        self._fatal: KafkaError | None = None
        """Why librdkafka's producer takes no more messages."""
        self._producer: Producer = connection.producer(**settings)
        self._topics = TopicCache(self._producer, connection.bootstrap)
        self._rules = TopicRulesCache(
            lambda topic, timeout_s: read_configs(connection.admin(), ResourceType.TOPIC, topic, timeout_s)
        )

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: list[Any] | None,
        message_id: bytes | None = None,
    ) -> None:
        """Without a key and a partition, the message id chooses the partition: brokers look for ids in each of them."""
        if headers and not self._rules.allows(self._topic, headers):
            self._check(headers)
        if message_id is not None and key is None and partition is None:
            partition = self._partition_of(message_id)
        to = -1 if partition is None else partition
        while True:
            self._raise_failure()
            try:
                self._producer.produce(self._topic, value, key, to, self._delivered, headers=headers)
                break
            except BufferError:
                self._serve(lambda: self._producer.poll(QUEUE_FULL_WAIT_S))
            except KafkaException as failure:
                self._error = self._error or failure.args[0]
        self._serve(lambda: self._producer.poll(0))
        self.sent += 1
        self.sent_bytes += len(key or b"") + len(value or b"")

    def _check(self, headers: list[Any]) -> None:
        """Refuses an id or a delay that would have no effect."""
        self._look_up(counted=False)
        try:
            self._rules.check(self._topic, headers, REACH_SECONDS)
        except UnsuitableTopic as unsuitable:
            changes = " ".join(f"--set {name}={value}" for name, value in unsuitable.configs.items())
            raise Problem(
                f"{self._topic}: {unsuitable.reason}. Nothing was sent.",
                f"penstock topics alter {self._topic} {changes}",
            ) from None
        except ClientError as failure:
            raise self._explained(failure) from None

    def _partition_of(self, message_id: bytes) -> int:
        self._look_up(counted=True)
        return self._topics.partition_of(self._topic, message_id)

    def _look_up(self, *, counted: bool) -> None:
        try:
            if not self._topics.knows(self._topic, counted=counted):
                self._topics.look_up(self._topic, counted=counted, timeout_s=REACH_SECONDS)
        except ClientError as failure:
            raise self._explained(failure) from None

    def _explained(self, failure: ClientError) -> Problem:
        """The advice of the Python client names Python calls; that of the command line names commands."""
        code = failure.kafka_code if isinstance(failure, PublishFailed) else None
        if code is None:
            return Problem(str(failure))
        return explain(KafkaError(code), f"sending to {self._topic}", self._bootstrap)

    def finish(self) -> None:
        """Waits until every message is acknowledged, or raises the first failure."""
        while len(self._producer) and self._fatal is None:
            # Not flush: it goes on after a fatal error, and then confluent-kafka may lose the reason.
            self._serve(lambda: self._producer.poll(FLUSH_STEP_S))
            self._raise_failure()
        self._raise_failure()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._error is None:
            self._error = error

    def _serve(self, wait: Callable[[], int]) -> int:
        """Calls poll or flush, which raise an error that is fatal for the producer."""
        try:
            return wait()
        except (KafkaException, SystemError) as crash:
            self._fatal = self._fatal or fatal_error(crash)
            if self._fatal is None:
                raise
            return 0

    def _raise_failure(self) -> None:
        error = self._fatal or self._error
        if error is None:
            return
        if error.code() in AFTER_A_FATAL_ERROR:
            self._serve(lambda: self._producer.poll(REASON_S))
            error = self._fatal or error
        self._producer.purge()
        codes = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        needs = dict.fromkeys(codes, f"WRITE on the topic {self._topic}")
        raise explain(error, f"sending to {self._topic}", self._bootstrap, needs)


@click.command(
    epilog=examples(
        "echo hello | penstock produce orders",
        "penstock produce orders --key-separator : < orders.txt",
        "penstock produce users --key alice --null-marker DELETE --header source=import",
        "echo remind me | penstock produce mail --delay 2h --ttl 1d",
        "penstock produce orders --message-id 'import-7-{n}' < orders.txt",
    )
)
@click.argument("topic")
@click.option("-k", "--key", help="The key of every message.")
@click.option("-K", "--key-separator", help="The text between key and value in each line.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE",
              help="A header for every message.")  # fmt: skip
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition; by key if left out.")
@click.option(
    "--delay", type=Duration(0), metavar="TIME", help="Queues and subscriptions deliver it after this time."
)
@click.option("--deliver-at", metavar="TIME",
              help="Queues and subscriptions deliver it then (ISO 8601, or ms since 1970).")  # fmt: skip
@click.option("--ttl", type=Duration(0), metavar="TIME", help="They do not deliver it later than that.")
@click.option("--message-id", metavar="ID",
              help="The topic stores one message of this id; {n} stands for the line's number.")  # fmt: skip
@click.option("--null-marker", metavar="TEXT", help="A value equal to TEXT is sent as null (a tombstone).")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True,
              help="Which replicas must have it.")  # fmt: skip
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
              default="none", show_default=True)  # fmt: skip
@json_option
@connects
def produce(
    connection: Connection,
    topic: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    null_marker: str | None,
    acks: str,
    compression: str,
    as_json: bool,
    **delivery: Any,
) -> None:
    """Send lines from stdin to TOPIC, one message each.

    Only the newline is taken off: a carriage return before it is part of the message.
    With --acks all (the default) a retry never stores a message twice. The exit code is 0 only when every
    message was acknowledged. A TIME is a number with ms, s, m, h or d; without a unit it is seconds.
    """
    if key is not None and key_separator:
        raise click.UsageError("--key and --key-separator exclude each other")
    if sys.stdin is None:  # what Python makes of `<&-`
        raise Problem("standard input is closed", "pipe lines into it, or redirect it from a file")
    line_format = Line(key_separator=_bytes(key_separator), key=_bytes(key), null_marker=_bytes(null_marker))
    sender = Sender(
        connection, topic, acks=acks, compression_type=compression, enable_idempotence=acks == "all",
        linger_ms=20,
    )  # fmt: skip
    made = Headers(headers, **delivery)
    try:
        for number, line in _lines(sys.stdin.buffer):
            key_bytes, value = line_format.split(number, line)
            message_id = made.message_id(number)
            sender.send(key_bytes, value, partition, made.of(message_id), message_id)
    finally:
        sender.finish()
    _report(topic, sender, as_json)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    if stream.isatty():
        note("one message per line; Ctrl-D ends")
    for number, line in enumerate(stream, start=1):
        yield number, line.removesuffix(b"\n")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _report(topic: str, sender: Sender, as_json: bool) -> None:
    if as_json:
        show_json({"topic": topic, "messages": sender.sent, "bytes": sender.sent_bytes})
    else:
        note(f"{sender.sent:,} {'message' if sender.sent == 1 else 'messages'} to {topic}")
