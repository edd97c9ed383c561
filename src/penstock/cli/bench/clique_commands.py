"""`penstock bench clique`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import click
import msgspec

from penstock.cli.bench import nats_server
from penstock.cli.bench.clique_runner import CliqueShape, Variant, run_clique
from penstock.cli.bench.figures import CLIQUE_COLUMNS, SYSTEMS, CliqueRun, medians, prices, run_table
from penstock.cli.bench.load import System
from penstock.cli.bench.options import COUNT, PLACE, ROUNDS_OPTION, WITH_HTTP, Counts, options
from penstock.cli.bench.runner import Target, Where, broker_for, in_turns
from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.output import counted, note, show, show_json
from penstock.cli.parameters import Duration
from penstock.cli.problem import Problem

DEFAULT_WORKERS = (1, 2, 4)
WORKERS_MOST = 64

# fmt: off
CLIQUE_OPTIONS = [
    click.option("-w", "--workers", metavar="N,N,...", type=Counts(WORKERS_MOST), show_default=True,
                 default=",".join(map(str, DEFAULT_WORKERS)), help="Processes; each count is a run of its own."),
    click.option("--on", type=click.Choice(["penstock", "nats", "both"]), default="both", show_default=True,
                 help="The clique's carrier."),
    click.option("--nats", metavar="URL", help="A running NATS server; without it, one is started."),
    click.option("-n", "--messages", type=COUNT, default=50_000, show_default=True, help="How many."),
    click.option("-s", "--size", "size_bytes", type=click.IntRange(min=8), default=100, show_default=True,
                 help="Bytes per message."),
    click.option("-p", "--partitions", type=COUNT, default=8, show_default=True, help="Of the topic."),
    click.option("-k", "--keys", type=click.IntRange(min=100), default=1000, show_default=True,
                 help="Different keys."),
    click.option("--handler-us", type=click.IntRange(0, 1_000_000), default=0, show_default=True,
                 help="CPU that a handler uses, in microseconds."),
    click.option("-r", "--rate", "rate_per_second", type=COUNT, default=100, show_default=True,
                 help="Requests per second."),
    click.option("-t", "--seconds", type=COUNT, default=5, show_default=True, help="How long requests are sent."),
    click.option("--lease", "lease_ms", type=Duration(500, 600_000), default="8s", show_default=True, metavar="TIME",
                 help="How long a killed worker keeps its keys."),
]
# fmt: on


@click.command(
    epilog=examples(
        "penstock bench clique",
        "penstock bench clique --workers 1,4 --on penstock --rounds 5",
        "penstock bench clique --handler-us 500       # handlers that do something",
        "penstock bench clique --lease 2s --json",
    )
)
@options(CLIQUE_OPTIONS, [PLACE, ROUNDS_OPTION, json_option])
def clique(
    *,
    workers: tuple[int, ...],
    on: str,
    nats: str | None,
    where: Where,
    round_count: int,
    as_json: bool,
    **load: Any,
) -> None:
    """Measure a clique: messages, requests, kill -9 of a worker.

    Workers handle keyed messages while another process publishes them. Then requests are sent to the owners of keys
    at a steady rate. Then a worker is killed, and one of its keys is asked until another worker answers: that takes
    its lease (--lease) and little more. In turns with the clique on Penstock, a plain consumer group
    (confluent-kafka) with as many members and the same handler works on the same load.
    """
    shape = CliqueShape(**load)
    with clique_targets(on, nats, where) as targets:
        runs = clique_rounds(targets, shape, workers, round_count)
    middle = medians(runs, "variant")
    found = prices(middle)
    if as_json:
        parts = {"load": shape, "runs": runs, "medians": middle, "clique_to_group": found}
        show_json({name: msgspec.to_builtins(part) for name, part in parts.items()})
        return
    show(run_table(middle, CLIQUE_COLUMNS))
    for count, ratio in found.items():
        show(f"{counted(count, 'worker')}: the clique on Penstock handles {ratio:.2f} x the group's messages")


def clique_rounds(
    targets: Mapping[System, Target], shape: CliqueShape, workers: Sequence[int], count: int
) -> list[CliqueRun]:
    return in_turns(
        [Variant(system, number) for number in workers for system in targets],
        count,
        lambda variant, step: run_clique(targets, shape, variant, step),
        lambda variant: f"{SYSTEMS[variant.system]}, {counted(variant.workers, 'worker')}",
    )


@contextmanager
def clique_targets(on: str, nats: str | None, where: Where) -> Iterator[dict[System, Target]]:
    """The servers, each by what runs on it. NATS is left out with a note where it is missing and was not asked for."""
    missing = "" if on == "penstock" else nats_server.missing(is_running=nats is not None)
    if missing and on == "nats":
        raise Problem(missing)
    if missing:
        note(f"NATS is left out: {missing}")
    targets: dict[System, Target] = {}
    with ExitStack() as stack:
        if on != "nats":
            broker = stack.enter_context(broker_for(where, WITH_HTTP))
            targets |= {"penstock": broker, "group": broker}
        if on != "penstock" and not missing:
            server = (
                nats_server.at(nats) if nats else stack.enter_context(nats_server.own_nats(where.data_dir))
            )
            targets["nats"] = server
        yield targets
