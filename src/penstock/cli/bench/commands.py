"""`penstock bench`: produce, consume, latency, or all of them; queues and push have files of their own."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from penstock.cli.bench.figures import Comparison, Run, compare
from penstock.cli.bench.load import Kind
from penstock.cli.bench.options import BROKER_OPTIONS, LOAD_OPTIONS, PACE_OPTIONS, options
from penstock.cli.bench.push_command import push
from penstock.cli.bench.queue_command import queue
from penstock.cli.bench.report import (
    comparison_json,
    comparison_table,
    latency_table,
    run_json,
    throughput_table,
)
from penstock.cli.bench.runner import Shape, Target
from penstock.cli.bench.session import broker_for, outside_broker, rounds
from penstock.cli.connection import json_option, key_values
from penstock.cli.help import examples
from penstock.cli.output import show, show_json

DEFAULT_BYTES = 200_000_000
DEFAULT_MESSAGES_MOST = 1_000_000
DEFAULT_COMPARE_ROUNDS = 5


@click.group(
    epilog=examples(
        "penstock bench all",
        "penstock bench produce --size 1024 --partitions 6 --compression lz4 --acks 1",
        "penstock bench latency --rate 1000 --seconds 30",
        "penstock bench queue --consumers 4",
        "penstock bench push --subscribers 1,100",
        "penstock bench produce --compare 127.0.0.1:19092        # the same load on another broker",
    )
)
def bench() -> None:
    """Measure throughput, latency, CPU per message and memory.

    The load comes from librdkafka in processes of its own. Without --bootstrap a broker is started for the
    occasion, with its data in a temporary folder.
    """


@bench.command(
    epilog=examples("penstock bench produce", "penstock bench produce --size 1024 --acks 1 --json")
)
@options(LOAD_OPTIONS, BROKER_OPTIONS, [json_option])
def produce(**given: Any) -> None:
    """Measure how fast messages are taken in."""
    _bench(["produce"], **given)


@bench.command(epilog=examples("penstock bench consume", "penstock bench consume --partitions 6"))
@options(LOAD_OPTIONS, BROKER_OPTIONS, [json_option])
def consume(**given: Any) -> None:
    """Measure how fast messages are handed out (after producing them, which is not counted)."""
    _bench(["consume"], **given)


@bench.command(epilog=examples("penstock bench latency", "penstock bench latency --rate 5000 --acks 1"))
@options(LOAD_OPTIONS[1:], PACE_OPTIONS, BROKER_OPTIONS, [json_option])
def latency(**given: Any) -> None:
    """Measure how long messages take at a steady rate: until acknowledged, and until delivered."""
    _bench(["latency"], **given)


@bench.command("all", epilog=examples("penstock bench all", "penstock bench all --compare 127.0.0.1:19092"))
@options(LOAD_OPTIONS, PACE_OPTIONS, BROKER_OPTIONS, [json_option])
def everything(**given: Any) -> None:
    """Measure throughput of both directions, and latency."""
    _bench(["produce", "consume", "latency"], **given)


bench.add_command(queue)
bench.add_command(push)


def _bench(
    kinds: list[Kind],
    *,
    bootstrap: str | None,
    broker_pid: int | None,
    memory: bool,
    data_dir: str | None,
    compare: str | None,
    round_count: int | None,
    as_json: bool,
    **load: Any,
) -> None:
    shape = _shape(**load)
    count = round_count or (DEFAULT_COMPARE_ROUNDS if compare else 1)
    with broker_for(bootstrap, broker_pid, memory, data_dir) as ours:
        targets = [ours] + ([outside_broker(compare)] if compare else [])
        runs = [
            run
            for together in (["produce", "consume"], ["latency"])
            if (asked := [kind for kind in kinds if kind in together])
            for run in rounds(asked, targets, _for_kind(shape, asked[0], load), count)
        ]
    compared = _compare(kinds, runs, targets) if compare else []
    if as_json:
        show_json(_as_json(shape, runs, compared))
    else:
        _show(runs, compared, targets)


def _shape(
    messages: int | None = None, linger_ms: float | None = None, settings: tuple[str, ...] = (), **rest: Any
) -> Shape:
    size = rest["size_bytes"]
    default = max(1, min(DEFAULT_MESSAGES_MOST, DEFAULT_BYTES // size))
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
    show(throughput_table(runs))
    if any(run.kind == "latency" for run in runs):
        show("", latency_table(runs))
    if compared:
        show("", comparison_table(compared, targets[0].name, targets[1].name))
        show("a ratio above 1 is better for the first broker")


def _as_json(shape: Shape, runs: Sequence[Run], compared: Sequence[tuple[str, Comparison]]) -> dict[str, Any]:
    return {
        "load": msgspec.to_builtins(shape),
        "runs": [run_json(run) for run in runs],
        "comparisons": [comparison_json(load, each) for load, each in compared],
    }
