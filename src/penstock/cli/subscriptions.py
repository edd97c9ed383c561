"""`penstock subscriptions`: list, describe and delete."""

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, SubscriptionsApi, asks
from penstock.cli.output import facts_table, note, show, show_facts, show_json
from penstock.cli.parameters import in_words
from penstock.cli.queues_show import moment
from penstock.cli.topics import confirm


@click.group(
    epilog=examples(
        "penstock subscriptions list",
        "penstock subscriptions describe dashboard",
        "penstock subscriptions delete dashboard",
    )
)
def subscriptions() -> None:
    """List, describe and delete subscriptions.

    A subscription keeps the position of a subscriber that messages are pushed to over WebSocket.
    """


@subscriptions.command(
    "list", epilog=examples("penstock subscriptions list", "penstock subscriptions list --json")
)
@json_option
@asks(SubscriptionsApi)
def list_subscriptions(api: SubscriptionsApi, as_json: bool) -> None:
    """List subscriptions, whether a subscriber is attached, and how far behind they are."""
    found = api.get()
    if found["unanswered"]:
        nodes = ", ".join(map(str, found["unanswered"]))
        note(f"subscriptions may be missing: no answer from node {nodes}")
    rows = found["subscriptions"] if as_json else [_for_people(one) for one in found["subscriptions"]]
    columns = ("subscription", "topics", "attached", "since", "ttl left=ttl_left", "lag")
    show_facts(rows, as_json, *columns, nothing="no subscriptions")


def _for_people(one: Facts) -> Facts:
    left = one["ttl_left_ms"]
    return {
        **one,
        "since": moment(one["since_ms"], "seconds"),
        "ttl_left": None if left is None else in_words(max(1, left // 1000) * 1000),
    }


@subscriptions.command(
    epilog=examples(
        "penstock subscriptions describe dashboard", "penstock subscriptions describe dashboard --json"
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@asks(SubscriptionsApi)
def describe(api: SubscriptionsApi, names: tuple[str, ...], as_json: bool) -> None:
    """Show the position and the lag of subscriptions on every partition."""
    found = [api.get(name) for name in names]
    if as_json:
        show_json(found)
        return
    for one in map(_for_people, found):
        state = "a subscriber is attached" if one["attached"] else "no subscriber"
        left = f", deleted in {one['ttl_left']} if none comes" if one["ttl_left"] else ""
        show(
            f"{one['subscription']}  ({state} since {one['since']}{left}; coordinator: node {one['coordinator']})",
            "",
        )
        columns = ("topic", "partition", "offset", "end=latest_offset", "unacked", "lag")
        show(facts_table(one["positions"], *columns))
        show(f"{one['unacked']:,} pushed and not acked, {one['deferred']:,} not due yet", "")


@subscriptions.command(
    epilog=examples(
        "penstock subscriptions delete dashboard", "penstock subscriptions delete dashboard --force --yes"
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Also while a subscriber is attached: its connection is closed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@asks(SubscriptionsApi)
def delete(api: SubscriptionsApi, names: tuple[str, ...], force: bool, yes: bool) -> None:
    """Delete subscriptions and their positions. Messages stay."""
    if not yes:
        confirm(f"delete the positions of {', '.join(names)}?")
    for name in names:
        api.delete(name, force="true" if force else None)
        note(f"deleted {name}")
