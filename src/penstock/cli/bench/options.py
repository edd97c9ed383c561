"""The options of `penstock bench`: what the load is, how it is paced, who gets it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

PLACE_OPTIONS = [
    click.option("-b", "--bootstrap", metavar="HOST:PORT", help="A broker that runs already."),
    click.option("--broker-pid", type=int, help="Its process, when it cannot be found by its port."),
    click.option("--memory", is_flag=True, help="Let the broker started here keep everything in memory."),
    click.option("--data-dir", metavar="DIR", help="Where the broker started here has its folder."),
]

BROKER_OPTIONS = [
    *PLACE_OPTIONS,
    click.option("--compare", metavar="HOST:PORT", help="Run the same load on this broker too, in turns."),
    click.option(
        "--rounds",
        "round_count",
        type=click.IntRange(min=1),
        help="Runs per broker.  [default: 1; compared: 5]",
    ),
]

ROUNDS_OPTION = click.option(
    "--rounds",
    "round_count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs of each; figures are medians.",
)

SIZE_OPTION = click.option(
    "-s",
    "--size",
    "size_bytes",
    type=click.IntRange(min=8),
    default=100,
    show_default=True,
    help="Bytes per message.",
)

PARTITIONS_OPTION = click.option(
    "-p", "--partitions", type=click.IntRange(min=1), default=1, show_default=True
)

LOAD_OPTIONS = [
    click.option(
        "-n",
        "--messages",
        type=click.IntRange(min=1),
        help="How many.  [default: 200 MB worth, at most a million]",
    ),
    SIZE_OPTION,
    PARTITIONS_OPTION,
    click.option(
        "-z",
        "--compression",
        type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
        default="none",
        show_default=True,
    ),
    click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True),
    click.option(
        "--linger",
        "linger_ms",
        type=click.FloatRange(min=0),
        help="Milliseconds that a batch waits.  [default: 5; latency 0]",
    ),
    click.option("--idempotent", is_flag=True, help="With an idempotent producer."),
    click.option(
        "-X",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A librdkafka setting, as often as needed.",
    ),
]

PACE_OPTIONS = [
    click.option(
        "-r",
        "--rate",
        "rate_per_second",
        type=click.IntRange(min=1),
        default=1000,
        show_default=True,
        help="Messages per second (latency).",
    ),
    click.option(
        "-t",
        "--seconds",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        help="How long (latency).",
    ),
]


def options(*lists: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Several lists of options as one decorator, in the order that help shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed([option for options in lists for option in options]):
            command = option(command)
        return command

    return decorate
