"""`penstock pipeline run aggregate`."""

import click

from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.pipeline_progress import shown
from penstock.cli.pipeline_schedule import check_when, every_option, finish
from penstock.cli.pipeline_session import OnSpark, on_spark
from penstock.cli.stopping import stop_on_signals


@click.command(
    epilog=examples(
        "penstock pipeline run aggregate orders --sum amount --to-topic totals --checkpoint ./state",
        "penstock pipeline run aggregate orders --key customer.id --time created_at --to ./totals --every 10s",
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--window", default="5 minutes", show_default=True, metavar="TIME", help="How long a window is."
)
@click.option("--slide", metavar="TIME", help="How often one begins.  [default: when the one before ends]")
@click.option(
    "--watermark",
    default="10 minutes",
    show_default=True,
    metavar="TIME",
    help="How long late records count.",
)
@click.option(
    "--key", metavar="FIELD", help="Group by this field of JSON values.  [default: the record's key]"
)
@click.option(
    "--sum", "sums", multiple=True, metavar="FIELD[:TYPE]", help="Sum it; TYPE is double, long or decimal."
)
@click.option(
    "--time", "time_field", metavar="FIELD", help="The event's time.  [default: the record's timestamp]"
)
@click.option("--to-topic", metavar="NAME", help="Where results go, as JSON.")
@click.option("--to", "path", metavar="PATH", help="Or a folder of Parquet files.")
@click.option(
    "--mode",
    type=click.Choice(["update", "append"]),
    help="Each change, or final figures only.  [default: update; --to: append]",
)
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="Where state and offsets are kept.  [default with --to: PATH/_checkpoint]",
)
@every_option
@json_option
@on_spark
def aggregate(
    where: OnSpark,
    topics: tuple[str, ...],
    window: str,
    slide: str | None,
    watermark: str,
    key: str | None,
    sums: tuple[str, ...],
    time_field: str | None,
    to_topic: str | None,
    path: str | None,
    mode: str | None,
    checkpoint: str | None,
    every: str | None,
    once: bool,
    as_json: bool,
) -> None:
    """Count and sum by key and window of time, to a topic or to Parquet."""
    check_when(every, once)
    if bool(to_topic) == bool(path):
        raise click.UsageError("give one of --to-topic and --to")
    if checkpoint is None and path is None:
        raise click.UsageError(
            "--to-topic wants --checkpoint PATH, where state and offsets are kept between runs"
        )
    with where.session("aggregate") as spark, stop_on_signals() as stop, shown(as_json=as_json) as progress:
        from penstock.spark import Aggregation, Schedule
        from penstock.spark import aggregate as run_aggregate

        wish = Aggregation(
            window=window, slide=slide, watermark=watermark, key=key, sums=sums, time=time_field
        )
        done = run_aggregate(
            spark,
            topics,
            wish,
            bootstrap_servers=where.bootstrap,
            checkpoint=checkpoint,
            to_topic=to_topic,
            to_path=path,
            mode=mode,
            options=where.options,
            schedule=Schedule(every=every, on_batch=progress, stop=lambda: bool(stop)),
        )
    result = {
        "rows": done.rows,
        "late_rows": done.late_rows,
        "batches": done.batches,
        "seconds": round(done.duration_s, 1),
    }
    late = f", {done.late_rows:,} too late" if done.late_rows else ""
    finish(as_json, result, f"read {done.rows:,} records in {done.batches:,} batches{late}")
