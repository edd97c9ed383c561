"""A running stream on the screen: a table that moves on a terminal, a line per batch elsewhere, or JSON lines."""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.live import Live

from penstock.cli.output import console, note, table

if TYPE_CHECKING:
    from penstock.spark.pipelines import BatchProgress

ROWS_SHOWN = 12
"""Batches in the moving table: it must fit on a small screen."""

COLUMNS = ("batch", "rows", "rows/s", "took", "lag", "late", "total")


class Progress:
    """Call it with each batch."""

    def __init__(self, *, as_json: bool, live: Live | None) -> None:
        self._as_json = as_json
        self._live = live
        self._recent: deque[tuple[object, ...]] = deque(maxlen=ROWS_SHOWN)
        self.batches = 0
        self.rows = 0

    def __call__(self, batch: "BatchProgress") -> None:
        self.batches += 1
        self.rows += batch.rows
        if self._as_json:
            click.echo(json.dumps(as_dict(batch, self.rows)))
            return
        cells = (
            batch.batch_id,
            batch.rows,
            round(batch.rows_per_second),
            f"{batch.duration_ms / 1000:.1f} s",
            batch.lag,
            batch.late_rows,
            self.rows,
        )
        self._recent.append(cells)
        if self._live is not None:
            self._live.update(table(*COLUMNS, rows=self._recent, numbers=COLUMNS), refresh=True)
        else:
            note(line(batch, self.rows))


@contextmanager
def shown(*, as_json: bool) -> Iterator[Progress]:
    out = console(stderr=True)
    if as_json or not out.is_terminal:
        yield Progress(as_json=as_json, live=None)
        return
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        live.update("waiting for the first batch", refresh=True)
        yield Progress(as_json=False, live=live)


def line(batch: "BatchProgress", total: int) -> str:
    lag = "" if batch.lag is None else f", lag {batch.lag:,}"
    late = f", late {batch.late_rows:,}" if batch.late_rows else ""
    return (
        f"batch {batch.batch_id}: {batch.rows:,} rows in {batch.duration_ms / 1000:.1f} s, "
        f"{batch.rows_per_second:,.0f} rows/s{lag}{late}; {total:,} in all"
    )


def as_dict(batch: "BatchProgress", total: int) -> dict[str, Any]:
    return {
        "batch": batch.batch_id,
        "at": batch.at,
        "rows": batch.rows,
        "rows_per_second": round(batch.rows_per_second, 1),
        "duration_ms": batch.duration_ms,
        "lag": batch.lag,
        "late_rows": batch.late_rows,
        "total_rows": total,
        "steps_ms": dict(batch.steps_ms),
    }
