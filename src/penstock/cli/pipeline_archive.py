"""`penstock pipeline run archive`."""

import click

from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.pipeline_progress import shown
from penstock.cli.pipeline_schedule import check_when, every_option, finish
from penstock.cli.pipeline_session import OnSpark, on_spark
from penstock.cli.stopping import stop_on_signals

MEGABYTE = 1 << 20


@click.command(
    epilog=examples(
        "penstock pipeline run archive orders --to ./archive",
        "penstock pipeline run archive orders payments --to hdfs:///archive --every 1m --master yarn",
        "penstock pipeline run archive --pattern 'shop\\..*' --to ./archive --no-compact",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--to",
    "path",
    required=True,
    metavar="PATH",
    help="The archive's folder: any path that Spark can write to.",
)
@click.option("--pattern", metavar="REGEX", help="All topics whose whole name matches, also new ones.")
@click.option("--compact/--no-compact", default=True, show_default=True, help="Merge small files.")
@click.option("--compact-every", type=click.IntRange(min=1), default=20, show_default=True, metavar="BATCHES")
@click.option(
    "--target-mb",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="What files are merged up to.",
)
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="A checkpoint of Spark's to go on with.  [default: a new one each run]",
)
@every_option
@json_option
@on_spark
def archive(
    where: OnSpark,
    topics: tuple[str, ...],
    path: str,
    pattern: str | None,
    compact: bool,
    compact_every: int,
    target_mb: int,
    checkpoint: str | None,
    every: str | None,
    once: bool,
    as_json: bool,
) -> None:
    """Write topics to Parquet files, each record exactly once.

    Goes on where the archive ends. Folders are topic=NAME/date=YYYY-MM-DD, by the UTC day of the record's timestamp.
    """
    check_when(every, once)
    if bool(topics) == bool(pattern):
        raise click.UsageError("give TOPICs or --pattern")
    options = {**where.options, **({"subscribePattern": pattern} if pattern else {})}
    with where.session("archive") as spark, stop_on_signals() as stop, shown(as_json=as_json) as progress:
        from penstock.spark import Compaction, Schedule
        from penstock.spark import archive as run_archive

        wish = Compaction(target_bytes=target_mb * MEGABYTE, every_batches=compact_every) if compact else None
        done = run_archive(
            spark,
            topics,
            path,
            bootstrap_servers=where.bootstrap,
            options=options,
            compaction=wish,
            checkpoint=checkpoint,
            schedule=Schedule(every=every, on_batch=progress, stop=lambda: bool(stop)),
        )
    result = {
        "archived": done.rows,
        "files_added": done.files_added,
        "files_merged_away": done.files_merged_away,
        "batches": done.totals.batches,
        "seconds": round(done.totals.duration_s, 1),
    }
    merged = f"; merging made these {done.files_merged_away:,} fewer" if done.files_merged_away else ""
    finish(as_json, result, f"archived {done.rows:,} records in {done.files_added:,} files{merged}")
