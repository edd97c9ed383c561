"""`penstock clique`: list, and status with the workers of cliques and what they own."""

import json
from collections.abc import Sequence

import click
from rich.console import Console

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import CliquesApi, Facts, asks
from penstock.cli.output import console, facts_table, note, show_facts, show_json
from penstock.cli.parameters import in_words
from penstock.cli.queues_show import moment
from penstock.cli.stopping import stop_on_signals
from penstock.cli.watching import clear, repeated, watch_options


@click.group(
    epilog=examples(
        "penstock clique list",
        "penstock clique status pricing",
        "penstock clique status pricing --watch",
    )
)
def clique() -> None:
    """List cliques, and show their workers.

    A clique is a group of workers in which every key has one owner. Keys belong to 4,096 slots, and slots to workers.
    """


@clique.command("list", epilog=examples("penstock clique list", "penstock clique list --json"))
@json_option
@asks(CliquesApi)
def list_cliques(api: CliquesApi, as_json: bool) -> None:
    """List cliques: how many workers they have, and how many slots are being handed over."""
    found = api.get()["cliques"]
    rows = found if as_json else [_with_moments(one, "changed") for one in found]
    columns = ("clique", "workers=members", "handovers", "epoch", "last change=changed")
    show_facts(rows, as_json, *columns, nothing="no cliques")


@clique.command(
    epilog=examples(
        "penstock clique status",
        "penstock clique status pricing",
        "penstock clique status pricing --watch --interval 5",
        "penstock clique status pricing --json",
    )
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@watch_options
@json_option
@asks(CliquesApi)
def status(api: CliquesApi, names: tuple[str, ...], watch: bool, interval: float, as_json: bool) -> None:
    """Show the workers of cliques: the share of slots that each owns, what it hands over, and the messages that it has.

    Without a NAME it shows all cliques. A worker keeps its slots until its lease has ended; it renews the lease all the
    time, so a lease that gets short belongs to a worker that has crashed or cannot reach the broker.
    """
    with stop_on_signals() as stop:
        out = console()
        shown = repeated(lambda: _described(api, names), stop, interval if watch else None)
        for number, found in enumerate(shown):
            if as_json:
                click.echo(json.dumps(found)) if watch else show_json(found)
                continue
            if watch:
                clear(out, is_first=number == 0)
            _show(out, found)


def _described(api: CliquesApi, names: Sequence[str]) -> list[Facts]:
    return [api.get(name) for name in names or [row["clique"] for row in api.get()["cliques"]]]


def _show(out: Console, cliques: Sequence[Facts]) -> None:
    if not cliques:
        note("no cliques")
    for number, one in enumerate(cliques):
        if number:
            out.print("")
        out.print(_headline(one), markup=False)
        _show_members(out, one["members"])
        _show_streams(out, one["streams"])


def _headline(one: Facts) -> str:
    moving = f"{one['handovers']:,} of {one['slots']:,} slots are being handed over"
    since = moment(one["changed_ms"], "seconds")
    return f"{one['clique']}  (epoch {one['epoch']} since {since}; {moving if one['handovers'] else 'no handovers'})"


def _show_members(out: Console, members: Sequence[Facts]) -> None:
    if not members:
        out.print("\nno workers")
        return
    columns = (
        "worker", "state", "since", "slots", "share=percent", "hands over=revoking", "lease left=lease_left",
        "in flight=held",
    )  # fmt: skip
    out.print("")
    out.print(facts_table(map(_member, members), *columns))


def _member(one: Facts) -> Facts:
    in_flight = [f"{stream} {count:,}" for stream, count in sorted(one["in_flight"].items())]
    return {
        **_with_moments(one, "since"),
        "state": "leaving" if one["leaving"] else "member",
        "revoking": f"{one['revoking']:,}, on_release is late" if one.get("overdue") else one["revoking"],
        "percent": f"{one['share']:.1%}",
        "lease_left": in_words(one["lease_left_ms"] // 1000 * 1000),
        "held": ", ".join(in_flight) or None,
    }


def _show_streams(out: Console, streams: Sequence[Facts]) -> None:
    if not streams:
        return
    counts = ("undone", "available", "leased", "deferred", "dead letters=dead_letters")
    out.print("")
    out.print(facts_table(streams, "stream", "partitions", *counts))


def _with_moments(facts: Facts, name: str) -> Facts:
    return {**facts, name: moment(facts[f"{name}_ms"], "seconds")}
