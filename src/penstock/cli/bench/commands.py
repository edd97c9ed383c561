"""`penstock bench`: throughput and latency of topics, queues and push."""

from collections.abc import Sequence
from typing import Any, get_args

import click
import confluent_kafka
import msgspec
from rich.table import Table

from penstock.cli.bench.clique_commands import clique
from penstock.cli.bench.figures import (
    PUSH_COLUMNS,
    QUEUE_COLUMNS,
    THROUGHPUT_COLUMNS,
    Comparison,
    PushRun,
    QueueRun,
    Run,
    compare,
    comparison_json,
    comparison_table,
    latency_table,
    medians,
    run_json,
    run_table,
)
from penstock.cli.bench.load import Kind, Via
from penstock.cli.bench.options import (
    BROKER_OPTIONS,
    COUNT,
    MESSAGES_OPTION,
    PACE_OPTIONS,
    PLACE,
    PRODUCER_OPTIONS,
    ROUNDS_OPTION,
    SECONDS_OPTION,
    SHAPE_OPTIONS,
    WITH_HTTP,
    Counts,
    options,
)
from penstock.cli.bench.push_runner import PushShape, broker_flags, run_push
from penstock.cli.bench.queue_runner import QueueShape, run_queue
from penstock.cli.bench.runner import Shape, Target, Where, broker_for, in_turns, one_round, outside_broker
from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.key_values import key_values
from penstock.cli.output import note, show, show_json
from penstock.cli.problem import Problem

DEFAULT_BYTES = 200_000_000
DEFAULT_MESSAGES_MOST = 1_000_000
DEFAULT_COMPARE_ROUNDS = 5
DEFAULT_SUBSCRIBERS = (1, 100, 1000)
SUBSCRIBERS_MOST = 20_000


@click.group(
    epilog=examples(
        "penstock bench all",
        "penstock bench produce --size 1024 --partitions 6 --compression lz4 --acks 1",
        "penstock bench latency --rate 1000 --seconds 30",
        "penstock bench queue --consumers 4",
        "penstock bench push --subscribers 1,100",
        "penstock bench clique --workers 1,4",
        "penstock bench produce --compare 127.0.0.1:19092        # the same load on another broker",
    )
)
def bench() -> None:
    """Measure throughput, latency, CPU per message and memory.

    The load comes from librdkafka in processes of its own. Without --bootstrap a broker is started for the
    occasion, with its data in a temporary folder.
    """


bench.add_command(clique)


# --- topics


@bench.command(
    epilog=examples("penstock bench produce", "penstock bench produce --size 1024 --acks 1 --json")
)
@options([MESSAGES_OPTION], PRODUCER_OPTIONS, BROKER_OPTIONS, [json_option])
def produce(**given: Any) -> None:
    """Measure how fast messages are produced."""
    _bench(["produce"], **given)


@bench.command(epilog=examples("penstock bench consume", "penstock bench consume --partitions 6"))
@options([MESSAGES_OPTION], PRODUCER_OPTIONS, BROKER_OPTIONS, [json_option])
def consume(**given: Any) -> None:
    """Measure how fast messages are consumed (after producing them, which is not counted)."""
    _bench(["consume"], **given)


@bench.command(epilog=examples("penstock bench latency", "penstock bench latency --rate 5000 --acks 1"))
@options(PRODUCER_OPTIONS, PACE_OPTIONS, BROKER_OPTIONS, [json_option])
def latency(**given: Any) -> None:
    """Measure how long messages take at a steady rate: until acknowledged, and until delivered."""
    _bench(["latency"], **given)


@bench.command("all", epilog=examples("penstock bench all", "penstock bench all --compare 127.0.0.1:19092"))
@options([MESSAGES_OPTION], PRODUCER_OPTIONS, PACE_OPTIONS, BROKER_OPTIONS, [json_option])
def everything(**given: Any) -> None:
    """Measure throughput of both directions, and latency."""
    _bench(["produce", "consume", "latency"], **given)


