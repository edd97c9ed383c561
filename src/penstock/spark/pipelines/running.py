"""Runs a stream to its end: all records that exist now, or until it is stopped. Reports every batch."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import ConfigError
from penstock.spark.pipelines.progress import BatchProgress, from_spark
from penstock.spark.problems import PipelineError

POLL_S: Final = 0.25

PY4J: Final = "An error occurred while calling "
"""How errors of Java's begin that Spark did not translate."""

OnBatch = Callable[[BatchProgress], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How often a pipeline runs, and the callback for its progress."""

    every: str | None = None
    """Run until stopped, a batch at most this often ("10s", "1 minute"). None: once, with all existing records."""
    on_batch: OnBatch | None = None
    stop: Callable[[], bool] | None = None
    """Called four times a second; true ends the pipeline after the current batch."""
    stop_within_s: float = 60.0
    """How long the current batch may still take once stop is true. Then it is abandoned; the next run repeats it."""

    def __post_init__(self) -> None:
        """ConfigError for an interval that is none, before a pipeline has made anything."""
        if self.every is not None:
            spark_interval(self.every)

    def is_stopped(self) -> bool:
        return self.stop is not None and self.stop()


ALL_NOW: Final = Schedule()


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    batches: int = 0
    rows: int = 0
    late_rows: int = 0
    duration_s: float = 0.0


def run(writer: DataStreamWriter, schedule: Schedule) -> Totals:
    """Starts the query and waits for its end. PipelineError says why it ended early."""
    query = _triggered(writer, schedule.every).start()
    return _watch(query, schedule)


def _triggered(writer: DataStreamWriter, every: str | None) -> DataStreamWriter:
    if every is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=spark_interval(every))


def spark_interval(text: str) -> str:
    """`10s`, `500ms`, `2m` or Spark's own "10 seconds"."""
    units = {
        "ms": "milliseconds",
        "s": "seconds",
        "m": "minutes",
        "min": "minutes",
        "h": "hours",
        "d": "days",
    }
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(digits) :].strip()
    if not digits.isdecimal() or not unit.isalpha():
        raise ConfigError("every", text, 'a time such as 500ms, 10s, 5m or "10 seconds"')
    return f"{digits} {units.get(unit, unit)}"


def _watch(query: StreamingQuery, schedule: Schedule) -> Totals:
    reports = _Reports(query, schedule.on_batch)
    begun = time.monotonic()
    give_up: float | None = None
    try:
        while not _ended(query):
            reports.take()
            if schedule.is_stopped():
                give_up = give_up or time.monotonic() + schedule.stop_within_s
                if not query.status["isTriggerActive"] or time.monotonic() > give_up:
                    break
    finally:
        query.stop()
    reports.take()
    return reports.totals(time.monotonic() - begun)


def _ended(query: StreamingQuery) -> bool:
    try:
        return bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]  # it takes fractions
    except StreamingQueryException as problem:
        raise PipelineError(reason(problem)) from problem


class _Reports:
    """Each batch's progress, once, in order."""

    def __init__(self, query: StreamingQuery, on_batch: OnBatch | None) -> None:
        self._query = query
        self._on_batch = on_batch
        self._last = ""
        self._batches = self._rows = self._late_rows = 0

    def take(self) -> None:
        newest = self._query.lastProgress
        if newest is None or _mark(newest) == self._last:
            return
        for each in self._query.recentProgress:
            if _mark(each) > self._last:
                self._last = _mark(each)
                self._report(from_spark(_as_dict(each)))

    def totals(self, duration_s: float) -> Totals:
        return Totals(
            batches=self._batches, rows=self._rows, late_rows=self._late_rows, duration_s=duration_s
        )

    def _report(self, progress: BatchProgress) -> None:
        if not progress.rows and "addBatch" not in progress.steps_ms:
            return  # nothing came: Spark says so every ten seconds
        self._batches += 1
        self._rows += progress.rows
        self._late_rows += progress.late_rows
        if self._on_batch is not None:
            self._on_batch(progress)


def _mark(progress: Any) -> str:
    """Rises with every report."""
    found = _as_dict(progress)
    return f"{found['timestamp']} {found['batchId']:020d}"


def _as_dict(progress: Any) -> Mapping[str, Any]:
    if isinstance(progress, dict):
        return progress
    found: Mapping[str, Any] = json.loads(progress.json)
    return found


def reason(problem: BaseException) -> str:
    """The useful part of an error that came through Spark: the last line that one of our own errors wrote."""
    text = str(problem)
    for line in reversed(text.splitlines()):
        stripped = line.strip()
        name, colon, said = stripped.partition(": ")
        if colon and name.startswith("penstock.") and " " not in name:
            return said
    lines = text.strip().splitlines()
    if len(lines) > 1 and lines[0].startswith(PY4J) and lines[1].startswith(": "):
        name, _, said = lines[1].removeprefix(": ").partition(": ")  # a Java exception and what it says
        return said or name
    return lines[0] if lines else type(problem).__name__
