"""`penstock queues`: create, list, describe, peek, scheduled, purge, delete; the rest is in `queues_settings` and
`queues_dead`."""

import json
from datetime import datetime
from typing import Any

import click

from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, QueuesApi, asks
from penstock.cli.output import counted, note, show, show_json, table
from penstock.cli.queues_dead import dead_letters
from penstock.cli.queues_settings import alter, settings_of, takes_settings
from penstock.cli.topics import confirm

VALUE_WIDTH = 60
"""Characters of a value in a table: --json shows all of it."""


@click.group(
    epilog=examples(
        "penstock queues create mail --lease 60s --limit 3",
        "penstock queues list",
        "penstock queues describe mail",
        "penstock queues dead-letters list mail",
    )
)
def queues() -> None:
    """Create, watch and clear work queues and their dead letters.

    A queue hands each message of its topics to one consumer at a time, until one says that it is done.
    """


queues.add_command(dead_letters)
queues.add_command(alter)


@queues.command(
    epilog=examples(
        "penstock queues create mail",
        "penstock queues create mail --topic outbox --lease 60s --limit 3 --dead-letters undeliverable",
        "penstock queues create accounts --partitions 6 --order key --retry-delay 1s",
        "penstock queues create payments --point-to-point",
    )
)
@click.argument("name")
@click.option("-t", "--topic", metavar="TOPIC", help="What it takes from; NAME if left out, made if need be.")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Of a topic that has to be made.")
@click.option(
    "-r", "--replication-factor", type=click.IntRange(min=1), help="Of a topic that has to be made."
)
@click.option(
    "--point-to-point",
    is_flag=True,
    help="One partition, one producer and one consumer at a time: strict order.",
)
@takes_settings
@click.option("--only-new", is_flag=True, help="Leave out what is in the topic already.")
@json_option
@asks(QueuesApi)
def create(api: QueuesApi, name: str, as_json: bool, **wishes: Any) -> None:
    """Create a queue, and its topic if there is none.

    A TIME is a number with ms, s, m, h or d; without a unit it is seconds.
    """
    made = api.post(
        queue=name,
        topic=wishes["topic"],
        partitions=wishes["partitions"],
        replication_factor=wishes["replication_factor"],
        point_to_point=wishes["point_to_point"],
        start="latest" if wishes["only_new"] else "earliest",
        **settings_of(wishes),
    )
    if as_json:
        show_json(made)
    else:
        topics = sorted({row["topic"] for row in made["partitions"]})
        note(f"created {name} on {', '.join(topics)} ({counted(len(made['partitions']), 'partition')})")


@queues.command("list", epilog=examples("penstock queues list", "penstock queues list --json"))
@json_option
@asks(QueuesApi)
def list_queues(api: QueuesApi, as_json: bool) -> None:
    """List queues, and how much there is to do in them."""
    found = api.get()["queues"]
    if as_json:
        show_json(found)
    elif found:
        columns = ("queue", "topics", "partitions", "undone", "leased")
        rows = [[queue[column] for column in columns] for queue in found]
        show(table(*columns, rows=rows, numbers=("partitions", "undone", "leased")))
    else:
        note("no queues")


