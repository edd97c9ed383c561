"""`penstock bench queue`: a topic as a work queue."""

from collections.abc import Sequence
from typing import Any, get_args

import click
import confluent_kafka

from penstock.cli.bench.options import (
    PACE_OPTIONS,
    PARTITIONS_OPTION,
    PLACE_OPTIONS,
    ROUNDS_OPTION,
    SIZE_OPTION,
    options,
)
from penstock.cli.bench.queue_figures import QueueRun, medians, queue_json, queue_table
from penstock.cli.bench.queue_load import Via
from penstock.cli.bench.queue_runner import QueueShape, run_queue
from penstock.cli.bench.runner import Target
from penstock.cli.bench.session import broker_for, progress
from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.output import note, show, show_json
from penstock.cli.problem import Problem

WITH_HTTP = ("--http", "127.0.0.1:0")

QUEUE_OPTIONS = [
    click.option(
        "-n", "--messages", type=click.IntRange(min=2), default=50_000, show_default=True, help="How many."
    ),
    SIZE_OPTION,
    PARTITIONS_OPTION,
    click.option(
        "-c",
        "--consumers",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        help="Processes that work the queue off together.",
    ),
    click.option(
        "--prefetch",
        type=click.IntRange(1, 100_000),
        default=1000,
        show_default=True,
        help="The most messages that a consumer of Penstock's client has at once.",
    ),
    click.option(
        "--through",
        type=click.Choice(["client", "confluent", "both"]),
        default="both",
        show_default=True,
        help="Penstock's own client, or confluent-kafka's producer and share consumer.",
    ),
]


@click.command(
    epilog=examples(
        "penstock bench queue",
        "penstock bench queue --consumers 4 --size 1024 --partitions 4",
        "penstock bench queue --through client --rate 5000 --seconds 30 --json",
        "penstock bench queue --rounds 5 --data-dir /srv/disk-to-measure",
    )
)
@options(QUEUE_OPTIONS, PACE_OPTIONS, PLACE_OPTIONS, [ROUNDS_OPTION, json_option])
def queue(
    *,
    through: str,
    bootstrap: str | None,
    broker_pid: int | None,
    memory: bool,
    data_dir: str | None,
    round_count: int,
    as_json: bool,
    **load: Any,
) -> None:
    """Measure a work queue: publishing, working off, latency.

    Every message is confirmed when it is published and acknowledged by itself when it is worked off. Latency is from
    publishing to delivery, at a steady rate.
    """
    shape = QueueShape(**load)
    kinds = _kinds(through)
    with broker_for(bootstrap, broker_pid, memory, data_dir, WITH_HTTP) as target:
        runs = _rounds(target, shape, kinds, round_count)
    if as_json:
        show_json(queue_json(shape, runs))
    else:
        show(queue_table(medians(runs)))


def _kinds(through: str) -> list[Via]:
    """Both, where this confluent-kafka has share consumers: older ones have none."""
    asked: list[Via] = [via for via in get_args(Via) if through in (via, "both")]
    if "confluent" in asked and not hasattr(confluent_kafka, "ShareConsumer"):
        if through == "confluent":
            raise Problem("this confluent-kafka has no share consumer", "pip install -U confluent-kafka")
        note("confluent-kafka is left out: this version has no share consumer")
        asked.remove("confluent")
    return asked


def _rounds(target: Target, shape: QueueShape, kinds: Sequence[Via], count: int) -> list[QueueRun]:
    """Alternates between the clients, so that whatever else the machine does hits both alike."""
    found: list[QueueRun] = []
    plan = [via for _ in range(count) for via in kinds]
    with progress(len(plan)) as step:
        for number, via in enumerate(plan, 1):
            found.append(run_queue(target, shape, via, step(f"{via}: run {number} of {len(plan)}")))
    return found
