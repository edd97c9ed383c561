"""`penstock pipeline`: ready-made pipelines on any Spark master. The work is in `penstock.spark`; this is the front."""

import click

from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.output import show, show_json, table
from penstock.cli.pipeline_aggregate import aggregate
from penstock.cli.pipeline_archive import archive
from penstock.cli.pipeline_history import history
from penstock.cli.pipeline_replay import replay

PIPELINES = {
    "archive": "Topics to Parquet, by topic and date, exactly once; small files are merged.",
    "replay": "An archive back into topics, in order.",
    "history": "An archive and what came since, as one table to count or query.",
    "aggregate": "Counts and sums by key and window of time, to a topic or a table.",
}


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
    """Run a pipeline: all that is there now and then end, or with --every until Ctrl-C."""


for command in (archive, replay, history, aggregate):
    run.add_command(command)