@queues.command(epilog=examples("penstock queues describe mail", "penstock queues describe mail --json"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@asks(QueuesApi)
def describe(api: QueuesApi, names: tuple[str, ...], as_json: bool) -> None:
    """Show queues' settings, and what is available, leased and waiting on every partition."""
    found = [api.get(name) for name in names]
    if as_json:
        show_json(found)
        return
    for queue in found:
        _show_queue(queue)


def _show_queue(queue: Facts) -> None:
    columns = (
        "topic",
        "partition",
        "leader",
        "start",
        "end",
        "undone",
        "available",
        "leased",
        "deferred",
        "dying",
    )
    keys = (
        "topic", "partition", "leader", "start_offset", "end_offset",
        "undone", "available", "leased", "deferred", "dying",
    )  # fmt: skip
    rows = [[row[key] for key in keys] for row in queue["partitions"]]
    show(queue["queue"], "", table(*columns, rows=rows, numbers=columns[1:]))
    for row in queue["partitions"]:
        if row["holder"]:
            show(f"{row['topic']}-{row['partition']} is with {row['holder']}")
    show(
        "",
        table("setting", "value", rows=[[key, _plain(value)] for key, value in queue["settings"].items()]),
        "",
    )


def _plain(value: object) -> object:
    return str(value) if isinstance(value, float) else value


@queues.command(
    epilog=examples(
        "penstock queues peek mail",
        "penstock queues peek mail --topic outbox --partition 0 --max 100",
        "penstock queues peek mail --json",
    )
)
@click.argument("name")
@click.option("-t", "--topic", metavar="TOPIC", help="Only of this topic.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only of this partition of it.")
@click.option("-o", "--offset", type=click.IntRange(min=0), help="From this offset of it on.")
@click.option("-n", "--max", "most", type=click.IntRange(1, 1000), default=10, show_default=True)
@json_option
@asks(QueuesApi)
def peek(
    api: QueuesApi,
    name: str,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    most: int,
    as_json: bool,
) -> None:
    """Look at messages that are not done, without taking them."""
    found = api.get(name, "peek", topic=topic, partition=partition, offset=offset, max_records=most)[
        "messages"
    ]
    if as_json:
        show_json(found)
    elif found:
        columns = ("topic", "partition", "offset", "state", "deliveries", "consumer", "key", "value")
        rows = [[*(row[column] for column in columns[:-1]), shortened(row["value"])] for row in found]
        show(table(*columns, rows=rows, numbers=("partition", "offset", "deliveries")))
    else:
        note("nothing to do")


@queues.command(
    epilog=examples("penstock queues scheduled mail", "penstock queues scheduled mail --max 100 --json")
)
@click.argument("name")
@click.option("-t", "--topic", metavar="TOPIC", help="Only of this topic.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only of this partition of it.")
@click.option("-n", "--max", "most", type=click.IntRange(1, 1000), default=10, show_default=True)
@json_option
@asks(QueuesApi)
def scheduled(
    api: QueuesApi, name: str, topic: str | None, partition: int | None, most: int, as_json: bool
) -> None:
    """Show how many messages are not due yet, and when the next of them are."""
    found = api.get(name, "scheduled", topic=topic, partition=partition, max_records=most)
    if as_json:
        show_json(found)
        return
    columns = ("topic", "partition", "deferred", "next due", "unread")
    rows = [
        [row["topic"], row["partition"], row["deferred"], _moment(row["next_due_ms"]), row["unread"]]
        for row in found["partitions"]
    ]
    show(table(*columns, rows=rows, numbers=("partition", "deferred", "unread")))
    if found["messages"]:
        coming = [
            [_moment(row["due_ms"]), row["topic"], row["partition"], row["offset"]]
            for row in found["messages"]
        ]
        show("", table("due", "topic", "partition", "offset", rows=coming, numbers=("partition", "offset")))


def _moment(at_ms: int | None) -> str | None:
    """Local time; far beyond what a calendar has, the number itself."""
    if at_ms is None:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError):
        return f"{at_ms} ms"


def shortened(value: object) -> str:
    """A value in one line of a table."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.replace("\n", " ")
    return text if len(text) <= VALUE_WIDTH else text[: VALUE_WIDTH - 1] + "…"


@queues.command(
    epilog=examples("penstock queues purge mail", "penstock queues purge mail --topic outbox --yes")
)
@click.argument("name")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Only of this one; repeatable.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@asks(QueuesApi)
def purge(api: QueuesApi, name: str, topics: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Let everything that is in a queue now be done. Messages stay in their topics, for all others."""
    if not yes:
        confirm(f"drop everything that is to do in {name}?")
    done = api.post(name, "purge", topics=list(topics) or None)
    if as_json:
        show_json(done)
    else:
        count = sum(row["purged"] or 0 for row in done["partitions"])
        note(f"purged {counted(count, 'message')} of {name}")


@queues.command(epilog=examples("penstock queues delete mail", "penstock queues delete mail --yes"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@asks(QueuesApi)
def delete(api: QueuesApi, names: tuple[str, ...], yes: bool) -> None:
    """Forget queues and what is done in them. Topics and messages stay."""
    if not yes:
        confirm(f"forget what is done in {', '.join(names)}?")
    for name in names:
        api.delete(name)
        note(f"deleted {name}")
