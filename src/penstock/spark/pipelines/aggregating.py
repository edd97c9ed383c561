"""Counts and sums by key and window of time, from topics to a topic or a Parquet table.

Spark does the work (window, watermark, state store); this says it in one call. A window counts a record by its event
time. The watermark is how long a window waits for late records: when it has passed, the window is final, its state is
dropped, and records that come later for it are left out, and counted as late.

    to a topic    at least once: after a crash the last batch's results may come twice, with the same key and window
    to a table    exactly once, by Spark's file sink: its log in PATH/_spark_metadata says which files count
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.options import SourceOptions
from penstock.spark.pipelines.groups import group_options
from penstock.spark.pipelines.json_fields import (
    DURATION,
    FIELD,
    check_duration,
    check_field,
    field_of,
    key_or_field,
    time_of,
)
from penstock.spark.pipelines.reading import topic_names, with_defaults
from penstock.spark.pipelines.running import ALL_NOW, Schedule, Totals, run
from penstock.spark.pipelines.topic_stream import check_raw, check_target, once_options, sink_options
from penstock.spark.planner import Planner

SUM_TYPES: Final = {"double": "double", "long": "bigint", "decimal": "decimal(38, 9)"}
MODES: Final = ("update", "append")
TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""UTC, as other engines expect it. Spark's default, INT96, is deprecated and has no statistics."""
UNITS_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
JSON_TIMES: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "timeZone": "UTC"}
"""Windows in JSON are in UTC, whatever the session's time zone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation:
    """The counts and sums of an aggregation. Fields are those of JSON objects; a dot selects an inner field."""

    window: str = "5 minutes"
    slide: str | None = None
    """How often a window begins; None: when the one before ends."""
    watermark: str = "10 minutes"
    key: str | None = None
    """A field; None: the record's key, as text."""
    sums: tuple[str, ...] = ()
    """Fields, each with a type if it is not double: `amount`, `items:long`, `price:decimal`. Other values are 0."""
    time: str | None = None
    """A field: ISO 8601, or ms since 1970. None, and where a value has no such field, or one outside the years 1 to
    9999: the record's timestamp."""

    def validate(self) -> None:
        for name, text in (("window", self.window), ("slide", self.slide), ("watermark", self.watermark)):
            check_duration(name, text)
        if _ms(self.window) == 0:
            raise ConfigError("window", self.window, "more than no time")
        if self.slide is not None and not 0 < _ms(self.slide) <= _ms(self.window):
            raise ConfigError(
                "slide", self.slide, f"more than no time, and at most the window's {self.window}"
            )
        for name, field in (("key", self.key), ("time", self.time)):
            check_field(name, field)
        for field_sum in self.sums:
            field, _, kind = field_sum.partition(":")
            if not FIELD.fullmatch(field) or (kind or "double") not in SUM_TYPES:
                raise ConfigError(
                    "sums", field_sum, f"FIELD or FIELD:TYPE, where TYPE is one of {', '.join(SUM_TYPES)}"
                )
        columns = [_sum_name(field_sum) for field_sum in self.sums]
        if len(set(columns)) != len(columns):
            raise ConfigError("sums", ", ".join(self.sums), "each field once")

    def applied(self, records: DataFrame) -> DataFrame:
        """window_start, window_end, key, count, and sum_FIELD for each sum."""
        named = records.select(
            time_of(self.time).alias("time"),
            key_or_field(self.key).alias("key"),
            *(_number(field_sum).alias(_sum_name(field_sum)) for field_sum in self.sums),
        )
        windows = F.window("time", self.window, self.slide) if self.slide else F.window("time", self.window)
        totals = (
            named.withWatermark("time", self.watermark)
            .groupBy(windows.alias("window"), "key")
            .agg(
                F.count("*").alias("count"),
                *(F.sum(_sum_name(field_sum)).alias(_sum_name(field_sum)) for field_sum in self.sums),
            )
        )
        sums = (F.col(_sum_name(field_sum)) for field_sum in self.sums)
        return totals.select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "key",
            "count",
            *sums,
        )


