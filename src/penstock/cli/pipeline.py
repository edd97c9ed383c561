"""`penstock pipeline`: ready-made pipelines on any Spark master. The work is in `penstock.spark`; here are the options,
and what is printed of the results. `penstock.spark` needs PySpark, so it is imported when a pipeline runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Command, json_option
from penstock.cli.help import examples
from penstock.cli.output import note, show, show_json, table
from penstock.cli.pipeline_progress import shown
from penstock.cli.pipeline_session import OnSpark, on_spark
from penstock.cli.stopping import stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark import Schedule

PIPELINES = {
    "archive": "Topics to Parquet, by topic and date, exactly once; small files are merged.",
    "replay": "An archive back into topics, in order.",
    "history": "An archive and what came since, as one table to count or query.",
    "aggregate": "Counts and sums by key and window of time, to a topic or a table.",
}
MEGABYTE = 1 << 20
COUNTS = """
    SELECT topic, partition, source, count(*) AS records, min(offset) AS first, max(offset) AS last
    FROM history GROUP BY topic, partition, source ORDER BY topic, partition, first
"""


@click.group(
    epilog=examples(
        "penstock pipeline list",
        "penstock pipeline run archive orders --to ./archive",
        "penstock pipeline run history --from ./archive",
    )
)
def pipeline() -> None:
    """Run ready-made pipelines on Spark.

    They need PySpark (pip install "penstock[spark]") and Java 17 or later.
    """


@pipeline.command("list", epilog=examples("penstock pipeline list", "penstock pipeline list --json"))
@json_option
def list_pipelines(as_json: bool) -> None:
    """List the pipelines there are."""
    if as_json:
        show_json([{"pipeline": name, "does": line} for name, line in PIPELINES.items()])
    else:
        show(table("pipeline", "does", rows=PIPELINES.items()))


@pipeline.group(
    epilog=examples(
        "penstock pipeline run archive orders payments --to s3a://lake/archive --every 1m",
        "penstock pipeline run replay --from ./archive orders --to-topic orders-again",
        "penstock pipeline run aggregate orders --sum amount --to-topic totals --checkpoint ./state",
    )
)
def run() -> None:
    """Run a pipeline on all records that exist now, or with --every until Ctrl-C."""


# --- options of all streams


def scheduled(command: Command) -> Command:
    """Gives a command --every and --once."""
    every = click.option(
        "--every", metavar="TIME", help="Keep running, a batch at most this often: 500ms, 10s, 5m."
    )
    once = click.option("--once", is_flag=True, help="Process all existing records, then end (the default).")
    return every(once(command))


def _check_when(every: str | None, once: bool) -> None:
    if every is not None and once:
        raise click.UsageError("--every and --once exclude each other")


@contextmanager
def _stream(
    where: OnSpark, name: str, every: str | None, as_json: bool
) -> "Iterator[tuple[SparkSession, Schedule]]":
    with where.session(name) as spark, stop_on_signals() as stop, shown(as_json=as_json) as progress:
        from penstock.spark import Schedule

        yield spark, Schedule(every=every, on_batch=progress, stop=lambda: bool(stop))


def _finish(as_json: bool, result: dict[str, Any], line: str) -> None:
    if as_json:
        click.echo(json.dumps({"done": result}))
    else:
        show(line)


# --- archive


# fmt: off
@run.command(
    epilog=examples(
        "penstock pipeline run archive orders --to ./archive",
        "penstock pipeline run archive orders payments --to hdfs:///archive --every 1m --master yarn",
        "penstock pipeline run archive --pattern 'shop\\..*' --to ./archive --no-compact",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--to", "path", required=True, metavar="PATH",
              help="The archive's folder: any path that Spark can write to.")
@click.option("--pattern", metavar="REGEX", help="All topics whose whole name matches, also new ones.")
@click.option("--compact/--no-compact", default=True, show_default=True, help="Merge small files.")
@click.option("--compact-every", type=click.IntRange(min=1), default=20, show_default=True, metavar="BATCHES")
@click.option("--target-mb", type=click.IntRange(min=1), default=128, show_default=True,
              help="The size that files are merged up to.")
@click.option("--checkpoint", metavar="PATH",
              help="A Spark checkpoint to continue from.  [default: a new one each run]")
@scheduled
@json_option
@on_spark
def archive(
    where: OnSpark, topics: tuple[str, ...], path: str, pattern: str | None, compact: bool, compact_every: int,
    target_mb: int, checkpoint: str | None, every: str | None, once: bool, as_json: bool,
) -> None:
    """Write topics to Parquet files, each record exactly once.

    Goes on where the archive ends. Folders are topic=NAME/date=YYYY-MM-DD, by the UTC day of the record's timestamp.
    """
    # fmt: on
    _check_when(every, once)
    if bool(topics) == bool(pattern):
        raise click.UsageError("give TOPICs or --pattern")
    options = {**where.options, **({"subscribePattern": pattern} if pattern else {})}
    with _stream(where, "archive", every, as_json) as (spark, schedule):
        from penstock.spark import Compaction
        from penstock.spark import archive as run_archive

        merging = Compaction(target_bytes=target_mb * MEGABYTE, every_batches=compact_every)
        done = run_archive(
            spark,
            topics,
            path,
            bootstrap_servers=where.bootstrap,
            options=options,
            compaction=merging if compact else None,
            checkpoint=checkpoint,
            schedule=schedule,
        )
    result = {
        "archived": done.rows,
        "files_added": done.files_added,
        "files_merged_away": done.files_merged_away,
        "batches": done.totals.batches,
        "seconds": round(done.totals.duration_s, 1),
    }
    merged = f"; merging reduced the number of files by {done.files_merged_away:,}" if done.files_merged_away else ""
    _finish(as_json, result, f"archived {done.rows:,} records in {done.files_added:,} files{merged}")


# --- replay

# fmt: off
@run.command(
    epilog=examples(
        "penstock pipeline run replay --from ./archive orders --to-topic orders-again",
        "penstock pipeline run replay --from ./archive --suffix .replayed --from-time 2026-01-31T08:00:00Z",
        "penstock pipeline run replay --from ./archive orders --append",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--from", "path", required=True, metavar="PATH", help="The archive.")
@click.option("--to-topic", metavar="NAME", help="Another name for the one topic that is replayed.")
@click.option("--suffix", default="", metavar="TEXT", help="Appended to each topic's name.")
@click.option("--from-time", metavar="TIME", help="Records at or after it (ISO 8601, or ms since 1970).")
@click.option("--to-time", metavar="TIME", help="Records before it.")
@click.option("--from-offset", type=click.IntRange(min=0), help="Records at or after it, in each partition.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Records before it.")
@click.option("--append", is_flag=True, help="Also into topics that have records already.")
@json_option
@on_spark
def replay(
    where: OnSpark, topics: tuple[str, ...], path: str, to_topic: str | None, suffix: str, from_time: str | None,
    to_time: str | None, from_offset: int | None, to_offset: int | None, append: bool, as_json: bool,
) -> None:
    """Write an archive's records back to topics: same partitions, order, keys, headers and timestamps.

    Topics that do not exist are created with as many partitions as there were, and keep records for ever.
    """
    # fmt: on
    times = parse_time("--from-time", from_time), parse_time("--to-time", to_time)
    with where.session("replay") as spark:
        from penstock.spark import Selection
        from penstock.spark import replay as run_replay

        chosen = Selection(from_time=times[0], to_time=times[1], from_offset=from_offset, to_offset=to_offset)
        done = run_replay(
            spark,
            path,
            topics or None,
            bootstrap_servers=where.bootstrap,
            to_topic=to_topic,
            suffix=suffix,
            selection=chosen,
            append=append,
            options=where.options,
        )
    result = {"topics": dict(done.topics), "created": list(done.created), "rows": done.rows}
    count = "the selected records" if done.rows is None else f"{done.rows:,} records"
    _finish(as_json, result, f"replayed {count} to {', '.join(done.topics.values())}")


def parse_time(option: str, text: str | None) -> datetime | None:
    """ISO 8601 (without a zone: local time), or ms since 1970."""
    if text is None:
        return None
    try:
        if text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.UsageError(
            f"{option} {text!r}: expected ISO 8601 such as 2026-01-31T08:00:00Z, or ms since 1970"
        ) from None


# --- history

# fmt: off
@run.command(
    epilog=examples(
        "penstock pipeline run history --from ./archive",
        "penstock pipeline run history --from ./archive orders"
        ' --sql "select date, count(*) from history group by date order by date"',
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--from", "path", required=True, metavar="PATH", help="The archive.")
@click.option("--sql", "query", metavar="QUERY", help="A query over the view `history`, instead of counts.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows to print at most.")
@json_option
@on_spark
def history(
    where: OnSpark, topics: tuple[str, ...], path: str, query: str | None, limit: int, as_json: bool
) -> None:
    """Query an archive and the newer records of its topics as one table, without gap or overlap.

    Columns: key, value, topic, partition, offset, timestamp, timestampType, headers, date, and source, which is
    "archive" or "live". Without --sql it counts them.
    """
    # fmt: on
    with where.session("history") as spark:
        from penstock.spark import history as whole_history

        whole = whole_history(
            spark,
            path,
            topics or None,
            bootstrap_servers=where.bootstrap,
            options=where.options,
            with_source=True,
        )
        whole.createOrReplaceTempView("history")
        names, rows, more = _rows_of(spark.sql(query or COUNTS), limit)
    if as_json:
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        numbers = ("partition", "records", "first", "last") if query is None else ()
        show(table(*names, rows=rows, numbers=numbers))
    if more:
        note(f"only the first {limit:,} rows; --limit shows more")


def _rows_of(answer: "DataFrame", limit: int) -> tuple[list[str], list[list[Any]], bool]:
    """Column names, at most `limit` rows, and whether there are more."""
    rows = [[plain(cell) for cell in row] for row in answer.limit(limit + 1).collect()]
    return list(answer.columns), rows[:limit], len(rows) > limit


def plain(cell: Any) -> Any:
    """A cell that both a table and JSON can show. Bytes are taken for UTF-8, since most are."""
    if isinstance(cell, bytes | bytearray):
        return bytes(cell).decode("utf-8", "replace")
    if isinstance(cell, datetime | date):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return str(cell)
    if isinstance(cell, list):
        return [plain(each) for each in cell]
    if hasattr(cell, "asDict"):
        return {name: plain(value) for name, value in cell.asDict().items()}
    return cell


# --- aggregate

# fmt: off
@run.command(
    epilog=examples(
        "penstock pipeline run aggregate orders --sum amount --to-topic totals --checkpoint ./state",
        "penstock pipeline run aggregate orders --key customer.id --time created_at --to ./totals --every 10s",
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--window", default="5 minutes", show_default=True, metavar="TIME", help="How long a window is.")
@click.option("--slide", metavar="TIME", help="How often one begins.  [default: when the one before ends]")
@click.option("--watermark", default="10 minutes", show_default=True, metavar="TIME",
              help="How late a record may arrive and still count.")
@click.option("--key", metavar="FIELD", help="Group by this field of JSON values.  [default: the record's key]")
@click.option("--sum", "sums", multiple=True, metavar="FIELD[:TYPE]",
              help="Sum it; TYPE is double, long or decimal.")
@click.option("--time", metavar="FIELD", help="The event's time.  [default: the record's timestamp]")
@click.option("--to-topic", metavar="NAME", help="Where results go, as JSON.")
@click.option("--to", "to_path", metavar="PATH", help="Or a folder of Parquet files.")
@click.option("--mode", type=click.Choice(["update", "append"]),
              help="Each change, or final figures only.  [default: update; --to: append]")
@click.option("--checkpoint", metavar="PATH",
              help="Where state and offsets are kept.  [default with --to: PATH/_checkpoint]")
@scheduled
@json_option
@on_spark
def aggregate(
    where: OnSpark, topics: tuple[str, ...], to_topic: str | None, to_path: str | None, mode: str | None,
    checkpoint: str | None, every: str | None, once: bool, as_json: bool, **windows: Any,
) -> None:
    """Count and sum by key and window of time, to a topic or to Parquet."""
    # fmt: on
    _check_when(every, once)
    if bool(to_topic) == bool(to_path):
        raise click.UsageError("give one of --to-topic and --to")
    if checkpoint is None and to_path is None:
        raise click.UsageError(
            "--to-topic wants --checkpoint PATH, where state and offsets are kept between runs"
        )
    with _stream(where, "aggregate", every, as_json) as (spark, schedule):
        from penstock.spark import Aggregation
        from penstock.spark import aggregate as run_aggregate

        done = run_aggregate(
            spark,
            topics,
            Aggregation(**windows),
            bootstrap_servers=where.bootstrap,
            checkpoint=checkpoint,
            to_topic=to_topic,
            to_path=to_path,
            mode=mode,
            options=where.options,
            schedule=schedule,
        )
    result = {
        "rows": done.rows,
        "late_rows": done.late_rows,
        "batches": done.batches,
        "seconds": round(done.duration_s, 1),
    }
    late = f", {done.late_rows:,} too late" if done.late_rows else ""
    _finish(as_json, result, f"read {done.rows:,} records in {done.batches:,} batches{late}")
