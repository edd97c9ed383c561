"""`penstock status`: prints the status log, and follows it.

It reads the topic like any client, so it shows the events of all nodes, also of those that are down. Like any client
it connects, several times, and the log has events for that. So connections are shown only on request, or each run
would show little but the connections of the run before."""

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import click
import msgspec
from confluent_kafka import Message
from confluent_kafka.admin import OffsetSpec

from penstock.cli import topic_facts
from penstock.cli.connection import Connection, connects
from penstock.cli.consume import CHUNK, Plan, Reader
from penstock.cli.help import examples
from penstock.cli.output import note
from penstock.cli.parameters import Duration
from penstock.cli.problem import Problem
from penstock.cli.stopping import Stop, stop_on_signals

DEFAULT_TOPIC = "penstock.status"
DEFAULT_LAST = 20
KIND_WIDTH = 22
"""The longest of the usual kinds."""
EXCEPT = "!"
CONNECTIONS = "connection*"
WINDOW = 2_000
"""So many events are searched first; ten times as many if there are too few matches, and so on."""
NEVER = -1
"""The offset in ListOffsets if no message is that new."""

Event = dict[str, Any]

HEAD = ("time", "node_id", "kind")
COLOURS = {
    "error": "red",
    "status": "red",
    "broker": "green",
    "node": "magenta",
    "leader": "magenta",
    "controller": "magenta",
    "replica": "magenta",
    "topic": "cyan",
    "group": "yellow",
    "queue": "blue",
    "subscription": "blue",
}
"""Colours, by the part of the kind before the dot. Connections have none: there are so many."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are shown."""

    topic: str
    kinds: tuple[str, ...]
    """Patterns. One that begins with EXCEPT names kinds that are not shown."""
    connections: bool = False
    """Whether connections are shown, also if no pattern asks for them."""
    since_ms: int | None
    """Milliseconds since 1970."""
    last: int | None

    def takes(self, message: Message, event: Event) -> bool:
        if self.since_ms is not None and message.timestamp()[1] < self.since_ms:
            return False
        return self._takes_kind(event["kind"])

    def _takes_kind(self, kind: str) -> bool:
        wanted = [glob for glob in self.kinds if not glob.startswith(EXCEPT)]
        unwanted = [glob.removeprefix(EXCEPT) for glob in self.kinds if glob.startswith(EXCEPT)]
        if any(fnmatchcase(kind, glob) for glob in unwanted):
            return False
        if fnmatchcase(kind, CONNECTIONS) and not wanted:
            return self.connections
        return not wanted or any(fnmatchcase(kind, glob) for glob in wanted)


@click.command(
    epilog=examples(
        "penstock status",
        "penstock status --follow --connections",
        "penstock status --since 2h --kind 'group.*' --kind 'queue.*'",
        "penstock status --follow -n 0 --kind error --json",
    )
)
@click.option("-f", "--follow", is_flag=True, help="Show new events too, until Ctrl-C.")
@click.option("-n", "--last", type=click.IntRange(min=0),
              help=f"Show this many of the events so far.  [default: {DEFAULT_LAST}; with --since: all]")  # fmt: skip
@click.option("--since", type=Duration(), metavar="TIME",
              help="Only events that are not older: 90s, 15m, 2h, 7d; without a unit, seconds.")  # fmt: skip
@click.option("--kind", "kinds", multiple=True, metavar="GLOB",
              help="Only such events (or with ! before it: all others), as often as needed.")  # fmt: skip
@click.option("--connections", is_flag=True, help="Show connections, too.")
@click.option("--topic", default=DEFAULT_TOPIC, show_default=True, help="The topic of the status log.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, as it is in the topic.")
@connects
def status(
    connection: Connection,
    follow: bool,
    last: int | None,
    since: int | None,
    kinds: tuple[str, ...],
    connections: bool,
    topic: str,
    as_json: bool,
) -> None:
    """Show events of the broker: topics, groups, queues, leaders, errors.

    Connections are shown with --connections, or with a --kind that matches: this command itself opens some twenty.
    """
    if last is None and since is None:
        last = DEFAULT_LAST
    since_ms = None if since is None else int(time.time() * 1000) - since
    selection = Selection(topic=topic, kinds=kinds, connections=connections, since_ms=since_ms, last=last)
    _run(connection, selection, follow=follow, as_json=as_json)


