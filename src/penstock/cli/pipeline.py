"""`penstock pipeline`: ready-made pipelines on any Spark master. The work is in `penstock.spark`; here are the options,
and what is printed of the results. `penstock.spark` needs PySpark, so it is imported when a pipeline runs."""

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.output import note, show, show_json, table
from penstock.cli.pipeline_running import check_when, finish, finish_stream, scheduled, stream
from penstock.cli.pipeline_selection import selected, selection_of
from penstock.cli.pipeline_session import OnSpark, on_spark
from penstock.cli.pipeline_tables import catalog_option, convert, optimize, vacuum
from penstock.cli.pipeline_to_topic import dedupe, enrich, mirror, reprocess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MEGABYTE = 1 << 20
SHORT_HELP_MAX = 200
COUNTS = """
    SELECT topic, partition, source, count(*) AS records, min(offset) AS first, max(offset) AS last
    FROM history GROUP BY topic, partition, source ORDER BY topic, partition, first
"""


@click.group(
    epilog=examples(
        "penstock pipeline list",
        "penstock pipeline run archive orders --to ./lake",
        "penstock pipeline run history --from ./lake",
    )
)
def pipeline() -> None:
    """Run ready-made pipelines on Spark.

    They need PySpark (pip install "penstock[spark,lake]") and Java 17 or later.
    """


for _table_command in (optimize, vacuum, convert):
    pipeline.add_command(_table_command)


@pipeline.command("list", epilog=examples("penstock pipeline list", "penstock pipeline list --json"))
@json_option
def list_pipelines(as_json: bool) -> None:
    """List the pipelines there are."""
    pipelines = [(name, command.get_short_help_str(SHORT_HELP_MAX)) for name, command in run.commands.items()]
    if as_json:
        show_json([{"pipeline": name, "does": line} for name, line in pipelines])
    else:
        show(table("pipeline", "does", rows=pipelines))


@pipeline.group(
    epilog=examples(
        "penstock pipeline run archive orders payments --to ./lake --every 1m",
        "penstock pipeline run replay --from ./lake orders --to-topic orders-again",
        "penstock pipeline run aggregate orders --sum amount --to-topic totals --checkpoint ./state",
    )
)
def run() -> None:
    """Run a pipeline on all records that exist now, or with --every until Ctrl-C."""


# --- archive


# fmt: off
@run.command(
    epilog=examples(
        "penstock pipeline run archive orders --to ./lake",
        "penstock pipeline run archive orders payments --to /mnt/shared/lake --every 1m --master yarn",
        "penstock pipeline run archive --pattern 'shop\\..*' --to ./lake --no-compact",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--to", "path", required=True, metavar="PATH",
              help="The archive's folder, on a disk that all executors see, or s3://BUCKET/PATH.")
@click.option("--format", "table_format", type=click.Choice(["delta", "iceberg"]),
              help="Of new tables.  [default: as those that are there, else delta]")
@catalog_option
@click.option("--pattern", metavar="REGEX", help="All topics whose whole name matches, also new ones.")
@click.option("--value-format", type=click.Choice(["json", "avro", "protobuf", "csv", "arrow"]),
              help="Decode values: their fields become columns.  [default: the value as it is]")
@click.option("--value-schema", metavar="SCHEMA", help="Of --value-format: 'id bigint, amount double'.")
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
    where: OnSpark, topics: tuple[str, ...], path: str, table_format: str | None, catalog: str | None,
    pattern: str | None, value_format: str | None, value_schema: str | None, compact: bool,
    compact_every: int, target_mb: int, checkpoint: str | None,
    every: str | None, once: bool, as_json: bool,
) -> None:
    """Write topics to Delta or Iceberg tables, each record exactly once.

    Goes on where the archive ends. Each topic has a table PATH/TOPIC, partitioned by `date`, the UTC day of the
    record's timestamp. DuckDB, Polars, pandas, Trino and Spark read it.
    """
    # fmt: on
    check_when(every, once)
    if bool(topics) == bool(pattern):
        raise click.UsageError("give TOPICs or --pattern")
    if bool(value_format) != bool(value_schema):
        raise click.UsageError("--value-format and --value-schema go together")
    more = {"subscribePattern": pattern, "valueFormat": value_format, "valueSchema": value_schema}
    options = {**where.options, **{name: value for name, value in more.items() if value}}
    with stream(where, "archive", every, as_json) as (spark, schedule):
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
            table_format=table_format,
            catalog=catalog,
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
    finish(as_json, result, f"archived {done.rows:,} records in {done.files_added:,} files{merged}")


