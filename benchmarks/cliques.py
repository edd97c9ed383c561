"""A clique on Penstock and on NATS beside a plain consumer group: `make bench-clique`.

The runs are those of `penstock bench clique`: once with a handler that only keeps a sum, and once with one that uses
--handler-us of CPU. Results go to .cache/bench/ as JSON and as Markdown.
"""

import argparse
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import page

import penstock
from penstock.cli.bench.clique_commands import DEFAULT_WORKERS, clique_rounds, clique_targets
from penstock.cli.bench.clique_runner import CliqueShape
from penstock.cli.bench.figures import SYSTEMS, CliqueRun, medians, prices, written
from penstock.cli.bench.runner import Where
from penstock.cli.parameters import in_words

CACHE = Path(__file__).parents[1] / ".cache" / "bench"


def main() -> None:
    options = _options()
    idle = CliqueShape(messages=options.messages)
    busy = CliqueShape(messages=options.messages // 5, handler_us=options.handler_us)
    runs = {shape.handler_us: _measure(shape, options) for shape in (idle, busy)}
    text = "\n".join([*_intro(idle, options), *_table(runs[0]), "", *_prices(runs)]) + "\n"
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "cliques.json").write_bytes(msgspec.json.encode(runs))
    (CACHE / "cliques.md").write_text(text)
    if options.publish:
        page.publish("bench-clique", text)
    print(text)


def _measure(shape: CliqueShape, options: argparse.Namespace) -> list[CliqueRun]:
    where = Where(bootstrap=None, broker_pid=None, memory=False, data_dir=options.data_dir)
    with clique_targets("penstock" if shape.handler_us else "both", None, where) as targets:
        return clique_rounds(targets, shape, DEFAULT_WORKERS, options.rounds)


def _intro(shape: CliqueShape, options: argparse.Namespace) -> list[str]:
    return [
        f"Penstock {penstock.__version__} on {platform.machine()}: {shape.messages:,} messages of "
        f"{shape.size_bytes} B with {shape.keys:,} keys on {shape.partitions} partitions, "
        f"{shape.rate_per_second} requests/s, a lease of {in_words(shape.lease_ms)}; medians of "
        f"{options.rounds} runs in turns.",
        "",
    ]


def _table(runs: Sequence[CliqueRun]) -> Iterator[str]:
    yield "| system | workers | messages/s | worker CPU each | broker CPU each | request p50 | p99 | kill -9 |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for run in medians(runs, "variant"):
        cells = (
            SYSTEMS[run.system],
            str(run.workers),
            f"{run.messages_per_second:,.0f}",
            written(run.worker_us_per_message, "{:.1f} us"),
            written(run.broker_us_per_message, "{:.1f} us"),
            written(run.asked and run.asked.p50_ms, "{:.1f} ms"),
            written(run.asked and run.asked.p99_ms, "{:.1f} ms"),
            written(run.failover_seconds, "{:.1f} s"),
        )
        yield "| " + " | ".join(cells) + " |"


def _prices(runs: dict[int, list[CliqueRun]]) -> Iterator[str]:
    found = {handler_us: prices(medians(some, "variant")) for handler_us, some in runs.items()}
    yield (
        "| the clique's messages/s to the group's, with handlers that use | "
        + " | ".join(f"{workers} workers" if workers > 1 else "1 worker" for workers in DEFAULT_WORKERS)
        + " |"
    )
    yield "|---|" + "---:|" * len(DEFAULT_WORKERS)
    for handler_us, by_workers in found.items():
        cells = " | ".join(f"{by_workers[workers]:.2f}" for workers in DEFAULT_WORKERS)
        yield f"| {f'{handler_us} us of CPU' if handler_us else 'nothing'} | {cells} |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--handler-us", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data-dir", help="where the broker has its folder")
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
