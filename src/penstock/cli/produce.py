"""`penstock produce`: each line of stdin becomes a message."""

import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import click
import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.cli.connection import Connection, connects, json_option, key_values
from penstock.cli.help import examples
from penstock.cli.output import note, show_json
from penstock.cli.problem import Problem, explain

QUEUE_FULL_WAIT_S = 0.1
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


class Sender:
    """Sends messages and counts their results."""

    def __init__(self, connection: Connection, topic: str, **settings: Any) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self._bootstrap = connection.bootstrap
        self._topic = topic
        self._error: KafkaError | None = None
        self._producer: Producer = connection.producer(**settings)

    def send(self, key: bytes | None, value: bytes | None, partition: int, headers: list[Any] | None) -> None:
        while True:
            self._raise_failure()
            try:
                self._producer.produce(self._topic, value, key, partition, self._delivered, headers=headers)
                break
            except BufferError:
                self._producer.poll(QUEUE_FULL_WAIT_S)
            except KafkaException as failure:
                raise explain(failure, f"sending to {self._topic}", self._bootstrap) from None
        self._producer.poll(0)
        self.sent += 1
        self.sent_bytes += len(key or b"") + len(value or b"")

    def finish(self) -> None:
        """Waits until every message is acknowledged, or raises the first failure."""
        while self._producer.flush(FLUSH_STEP_S):
            self._raise_failure()
        self._raise_failure()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._error is None:
            self._error = error

    def _raise_failure(self) -> None:
        if self._error is not None:
            self._producer.purge()
            raise explain(self._error, f"sending to {self._topic}", self._bootstrap)


@click.command(
    epilog=examples(
        "echo hello | penstock produce orders",
        "penstock produce orders --key-separator : < orders.txt",
        "penstock produce users --key alice --null-marker DELETE --header source=import",
    )
)
@click.argument("topic")
@click.option("-k", "--key", help="The key of every message.")
@click.option("-K", "--key-separator", help="The text between key and value in each line.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE",
              help="A header for every message.")  # fmt: skip
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition; by key if left out.")
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
) -> None:
    """Send lines from stdin to TOPIC, one message each.

    Only the newline is taken off: a carriage return before it is part of the message.
    With --acks all (the default) a retry never stores a message twice. The exit code is 0 only when every
    message was acknowledged.
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
    header_list = [(name, value.encode()) for name, value in key_values(headers).items()] or None
    try:
        for number, line in _lines(sys.stdin.buffer):
            sender.send(*line_format.split(number, line), -1 if partition is None else partition, header_list)
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
