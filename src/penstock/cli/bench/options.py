"""The options that commands of `penstock bench` share."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from penstock.cli.bench.runner import Where
from penstock.cli.common_options import Command, hand_over

COUNT = click.IntRange(min=1)
WITH_HTTP = ("--http", "127.0.0.1:0")
"""Flags of a broker for clients that need its HTTP port."""


class Counts(click.ParamType[tuple[int, ...]]):
    """Counts with commas between them."""

    name = "counts"

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            counts = tuple(int(part) for part in value.split(","))
        except ValueError:
            counts = ()
        if not counts or not all(1 <= count <= self._most for count in counts):
            self.fail(
                f"{value!r}: expected counts from 1 to {self._most:,}, as in 1,{self._most // 2}", param, ctx
            )
        return counts


# fmt: off
PLACE_OPTIONS = [
    click.option("-b", "--bootstrap", metavar="HOST:PORT", help="A running broker."),
    click.option("--broker-pid", type=int, help="Its process, when it cannot be found by its port."),
    click.option("--memory", is_flag=True, help="Let the broker started here keep everything in memory."),
    click.option("--data-dir", metavar="DIR", help="Where the broker started here has its folder."),
]
PLACE = hand_over("where", Where, PLACE_OPTIONS)
BROKER_OPTIONS = [
    PLACE,
    click.option("--compare", metavar="HOST:PORT", help="Run the same load on this broker too, in turns."),
    click.option("--rounds", "round_count", type=COUNT, help="Runs per broker.  [default: 1; compared: 5]"),
]
ROUNDS_OPTION = click.option("--rounds", "round_count", type=COUNT, default=1, show_default=True,
                             help="Runs of each; figures are medians.")
SHAPE_OPTIONS = [
    click.option("-s", "--size", "size_bytes", type=click.IntRange(min=8), default=100, show_default=True,
                 help="Bytes per message."),
    click.option("-p", "--partitions", type=COUNT, default=1, show_default=True),
]
MESSAGES_OPTION = click.option("-n", "--messages", type=COUNT,
                               help="How many.  [default: 200 MB worth, at most a million]")
PRODUCER_OPTIONS = [
    *SHAPE_OPTIONS,
    click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
                 default="none", show_default=True),
    click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True),
    click.option("--linger", "linger_ms", type=click.FloatRange(min=0),
                 help="Milliseconds that a batch waits.  [default: 5; latency 0]"),
    click.option("--idempotent", is_flag=True, help="With an idempotent producer."),
    click.option("-X", "settings", multiple=True, metavar="NAME=VALUE",
                 help="A librdkafka setting, as often as needed."),
]
SECONDS_OPTION = click.option("-t", "--seconds", type=COUNT, default=10, show_default=True,
                              help="How long (latency).")
PACE_OPTIONS = [
    click.option("-r", "--rate", "rate_per_second", type=COUNT, default=1000, show_default=True,
                 help="Messages per second (latency)."),
    SECONDS_OPTION,
]
# fmt: on


def options(*lists: Sequence[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    """Several lists of options as one decorator, in the order that help shows them."""

    def decorate(command: Any) -> Any:
        for option in reversed([option for options in lists for option in options]):
            command = option(command)
        return command

    return decorate
