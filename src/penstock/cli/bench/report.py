"""Benchmarks as tables and as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table

from penstock.cli.bench.figures import Comparison, Latency, Run
from penstock.cli.output import table


def throughput_table(runs: Sequence[Run]) -> Table:
    rows = [
        [
            run.kind,
            run.target,
            f"{run.messages_per_second:,.0f}",
            f"{run.megabytes_per_second:,.1f}",
            f"{run.client_us_per_message:.2f}",
            _number(run.broker_us_per_message, "{:.2f}"),
            _megabytes(run.broker_rss_bytes),
            _megabytes(run.broker_peak_rss_bytes),
        ]
        for run in runs
    ]
    names = ("messages/s", "MB/s", "client us/msg", "broker us/msg", "broker MB", "peak MB")
    return table("load", "broker", *names, rows=rows, numbers=names)


def latency_table(runs: Sequence[Run]) -> Table:
    rows = [
        [run.target, what, *_percentiles(figures)]
        for run in runs
        for what, figures in (("acknowledged", run.acknowledged), ("delivered", run.delivered))
        if figures is not None
    ]
    names = ("p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
    return table("broker", "latency until", *names, rows=rows, numbers=names)


def _percentiles(figures: Latency) -> list[str]:
    values = (figures.p50_ms, figures.p95_ms, figures.p99_ms, figures.p999_ms, figures.max_ms)
    return [f"{value:.2f}" for value in values]


def comparison_table(found: Sequence[tuple[str, Comparison]], ours: str, theirs: str) -> Table:
    rows = [
        [load, each.measure, f"{each.ours:,.2f}", f"{each.theirs:,.2f}", f"{each.ratio:.2f}"]
        for load, each in found
    ]
    names = (ours, theirs, "ratio")
    return table("load", "median of", *names, rows=rows, numbers=names)


def _number(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _megabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.0f}"


def run_json(run: Run) -> dict[str, Any]:
    """A run with the figures that follow from it."""
    derived = {
        "messages_per_second": run.messages_per_second,
        "megabytes_per_second": run.megabytes_per_second,
        "client_us_per_message": run.client_us_per_message,
        "broker_us_per_message": run.broker_us_per_message,
    }
    plain: dict[str, Any] = msgspec.to_builtins(run)
    return {**plain, **derived}


def comparison_json(load: str, found: Comparison) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {"load": load, **plain, "ratio": found.ratio}