def _bench(
    kinds: list[Kind],
    *,
    where: Where,
    compare: str | None,
    round_count: int | None,
    as_json: bool,
    **load: Any,
) -> None:
    shape = _shape(**load)
    count = round_count or (DEFAULT_COMPARE_ROUNDS if compare else 1)
    with broker_for(where) as ours:
        targets = [ours] + ([outside_broker(compare)] if compare else [])
        runs = [
            run
            for together in (["produce", "consume"], ["latency"])
            if (asked := [kind for kind in kinds if kind in together])
            for run in _rounds(asked, targets, _for_kind(shape, asked[0], load), count)
        ]
    compared = _compare(kinds, runs, targets) if compare else []
    if as_json:
        show_json(
            {
                "load": msgspec.to_builtins(shape),
                "runs": [run_json(run) for run in runs],
                "comparisons": [comparison_json(load, each) for load, each in compared],
            }
        )
    else:
        _show(runs, compared, targets)


def _rounds(kinds: Sequence[Kind], targets: Sequence[Target], shape: Shape, count: int) -> list[Run]:
    turns = in_turns(
        targets,
        count,
        lambda target, step: one_round(kinds, target, shape, step),
        lambda target: target.name,
        warm_up=count > 1,
    )
    return [run for turn in turns for run in turn]


