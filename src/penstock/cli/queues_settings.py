"""The settings of queues: the options of create and alter, and `penstock queues alter`."""

from typing import Any

import click

from penstock.cli.connection import Command, json_option, key_values
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, QueuesApi, asks
from penstock.cli.output import note, show_json
from penstock.cli.parameters import UNITS_MS, Duration

DELAY_MS_MAX = 7 * UNITS_MS["d"]
"""As the group configs have it."""

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
    """With the names of the HTTP API; None where an option was not given."""
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


@click.command(
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
