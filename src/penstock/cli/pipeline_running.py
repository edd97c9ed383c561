"""Commands of pipelines share this: when they run, how they show their progress, and how they end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.common_options import Command
from penstock.cli.output import show
from penstock.cli.pipeline_progress import shown
from penstock.cli.pipeline_session import OnSpark
from penstock.cli.stopping import stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark import Schedule, Totals


def scheduled(command: Command) -> Command:
    """Gives a command --every and --once."""
    every = click.option(
        "--every", metavar="TIME", help="Keep running, a batch at most this often: 500ms, 10s, 5m."
    )
    once = click.option("--once", is_flag=True, help="Process all existing records, then end (the default).")
    return every(once(command))


def check_when(every: str | None, once: bool) -> None:
    if every is not None and once:
        raise click.UsageError("--every and --once exclude each other")


@contextmanager
def stream(
    where: OnSpark, name: str, every: str | None, as_json: bool
) -> "Iterator[tuple[SparkSession, Schedule]]":
    with where.session(name) as spark, stop_on_signals() as stop, shown(as_json=as_json) as progress:
        from penstock.spark import Schedule

        yield spark, Schedule(every=every, on_batch=progress, stop=lambda: bool(stop))


def finish(as_json: bool, result: dict[str, Any], line: str) -> None:
    if as_json:
        click.echo(json.dumps({"done": result}))
    else:
        show(line)


def finish_stream(as_json: bool, done: "Totals") -> None:
    result = {
        "rows": done.rows,
        "late_rows": done.late_rows,
        "batches": done.batches,
        "seconds": round(done.duration_s, 1),
    }
    late = f", {done.late_rows:,} too late" if done.late_rows else ""
    finish(as_json, result, f"read {done.rows:,} records in {done.batches:,} batches{late}")
