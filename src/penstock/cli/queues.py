"""`penstock queues`: create, peek, scheduled, purge, delete, alter. `queues_show` has list and describe, `queues_work`
receive and work, `queues_reset` reset, `queues_dead` dead-letters."""

import json
from typing import Any

import click

from penstock.cli.common_options import Command, json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, QueuesApi, asks
from penstock.cli.key_values import key_values
from penstock.cli.output import counted, facts_table, note, show, show_facts, show_json
from penstock.cli.parameters import UNITS_MS, Duration
from penstock.cli.queues_dead import dead_letters
from penstock.cli.queues_reset import reset
from penstock.cli.queues_show import describe, list_queues, moment
from penstock.cli.queues_work import receive, work
from penstock.cli.topics import confirm

VALUE_WIDTH = 60
"""Characters of a value in a table: --json shows all of it."""


DELAY_MS_MAX = 7 * UNITS_MS["d"]
"""The longest delay that the group configs allow."""

_OPTIONS = (
    click.option(
        "--order", type=click.Choice(["none", "key"]), help="key: one message of a key at a time, in order."
    ),
    click.option(
        "--lease",
        type=Duration(1_000, 3_600_000),
        metavar="TIME",
        help="How long a consumer may work on a message (30s): 1s to 1h.",
    ),
    click.option(
        "--limit",
        type=click.IntRange(0, 255),
        help="Deliveries before a message is a dead letter (5); 0: no limit.",
    ),
    click.option(
        "--dead-letters", metavar="TOPIC", help="The topic of dead letters (the topic with .dlq appended)."
    ),
    click.option("--no-dead-letters", is_flag=True, help="Drop messages instead of dead-lettering them."),
    click.option(
        "--retry-delay",
        type=Duration(most_ms=DELAY_MS_MAX),
        metavar="TIME",
        help="The delay before a retry; doubled for each further one.",
    ),
    click.option(
        "--retry-delay-max",
        type=Duration(most_ms=DELAY_MS_MAX),
        metavar="TIME",
        help="The longest retry delay (1m): up to 7d.",
    ),
    click.option(
        "-c",
        "--config",
        "configs",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any group config, as often as needed.",
    ),
)


def takes_settings(command: Command) -> Command:
    """Gives a command the options that `settings_of` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings_of(options: Facts) -> Facts:
    """The options by the names of the HTTP API; None where an option was not given."""
    if options["dead_letters"] and options["no_dead_letters"]:
        raise click.UsageError("give --dead-letters TOPIC or --no-dead-letters")
    return {
        "order": options["order"],
        "lease_ms": options["lease"],
        "delivery_limit": options["limit"],
        "dead_letter_topic": options["dead_letters"],
        "dead_letters": False if options["no_dead_letters"] else None,
        "retry_backoff_ms": options["retry_delay"],
        "retry_backoff_max_ms": options["retry_delay_max"],
        "configs": key_values(options["configs"]),
    }


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

    A queue delivers each message of its topics to one consumer at a time, until one has acknowledged it.
    """


for _command in (list_queues, describe, receive, work, reset, dead_letters):
    queues.add_command(_command)


@queues.command(
    epilog=examples(
        "penstock queues create mail",
        "penstock queues create mail --topic outbox --lease 60s --limit 3 --dead-letters undeliverable",
        "penstock queues create accounts --partitions 6 --order key --retry-delay 1s",
        "penstock queues create payments --point-to-point",
    )
)
@click.argument("name")
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    help="Its topic, created if need be; NAME if left out.",
)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Of a topic that is created.")
@click.option("-r", "--replication-factor", type=click.IntRange(min=1),
              help="Of a topic that is created.")  # fmt: skip
@click.option("--point-to-point", is_flag=True,
              help="One partition, one producer and one consumer at a time: strict order.")  # fmt: skip
@click.option("--dedup", "dedup_window_ms", type=Duration(), metavar="TIME",
              help="How long the topic remembers message ids (not at all).")  # fmt: skip
@click.option("--producer", "producers", metavar="USER", multiple=True,
              help="May publish to the topic: an access rule. Repeatable.")  # fmt: skip
@click.option("--consumer", "consumers", metavar="USER", multiple=True,
              help="May work on the queue: access rules. Repeatable.")  # fmt: skip
