"""`penstock pipeline run history`."""

import click

from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.output import note, show, show_json, table
from penstock.cli.pipeline_results import COUNTS, rows_of
from penstock.cli.pipeline_session import OnSpark, on_spark


@click.command(
    epilog=examples(
        "penstock pipeline run history --from ./archive",
        "penstock pipeline run history --from ./archive orders"
        ' --sql "select date, count(*) from history group by date order by date"',
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--from", "path", required=True, metavar="PATH", help="The archive.")
@click.option("--sql", "query", metavar="QUERY", help="A query over the view `history`, instead of counts.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows to print at most."
)
@json_option
@on_spark
def history(
    where: OnSpark, topics: tuple[str, ...], path: str, query: str | None, limit: int, as_json: bool
) -> None:
    """Query an archive and what came since as one table, without gap or overlap.

    Columns: key, value, topic, partition, offset, timestamp, timestampType, headers, date, and source, which is
    "archive" or "live". Without --sql it counts them.
    """
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
        answer = spark.sql(query or COUNTS)
        names, rows, more = rows_of(answer, limit)
    if as_json:
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        show(
            table(
                *names, rows=rows, numbers=("partition", "records", "first", "last") if query is None else ()
            )
        )
    if more:
        note(f"only the first {limit:,} rows; --limit shows more")
