"""`penstock bench push`: one topic, many subscribers over WebSocket."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from penstock.cli.bench.options import (
    PARTITIONS_OPTION,
    PLACE_OPTIONS,
    ROUNDS_OPTION,
    SIZE_OPTION,
    options,
)
from penstock.cli.bench.push_figures import PushRun, medians, push_json, push_table
from penstock.cli.bench.push_runner import PushShape, broker_flags, run_push
from penstock.cli.bench.runner import Target
from penstock.cli.bench.session import broker_for, progress
from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.output import show, show_json

DEFAULT_SUBSCRIBERS = (1, 100, 1000)
SUBSCRIBERS_MOST = 20_000


def _counts(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Counts with commas between them."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= SUBSCRIBERS_MOST for count in counts):
        raise click.BadParameter(f"{text!r}: expected counts from 1 to {SUBSCRIBERS_MOST:,}, as in 1,100")
    return counts


PUSH_OPTIONS = [
    click.option(
        "-c",
        "--subscribers",
        metavar="N,N,...",
        callback=_counts,
        default=",".join(map(str, DEFAULT_SUBSCRIBERS)),
        show_default=True,
        help="How many; each count is a run of its own.",
    ),
    click.option(
        "-n",
        "--messages",
        type=click.IntRange(min=1),
        help="Of the burst.  [default: 200,000 deliveries' worth, at most 50,000]",
    ),
    SIZE_OPTION,
    PARTITIONS_OPTION,
    click.option(
        "-r",
        "--rate",
        "rate_per_second",
        type=click.IntRange(min=1),
        help="Messages per second (latency).  [default: 2,000 deliveries' worth, at most 500]",
    ),
    click.option(
        "-t",
        "--seconds",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        help="How long (latency).",
    ),
    click.option(
        "--credit",
        type=click.IntRange(1, 100_000),
        default=1000,
        show_default=True,
        help="The most messages that a subscriber has unacknowledged.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 64),
        help="That share the subscribers.  [default: one per core, at most 4]",
    ),
]


@click.command(
    epilog=examples(
        "penstock bench push",
        "penstock bench push --subscribers 1,10,100 --size 1024",
        "penstock bench push --subscribers 1000 --rate 20 --seconds 30 --json",
        "penstock bench push --rounds 5 --memory",
    )
)
@options(PUSH_OPTIONS, PLACE_OPTIONS, [ROUNDS_OPTION, json_option])
def push(
    *,
    subscribers: tuple[int, ...],
    bootstrap: str | None,
    broker_pid: int | None,
    memory: bool,
    data_dir: str | None,
    round_count: int,
    as_json: bool,
    **load: Any,
) -> None:
    """Measure push to many subscribers: deliveries, latency.

    Each message goes to each subscriber over its own WebSocket, and is acknowledged. First comes a burst, for
    deliveries per second; then a steady rate, for the time from publishing to arrival. A broker that runs already
    must have room for the connections: limits.max_http_connections, and eight files for each.
    """
    shape = PushShape(**load)
    flags = broker_flags(max(subscribers)) if bootstrap is None else ()
    with broker_for(bootstrap, broker_pid, memory, data_dir, flags) as target:
        runs = push_rounds(target, shape, subscribers, round_count)
    if as_json:
        show_json(push_json({"subscribers": subscribers, **msgspec.to_builtins(shape)}, runs))
    else:
        show(push_table(medians(runs)))


def push_rounds(target: Target, shape: PushShape, subscribers: Sequence[int], count: int) -> list[PushRun]:
    plan = [number for _ in range(count) for number in subscribers]
    found: list[PushRun] = []
    with progress(len(plan)) as step:
        for index, number in enumerate(plan, 1):
            label = f"{number:,} subscribers: run {index} of {len(plan)}"
            found.append(run_push(target, shape, number, step(label)))
    return found
