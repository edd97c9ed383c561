"""`penstock queues list` and `describe`: the messages of queues, and the consumers that work on them."""

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, QueuesApi, asks
from penstock.cli.output import console, facts_table, note, show, show_facts, show_json, table
from penstock.cli.stopping import stop_on_signals
from penstock.cli.watching import clear, repeated, watch_options


@click.command(
    "list",
    epilog=examples(
        "penstock queues list",
        "penstock queues list --watch --interval 5",
        "penstock queues list --json",
    ),
)
@watch_options
@json_option
@asks(QueuesApi)
def list_queues(api: QueuesApi, watch: bool, interval: float, as_json: bool) -> None:
    """List queues: how many messages and consumers they have, and how many messages are settled per second.

    With --watch there is a further rate: how many messages per second come in.
    """
    if not watch:
        show_facts(_rounded(api.get()["queues"], as_json), as_json, *_COLUMNS, nothing="no queues")
        return
    with stop_on_signals() as stop:
        out = console()
        shown = repeated(lambda: (time.monotonic(), api.get()["queues"]), stop, interval)
        for number, rows in enumerate(_with_incoming(shown)):
            if as_json:
                click.echo(json.dumps(rows))
                continue
            clear(out, is_first=number == 0)
            if rows:
                out.print(facts_table(_rounded(rows, False), *_COLUMNS, "in/s=incoming"))
            else:
                note("no queues")


_COLUMNS = ("queue", "topics", "partitions", "undone", "leased", "consumers", "done/s=rate")


def _with_incoming(polls: Iterator[tuple[float, list[Facts]]]) -> Iterator[list[Facts]]:
    """Adds how many messages came in per second since the poll before; None in the first one."""
    before: dict[str, int | None] = {}
    before_at = 0.0
    for at, rows in polls:
        seconds = max(0.001, at - before_at)
        for row in rows:
            end, last = row["end_offset"], before.get(row["queue"])
            row["incoming"] = None if end is None or last is None else round(max(0, end - last) / seconds, 3)
        before, before_at = {row["queue"]: row["end_offset"] for row in rows}, at
        yield rows


def _rounded(rows: Sequence[Facts], as_json: bool) -> list[Facts]:
    """Rates for people."""
    if as_json:
        return list(rows)
    rates = ("rate", "incoming")
    return [{**row, **{name: per_second(row[name]) for name in rates if name in row}} for row in rows]


def per_second(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.1f}"


@click.command(epilog=examples("penstock queues describe mail", "penstock queues describe mail --json"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@asks(QueuesApi)
def describe(api: QueuesApi, names: tuple[str, ...], as_json: bool) -> None:
    """Show the consumers and settings of queues, and the available, leased and waiting messages of every partition.

    Consumers over Kafka and WebSocket are shown while they are connected; those over HTTP while they hold leases, and
    for a minute after their last request.
    """
    found = [api.get(name) for name in names]
    if as_json:
        show_json(found)
        return
    for queue in found:
        _show_queue(queue)


def _show_queue(queue: Facts) -> None:
    counts = ("undone", "available", "leased", "deferred", "waiting", "dying")
    columns = ("topic", "partition", "leader", "start=start_offset", "end=end_offset", *counts)
    show(queue["queue"], "", facts_table(queue["partitions"], *columns))
    for row in queue["partitions"]:
        if row["holder"]:
            show(f"{row['topic']}-{row['partition']} is with {row['holder']}")
    for warning in queue["warnings"]:
        show(f"warning: {warning}")
    show_consumers(queue)
    show("", table("setting", "value", rows=queue["settings"].items()), "")


def show_consumers(queue: Facts) -> None:
    """A table of its consumers, under an empty line."""
    consumers: Sequence[Facts] = queue["consumers"]
    if not consumers:
        show("", "no consumers")
        return
    rows = [
        {**one, "since": moment(one["since_ms"], "seconds"), "rate": per_second(one["rate"])}
        for one in consumers
    ]
    columns = ("consumer=name", "address", "interface", "since", "leases", "done/s=rate", "partitions")
    show("", facts_table(rows, *columns))
    if queue["more_consumers"]:
        show(f"there are more consumers: these {len(consumers):,} have worked on it longest")


def moment(at_ms: int | None, precision: str = "milliseconds") -> str | None:
    """Local time; the number itself if no calendar has that year."""
    if at_ms is None:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec=precision)
    except (OverflowError, ValueError):
        return f"{at_ms} ms"