# --- replay

# fmt: off
@run.command(
    epilog=examples(
        "penstock pipeline run replay --from ./lake orders --to-topic orders-again",
        "penstock pipeline run replay --from ./lake --suffix .replayed --from-time 2026-01-31T08:00:00Z",
        "penstock pipeline run replay --from ./lake orders --append",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--from", "path", required=True, metavar="PATH", help="The archive.")
@catalog_option
@click.option("--to-topic", metavar="NAME", help="Another name for the one topic that is replayed.")
@click.option("--suffix", default="", metavar="TEXT", help="Appended to each topic's name.")
@selected
@click.option("--append", is_flag=True, help="Also into topics that have records already.")
@click.option("--checkpoint", metavar="PATH",
              help="Where the replay keeps how far it has come.  [default: _replays in the archive]")
@json_option
@on_spark
def replay(
    where: OnSpark, topics: tuple[str, ...], path: str, catalog: str | None, to_topic: str | None, suffix: str,
    append: bool, checkpoint: str | None, as_json: bool, **bounds: Any,
) -> None:
    """Write an archive's records back to topics: same partitions, order, keys, headers and timestamps.

    Topics that do not exist are created with as many partitions as there were, and keep records for ever. A replay that
    was interrupted continues when you run the same command again.
    """
    # fmt: on
    wanted = selection_of(bounds)
    with stream(where, "replay", None, as_json) as (spark, schedule):
        from penstock.spark import Selection
        from penstock.spark import replay as run_replay

        done = run_replay(
            spark,
            path,
            topics or None,
            bootstrap_servers=where.bootstrap,
            to_topic=to_topic,
            suffix=suffix,
            selection=Selection(**wanted),
            append=append,
            options=where.options,
            checkpoint=checkpoint,
            schedule=schedule,
            catalog=catalog,
        )
    result = {
        "topics": dict(done.topics),
        "created": list(done.created),
        "rows": done.rows,
        "rows_by_topic": dict(done.rows_by_topic),
        "resumed": done.resumed,
        "finished": done.finished,
    }
    counts = ", ".join(f"{rows:,} to {name}" for name, rows in sorted(done.rows_by_topic.items()))
    earlier = ", those of the interrupted run included" if done.resumed else ""
    rest = "" if done.finished else "; stopped, and the same command continues"
    finish(as_json, result, f"replayed {done.rows:,} records: {counts}{earlier}{rest}")


# --- history

# fmt: off
@run.command(
    epilog=examples(
        "penstock pipeline run history --from ./lake",
        "penstock pipeline run history --from ./lake orders"
        ' --sql "select date, count(*) from history group by date order by date"',
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--from", "path", required=True, metavar="PATH", help="The archive.")
@catalog_option
@click.option("--sql", "query", metavar="QUERY", help="A query over the view `history`, instead of counts.")
@selected
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows to print at most.")
@json_option
@on_spark
def history(
    where: OnSpark, topics: tuple[str, ...], path: str, catalog: str | None, query: str | None, limit: int,
    as_json: bool, **bounds: Any,
) -> None:
    """Query an archive and the newer records of its topics as one table, without gap or overlap.

    Columns: key, value, topic, partition, offset, timestamp, timestampType, headers, date, and source, which is
    "archive" or "live". Without --sql it counts them.
    """
    # fmt: on
    wanted = selection_of(bounds)
    with where.session("history") as spark:
        from penstock.spark import Selection
        from penstock.spark import history as whole_history

        whole = whole_history(
            spark,
            path,
            topics or None,
            bootstrap_servers=where.bootstrap,
            options=where.options,
            selection=Selection(**wanted),
            with_source=True,
            catalog=catalog,
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
    check_when(every, once)
    if bool(to_topic) == bool(to_path):
        raise click.UsageError("give one of --to-topic and --to")
    if checkpoint is None and to_path is None:
        raise click.UsageError(
            "--to-topic wants --checkpoint PATH, where state and offsets are kept between runs"
        )
    with stream(where, "aggregate", every, as_json) as (spark, schedule):
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
    finish_stream(as_json, done)


for _run_command in (dedupe, enrich, mirror, reprocess):
    run.add_command(_run_command)