def _shape(
    messages: int | None = None, linger_ms: float | None = None, settings: tuple[str, ...] = (), **rest: Any
) -> Shape:
    default = max(1, min(DEFAULT_MESSAGES_MOST, DEFAULT_BYTES // rest["size_bytes"]))
    return Shape(
        messages=messages or default,
        linger_ms=5.0 if linger_ms is None else linger_ms,
        settings=key_values(settings),
        **rest,
    )


def _for_kind(shape: Shape, kind: Kind, load: dict[str, Any]) -> Shape:
    """A batch that waits to fill is latency by request: left out unless asked for."""
    if kind == "latency" and load.get("linger_ms") is None:
        return msgspec.structs.replace(shape, linger_ms=0.0)
    return shape


def _compare(
    kinds: list[Kind], runs: Sequence[Run], targets: Sequence[Target]
) -> list[tuple[str, Comparison]]:
    found: list[tuple[str, Comparison]] = []
    for kind in kinds:
        sides = [[run for run in runs if (run.kind, run.target) == (kind, target.name)] for target in targets]
        found += [(kind, comparison) for comparison in compare(*sides)]
    return found


def _show(runs: Sequence[Run], compared: Sequence[tuple[str, Comparison]], targets: Sequence[Target]) -> None:
    show(run_table(runs, THROUGHPUT_COLUMNS))
    if any(run.kind == "latency" for run in runs):
        show("", latency_table(runs))
    if compared:
        show("", comparison_table(compared, targets[0].name, targets[1].name))
        show("a ratio above 1 is better for the first broker")


def _report(load: Any, runs: Sequence[Any], middle: Sequence[Any], drawn: Table, as_json: bool) -> None:
    if as_json:
        parts = {"load": load, "runs": runs, "medians": middle}
        show_json({name: msgspec.to_builtins(part) for name, part in parts.items()})
    else:
        show(drawn)


# --- queues

# fmt: off
QUEUE_OPTIONS = [
    click.option("-n", "--messages", type=click.IntRange(min=2), default=50_000, show_default=True,
                 help="How many."),
    *SHAPE_OPTIONS,
    click.option("-c", "--consumers", type=click.IntRange(1, 64), default=1, show_default=True,
                 help="Processes that consume the queue together."),
    click.option("--prefetch", type=click.IntRange(1, 100_000), default=1000, show_default=True,
                 help="The most messages that a consumer of Penstock's client has at once."),
    click.option("--through", type=click.Choice(["client", "confluent", "both"]), default="both",
                 show_default=True, help="Penstock's own client, or confluent-kafka's producer and share consumer."),
]
# fmt: on


@bench.command(
    epilog=examples(
        "penstock bench queue",
        "penstock bench queue --consumers 4 --size 1024 --partitions 4",
        "penstock bench queue --through client --rate 5000 --seconds 30 --json",
        "penstock bench queue --rounds 5 --data-dir /srv/disk-to-measure",
    )
)
@options(QUEUE_OPTIONS, PACE_OPTIONS, [PLACE, ROUNDS_OPTION, json_option])
def queue(
    *,
    through: str,
    where: Where,
    round_count: int,
    as_json: bool,
    **load: Any,
) -> None:
    """Measure a work queue: publishing, working off, latency.

    Every message is confirmed when it is published and acknowledged by itself when it is worked off. Latency is from
    publishing to delivery, at a steady rate.
    """
    shape = QueueShape(**load)
    kinds = _clients(through)
    with broker_for(where, WITH_HTTP) as target:
        runs: list[QueueRun] = in_turns(
            kinds, round_count, lambda via, step: run_queue(target, shape, via, step), str
        )
    middle = medians(runs, "via")
    _report(shape, runs, middle, run_table(middle, QUEUE_COLUMNS), as_json)


def _clients(through: str) -> list[Via]:
    """Both, where this confluent-kafka has share consumers: older ones have none."""
    asked: list[Via] = [via for via in get_args(Via) if through in (via, "both")]
    if "confluent" in asked and not hasattr(confluent_kafka, "ShareConsumer"):
        if through == "confluent":
            raise Problem("this confluent-kafka has no share consumer", "pip install -U confluent-kafka")
        note("confluent-kafka is left out: this version has no share consumer")
        asked.remove("confluent")
    return asked


# --- push

# fmt: off
PUSH_OPTIONS = [
    click.option("-c", "--subscribers", metavar="N,N,...", type=Counts(SUBSCRIBERS_MOST), show_default=True,
                 default=",".join(map(str, DEFAULT_SUBSCRIBERS)), help="How many; each count is a run of its own."),
    click.option("-n", "--messages", type=COUNT,
                 help="Of the burst.  [default: 200,000 deliveries' worth, at most 50,000]"),
    *SHAPE_OPTIONS,
    click.option("-r", "--rate", "rate_per_second", type=COUNT,
                 help="Messages per second (latency).  [default: 2,000 deliveries' worth, at most 500]"),
    SECONDS_OPTION,
    click.option("--credit", type=click.IntRange(1, 100_000), default=1000, show_default=True,
                 help="The most messages that a subscriber has unacknowledged."),
    click.option("--processes", type=click.IntRange(1, 64),
                 help="That share the subscribers.  [default: one per core, at most 4]"),
]
# fmt: on


@bench.command(
    epilog=examples(
        "penstock bench push",
        "penstock bench push --subscribers 1,10,100 --size 1024",
        "penstock bench push --subscribers 1000 --rate 20 --seconds 30 --json",
        "penstock bench push --rounds 5 --memory",
    )
)
@options(PUSH_OPTIONS, [PLACE, ROUNDS_OPTION, json_option])
def push(
    *,
    subscribers: tuple[int, ...],
    where: Where,
    round_count: int,
    as_json: bool,
    **load: Any,
) -> None:
    """Measure push to many subscribers: deliveries, latency.

    Each message goes to each subscriber over its own WebSocket, and is acknowledged. First comes a burst, for
    deliveries per second; then a steady rate, for the time from publishing to arrival. A broker that runs already
    must allow as many connections: limits.max_http_connections, and eight files for each.
    """
    shape = PushShape(**load)
    flags = broker_flags(max(subscribers)) if where.bootstrap is None else ()
    with broker_for(where, flags) as target:
        runs = push_rounds(target, shape, subscribers, round_count)
    middle = medians(runs, "subscribers")
    load = {"subscribers": subscribers, **msgspec.to_builtins(shape)}
    _report(load, runs, middle, run_table(middle, PUSH_COLUMNS), as_json)


def push_rounds(target: Target, shape: PushShape, subscribers: Sequence[int], count: int) -> list[PushRun]:
    return in_turns(
        subscribers,
        count,
        lambda number, step: run_push(target, shape, number, step),
        lambda number: f"{number:,} subscribers",
    )