def _run(connection: Connection, selection: Selection, *, follow: bool, as_json: bool) -> None:
    firsts, ends = _bounds(connection, selection)
    reader = Reader(connection, Plan(topic=selection.topic, from_beginning=True, exit_at_end=not follow))
    try:
        with stop_on_signals() as stop:
            past = _past(reader, selection, firsts, ends, stop)
            _show(past, as_json=as_json)
            while follow and not stop:
                _show(_events(reader.next(CHUNK), selection), as_json=as_json)
    finally:
        reader.close()


def _bounds(
    connection: Connection, selection: Selection
) -> tuple[topic_facts.Partitions, topic_facts.Partitions]:
    """The first offsets that may match, and the present ends."""
    admin = connection.admin()
    if selection.topic not in topic_facts.all_topics(connection):
        raise Problem(
            f"there is no topic {selection.topic}, or you may not see it",
            'reading it needs READ on the topic; a broker that was started with status_topic="" has no status log; '
            "--topic names another one",
        )
    numbers = topic_facts.partition_numbers(connection, admin, selection.topic)
    where = [(selection.topic, number) for number in numbers]
    ends = topic_facts.offsets_at(connection, admin, where, OffsetSpec.latest())
    if selection.since_ms is not None:
        since = OffsetSpec.for_timestamp(max(selection.since_ms, 0))
        found = topic_facts.offsets_at(connection, admin, where, since)
        return {each: ends[each] if at == NEVER else at for each, at in found.items()}, ends
    return topic_facts.offsets_at(connection, admin, where, OffsetSpec.earliest()), ends


def _past(
    reader: Reader,
    selection: Selection,
    firsts: topic_facts.Partitions,
    ends: topic_facts.Partitions,
    stop: Stop,
) -> list[Event]:
    """The past events: from further and further back, until there are enough matches."""
    last = selection.last
    if last is None:
        return _since(reader, selection, firsts, ends, stop)
    window = max(last, WINDOW) if last else 0
    while True:
        starts = {each: max(first, ends[each] - window) for each, first in firsts.items()}
        found = _since(reader, selection, starts, ends, stop)
        if len(found) >= last or starts == firsts or stop:
            return found
        window *= 10


def _since(
    reader: Reader,
    selection: Selection,
    starts: topic_facts.Partitions,
    ends: topic_facts.Partitions,
    stop: Stop,
) -> list[Event]:
    reader.read_from(starts)
    unread = {number for (_, number), end in ends.items() if starts[selection.topic, number] < end}
    found: deque[Event] = deque(maxlen=selection.last)
    while unread and not stop and not reader.finished:
        messages = reader.next(CHUNK)
        found.extend(_events(messages, selection))
        unread -= {
            message.partition()
            for message in messages
            if (message.offset() or 0) + 1 >= ends[selection.topic, message.partition() or 0]
        }
    return sorted(found, key=lambda event: str(event.get("time", ""))) if len(ends) > 1 else list(found)


def _events(messages: Iterable[Message], selection: Selection) -> Iterator[Event]:
    for message in messages:
        try:
            event = json.loads(message.value() or b"")
        except ValueError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
            note(f"offset {message.offset()} of {selection.topic} is not an event")
        elif selection.takes(message, event):
            yield event


def _show(events: Iterable[Event], *, as_json: bool) -> None:
    colour = False if os.environ.get("NO_COLOR") else None  # None: where there is a terminal
    lines = [json.dumps(event, ensure_ascii=False) if as_json else line_of(event) for event in events]
    if lines:
        click.echo("\n".join(lines), color=colour)


def line_of(event: Event) -> str:
    """One event for people."""
    kind = event["kind"]
    colour = COLOURS.get(kind.partition(".")[0])
    shown = click.style(_value(kind), fg=colour) if colour else _value(kind)
    facts = " ".join(f"{_value(name)}={_value(value)}" for name, value in event.items() if name not in HEAD)
    gap = " " * (KIND_WIDTH - len(kind))
    return f"{_value(event.get('time'))}  {_value(event.get('node_id'))}  {shown}{gap} {facts}".rstrip()


def _value(value: object) -> str:
    """The value without blanks and control characters: clients choose their names themselves."""
    if isinstance(value, dict):
        text = ",".join(f"{name}={each}" for name, each in value.items())
    elif isinstance(value, list):
        text = ",".join(str(each) for each in value)
    elif isinstance(value, str):
        text = value
    else:
        text = json.dumps(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