@takes_settings
@click.option(
    "--only-new", is_flag=True, help="Begin with new messages; skip those that the topic already has."
)
@json_option
@asks(QueuesApi)
def create(api: QueuesApi, name: str, as_json: bool, **options: Any) -> None:
    """Create a queue, and its topic if there is none.

    A TIME is a number with ms, s, m, h or d; without a unit it is seconds.
    """
    topic = ("topic", "partitions", "replication_factor", "point_to_point", "dedup_window_ms")
    made = api.post(
        queue=name,
        start="latest" if options["only_new"] else "earliest",
        **{option: options[option] for option in topic},
        producers=list(options["producers"]) or None,
        consumers=list(options["consumers"]) or None,
        **settings_of(options),
    )
    if as_json:
        show_json(made)
    else:
        topics = sorted({row["topic"] for row in made["partitions"]})
        note(f"created {name} on {', '.join(topics)} ({counted(len(made['partitions']), 'partition')})")
        for warning in made["warnings"]:
            note(f"warning: {warning}")


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
@click.option("-n", "--max", "max_records", type=click.IntRange(1, 1000), default=10, show_default=True)
@json_option
@asks(QueuesApi)
def peek(api: QueuesApi, name: str, as_json: bool, **where: Any) -> None:
    """Look at messages that are not done, without receiving them."""
    found = api.get(name, "peek", **where)["messages"]
    rows = found if as_json else [{**row, "value": shortened(row["value"])} for row in found]
    columns = ("topic", "partition", "offset", "state", "deliveries", "consumer", "key", "value")
    show_facts(rows, as_json, *columns, nothing="nothing to do")


@queues.command(
    epilog=examples("penstock queues scheduled mail", "penstock queues scheduled mail --max 100 --json")
)
@click.argument("name")
@click.option("-t", "--topic", metavar="TOPIC", help="Only of this topic.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only of this partition of it.")
@click.option("-n", "--max", "max_records", type=click.IntRange(1, 1000), default=10, show_default=True)
@json_option
@asks(QueuesApi)
def scheduled(api: QueuesApi, name: str, as_json: bool, **where: Any) -> None:
    """Show how many messages are not due yet, and when the next of them are."""
    found = api.get(name, "scheduled", **where)
    if as_json:
        show_json(found)
        return
    partitions = [{**row, "next_due_ms": moment(row["next_due_ms"])} for row in found["partitions"]]
    show(facts_table(partitions, "topic", "partition", "deferred", "next due=next_due_ms", "unread"))
    if found["messages"]:
        coming = [{**row, "due_ms": moment(row["due_ms"])} for row in found["messages"]]
        show("", facts_table(coming, "due=due_ms", "topic", "partition", "offset"))


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
    """Mark all messages of a queue as done. They stay in their topics, for other queues and groups."""
    if not yes:
        confirm(f"mark all messages of {name} as done?")
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
    """Delete queues and their progress. Topics and messages stay."""
    if not yes:
        confirm(f"delete the progress of {', '.join(names)}?")
    for name in names:
        api.delete(name)
        note(f"deleted {name}")


@queues.command(
    epilog=examples(
        "penstock queues alter mail --lease 2m --limit 10",
        "penstock queues alter mail --dead-letters undeliverable --retry-delay 5s",
        "penstock queues alter mail --unset share.delivery.count.limit",
    )
)
@click.argument("name")
@takes_settings
@click.option(
    "--exclusive/--shared", default=None, help="One consumer at a time, in strict order; or several."
)
@click.option("--unset", "removals", multiple=True, metavar="NAME",
              help="Return a group config to its default.")  # fmt: skip
@json_option
@asks(QueuesApi)
def alter(
    api: QueuesApi,
    name: str,
    exclusive: bool | None,
    removals: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Change settings of a queue while it is in use. Settings that are not named stay.

    A TIME is a number with ms, s, m, h or d; without a unit it is seconds.
    """
    given = settings_of(options) | {"exclusive": exclusive}
    configs: Facts = given.pop("configs") | dict.fromkeys(removals)
    if given["dead_letter_topic"]:
        given["dead_letters"] = True
    changes = {setting: value for setting, value in given.items() if value is not None}
    if configs:
        changes["configs"] = configs
    if not changes:
        raise click.UsageError("nothing to change: give one of the settings, or --unset")
    changed = api.patch(name, **changes)
    if as_json:
        show_json(changed)
    else:
        note(f"changed {name}")
