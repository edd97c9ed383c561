"""`penstock consume`: prints a topic's messages.

Without --group it reads partitions by offset and leaves no trace. With --group it is a member like any other:
it shares the partitions, and an offset is stored only after its message was printed, so that an interrupted
run repeats messages rather than losing them.
"""

import base64
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from penstock.cli import topic_facts
from penstock.cli.connection import Connection, connects
from penstock.cli.help import examples
from penstock.cli.kafka_problems import explain
from penstock.cli.output import note
from penstock.cli.stopping import Stop, stop_on_signals

CHUNK = 500
CHUNK_WAIT_S = 0.1
"""Messages are printed when this many have arrived or this much time has passed, whichever is first."""

QUICK_FETCH_MS, DEFAULT_FETCH_MS = 50, 500
"""How long the broker may hold a fetch: an empty response shows that the end of a partition is reached."""

JOIN_NOTICE_S = 15.0
"""A rebalance takes seconds; after this long a person should know what is being waited for."""

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")

Printer = Callable[[Message], bytes]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The topics to read, the start, and the end."""

    topic: str
    group: str | None = None
    partitions: tuple[int, ...] = ()
    from_beginning: bool = False
    offset: int | None = None
    """Where to start; negative: so many before the end."""
    exit_at_end: bool = False
    max_messages: int | None = None
    isolation: str = "read_committed"


class Reader:
    """Reads messages and knows which partitions have been read to their end."""

    def __init__(self, connection: Connection, plan: Plan) -> None:
        self._plan = plan
        self._bootstrap = connection.bootstrap
        self._at_end: set[int] = set()
        self._assigned: set[int] | None = None
        self._consumer: Consumer = connection.consumer(
            group_id=plan.group or "penstock-cli",
            auto_offset_reset="earliest" if plan.from_beginning else "latest",
            enable_auto_commit=plan.group is not None,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            isolation_level=plan.isolation,
            fetch_wait_max_ms=QUICK_FETCH_MS if plan.exit_at_end else DEFAULT_FETCH_MS,
        )

    def join(self) -> None:
        """Reads the partitions that the group assigns."""
        self._consumer.subscribe([self._plan.topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def read_from(self, starts: topic_facts.Partitions) -> None:
        """Reads just these partitions, from these offsets."""
        self._assigned = {partition for _, partition in starts}
        self._at_end.clear()
        self._consumer.assign([TopicPartition(*where, offset) for where, offset in starts.items()])

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = {where.partition for where in partitions}
        self._at_end.clear()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = None

    @property
    def assigned(self) -> bool:
        return self._assigned is not None

    @property
    def finished(self) -> bool:
        return self._plan.exit_at_end and self._assigned is not None and self._assigned <= self._at_end

    def next(self, limit: int) -> list[Message]:
        """The messages that have arrived, at most `limit`; none after a short wait."""
        return [found for found in self._consumer.consume(limit, CHUNK_WAIT_S) if self._is_message(found)]

    def _is_message(self, found: Message) -> bool:
        error = found.error()
        partition = found.partition()
        if error is None:
            self._at_end.discard(partition or 0)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(partition or 0)
        elif not error.retriable() and error.code() not in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
        ):
            needs = {
                KafkaError.TOPIC_AUTHORIZATION_FAILED: f"READ on the topic {self._plan.topic}",
                KafkaError.GROUP_AUTHORIZATION_FAILED: "READ on the group: `--group` names it",
            }
            raise explain(error, f"reading {self._plan.topic}", self._bootstrap, needs)
        return False

    def printed(self, messages: list[Message]) -> None:
        """Their offsets may be committed now."""
        if self._plan.group is None:
            return
        nexts = {message.partition(): (message.offset() or 0) + 1 for message in messages}
        held = [
            TopicPartition(self._plan.topic, partition or 0, offset) for partition, offset in nexts.items()
        ]
        try:
            self._consumer.store_offsets(offsets=held)
        except KafkaException as failure:
            # The partition went to another member meanwhile: that member will read these again.
            if failure.args[0].code() != KafkaError._STATE:
                raise explain(failure, "storing offsets", self._bootstrap) from None

    def close(self) -> None:
        self._consumer.close()


@click.command(
    epilog=examples(
        "penstock consume orders --from-beginning",
        "penstock consume orders --group billing",
        "penstock consume orders --from-beginning --exit --json | jq .value",
        "penstock consume orders --partition 0 --offset 1000 --max 10",
        "penstock consume orders --offset=-5 --exit        # the last five of each partition",
    )
)
@click.argument("topic")
@click.option("-g", "--group", help="Read as a member of this consumer group, and commit.")
@click.option("--from-beginning", is_flag=True,
              help="Start at the oldest message (a group: if it has no offset yet).")  # fmt: skip
@click.option("-o", "--offset", type=int, help="Start at this offset; -N is the last N messages.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True,
              help="Only this partition, as often as needed.")  # fmt: skip
@click.option("-e", "--exit", "exit_at_end", is_flag=True,
              help="Stop at the end instead of waiting for more.")  # fmt: skip
@click.option("-n", "--max", "max_messages", type=click.IntRange(min=1),
              help="Stop after this many messages.")  # fmt: skip
@click.option("--isolation", type=click.Choice(ISOLATION_LEVELS), default=ISOLATION_LEVELS[0], show_default=True,
              help="read_uncommitted: also messages of transactions that are open or were aborted.")  # fmt: skip
@click.option("-K", "--key-separator", help="Print the key too, and this between it and the value.")
@click.option("--json", "as_json", is_flag=True,
              help="One JSON object per line, with key, headers, offset and timestamp.")  # fmt: skip
@connects
def consume(connection: Connection, key_separator: str | None, as_json: bool, **options: Any) -> None:
    """Print the messages of TOPIC: new ones as they arrive, unless an option sets the start. Ctrl-C ends it."""
    plan = Plan(**options)
    if plan.group is not None and (plan.partitions or plan.offset is not None):
        raise click.UsageError("a group decides itself: --partition and --offset do not go with --group")
    if plan.from_beginning and plan.offset is not None:
        raise click.UsageError("--from-beginning and --offset exclude each other")
    _run(connection, plan, json_printer if as_json else text_printer(key_separator))


def _run(connection: Connection, plan: Plan, printer: Printer) -> None:
    starts = _starts(connection, plan)
    reader = Reader(connection, plan)
    try:
        with stop_on_signals() as stop:
            reader.join() if plan.group else reader.read_from(starts)
            count = _print_all(reader, plan, printer, stop)
    finally:
        reader.close()
    if sys.stdout.isatty():
        note(f"{count:,} {'message' if count == 1 else 'messages'}")


def _starts(connection: Connection, plan: Plan) -> topic_facts.Partitions:
    """Where to start in each partition. Asked for here: librdkafka takes half a second to find out by itself."""
    admin = connection.admin()
    existing = topic_facts.partition_numbers(connection, admin, plan.topic)
    missing = sorted(set(plan.partitions) - set(existing))
    if missing:
        raise click.UsageError(f"{plan.topic} has partitions 0 to {len(existing) - 1}, not {missing[0]}")
    wanted = [(plan.topic, number) for number in plan.partitions or existing]
    if plan.offset is not None and plan.offset >= 0:
        return dict.fromkeys(wanted, plan.offset)
    firsts = topic_facts.offsets_at(connection, admin, wanted, OffsetSpec.earliest())
    if plan.from_beginning:
        return firsts
    isolation = IsolationLevel[plan.isolation.upper()]
    ends = topic_facts.offsets_at(connection, admin, wanted, OffsetSpec.latest(), isolation=isolation)
    return {where: max(firsts[where], ends[where] + (plan.offset or 0)) for where in wanted}


def _print_all(reader: Reader, plan: Plan, printer: Printer, stop: Stop) -> int:
    count = 0
    notice_at = time.monotonic() + JOIN_NOTICE_S
    while not stop:
        if not reader.assigned and time.monotonic() > notice_at:
            note(f"still waiting for group {plan.group} to hand out partitions")
            notice_at += JOIN_NOTICE_S
        left = CHUNK if plan.max_messages is None else min(CHUNK, plan.max_messages - count)
        messages = reader.next(left) if left else []
        _write(messages, printer)
        reader.printed(messages)
        count += len(messages)
        if left == 0 or (reader.finished and not messages):
            break
    return count


def _write(messages: list[Message], printer: Printer) -> None:
    out = sys.stdout.buffer
    for message in messages:
        out.write(printer(message))
    if messages:
        out.flush()


# --- a message as a line of output


def text_printer(key_separator: str | None) -> Printer:
    """The value as it is, with the key before it when asked; null is an empty line."""
    if key_separator is None:
        return lambda message: (message.value() or b"") + b"\n"
    between = key_separator.encode()
    return lambda message: (message.key() or b"") + between + (message.value() or b"") + b"\n"


def json_printer(message: Message) -> bytes:
    """Everything about the message as one JSON object.

    Bytes that are not UTF-8 come as base64 under a name that says so ("value_base64").
    """
    kind, timestamp_ms = message.timestamp()
    headers: Any = message.headers() or ()
    shown: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        **_bytes("key", message.key()),
        **_bytes("value", message.value()),
        "headers": [{"name": name, **_bytes("value", value)} for name, value in headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _bytes(name: str, content: Any) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