def aggregate(
    spark: SparkSession,
    topics: str | Sequence[str],
    aggregation: Aggregation,
    *,
    bootstrap_servers: str,
    checkpoint: str | None = None,
    to_topic: str | None = None,
    to_path: str | None = None,
    mode: str | None = None,
    options: Mapping[str, str] | None = None,
    schedule: Schedule = ALL_NOW,
) -> Totals:
    """Counts and sums, written to a topic (JSON values, the key as key) or to a Parquet table.

    `mode` "update" (a topic's default) writes a window's figures whenever they have changed, "append" (a table's, and
    its only one) once, when the watermark has passed. `checkpoint` keeps the state and the offsets: one folder per
    pipeline, a table's is `to_path`/_checkpoint by default. `options` are those of the source; it begins at the first
    record unless startingOffsets says else.
    """
    aggregation.validate()
    mode = _checked_mode(mode, to_topic, to_path)
    kept = _checkpoint(checkpoint, to_path)
    defaults = {"startingOffsets": "earliest", **group_options("aggregate", kept)}
    given = {**with_defaults(options or {}, defaults), "kafka.bootstrap.servers": bootstrap_servers}
    names = topic_names(topics) or ()
    if names:
        given["subscribe"] = ",".join(names)
    parsed = source_options.parse(given, streaming=True)
    if to_topic:
        check_target(parsed.subscription, to_topic)
    check_raw(parsed)
    _prepare(parsed, to_topic)
    records = spark.readStream.format("penstock").options(**given).load()
    results = aggregation.applied(records)
    writer = (
        _to_table(results, to_path)
        if to_path
        else _to_topic(results, sink_options(given, to_topic or ""), mode)
    )
    with _setting(spark, *TIMESTAMPS):  # a stream takes the session's settings when it starts
        return run(writer.outputMode(mode).option("checkpointLocation", kept), schedule)


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before or "")


def _checkpoint(given: str | None, to_path: str | None) -> str:
    if given is not None:
        return given
    if to_path is None:
        raise ConfigError("checkpoint", None, "a folder where state and offsets are kept between runs")
    return f"{to_path.rstrip('/')}/_checkpoint"


def _checked_mode(mode: str | None, to_topic: str | None, to_path: str | None) -> str:
    if bool(to_topic) == bool(to_path):
        raise ConfigError("to_topic", to_topic, "either to_topic or to_path")
    mode = mode or ("update" if to_topic else "append")
    if mode not in MODES:
        raise ConfigError("mode", mode, f"one of {', '.join(MODES)}")
    if to_path and mode != "append":
        raise ConfigError("mode", mode, "append: rows of a Parquet table cannot be changed")
    return mode


def _prepare(options: SourceOptions, to_topic: str | None) -> None:
    """Checks the topics before the stream starts, and creates the target topic if needed."""
    planner = Planner(options)
    try:
        planner.layout(require_all=True)
        if to_topic:
            planner.cluster.create_topic(to_topic)
    finally:
        planner.close()


def _to_table(results: DataFrame, path: str) -> DataStreamWriter:
    return results.writeStream.format("parquet").option("path", path)


def _to_topic(results: DataFrame, options: dict[str, str], mode: str) -> DataStreamWriter:
    # Fields that are null stay: who reads JSON by name finds each of them.
    value = F.to_json(F.struct(*results.columns), {**JSON_TIMES, "ignoreNullFields": "false"})
    records = results.select(F.col("key").cast("binary").alias("key"), value.alias("value"))
    if mode == "append":
        return records.writeStream.format("penstock").options(**options)

    # Spark lets a data source that is written in Python have rows that are appended only, in a stream. In a batch they
    # are just rows.
    def write(batch: DataFrame, batch_id: int) -> None:
        once = once_options(batch, batch_id)
        batch.write.format("penstock").options(**options, **once).mode("append").save()

    return records.writeStream.foreachBatch(write)


def _number(field_sum: str) -> Column:
    field, _, kind = field_sum.partition(":")
    return F.coalesce(field_of(field).try_cast(SUM_TYPES[kind or "double"]), F.lit(0))


def _ms(duration: str) -> int:
    """The milliseconds of a duration that was validated before."""
    found = DURATION.fullmatch(duration)
    assert found is not None
    return int(found[1]) * UNITS_MS[found[2]]


def _sum_name(field_sum: str) -> str:
    return "sum_" + re.sub(r"[^A-Za-z0-9_]", "_", field_sum.partition(":")[0])
