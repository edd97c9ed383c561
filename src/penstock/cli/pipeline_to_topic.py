"""`penstock pipeline run dedupe | enrich | mirror | reprocess`: pipelines whose result is a topic."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.key_values import key_values_or_files
from penstock.cli.pipeline_running import check_when, finish, finish_stream, scheduled, stream
from penstock.cli.pipeline_selection import selected, selection_of
from penstock.cli.pipeline_session import OnSpark, on_spark
from penstock.cli.pipeline_tables import catalog_option


# fmt: off
@click.command(
    epilog=examples(
        "penstock pipeline run dedupe orders --id order_id --to-topic orders-once --checkpoint ./state",
        "penstock pipeline run dedupe orders --watermark '1 hour' --to-topic once --checkpoint ./state --every 10s",
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--id", "id_field", metavar="FIELD",
              help="The field of JSON values that is the id.  [default: the record's key]")
@click.option("--watermark", default="10 minutes", show_default=True, metavar="TIME",
              help="How long an id is remembered, at least.")
@click.option("--time", metavar="FIELD", help="The event's time.  [default: the record's timestamp]")
@click.option("--to-topic", required=True, metavar="NAME", help="Where the records go.")
@click.option("--checkpoint", required=True, metavar="PATH", help="Where ids and offsets are kept.")
@scheduled
@json_option
@on_spark
def dedupe(
    where: OnSpark, topics: tuple[str, ...], id_field: str | None, watermark: str, time: str | None, to_topic: str,
    checkpoint: str, every: str | None, once: bool, as_json: bool,
) -> None:
    """Write topics to a topic without records whose id came before, each record once, in order."""
    # fmt: on
    check_when(every, once)
    with stream(where, "dedupe", every, as_json) as (spark, schedule):
        from penstock.spark import Deduplication
        from penstock.spark import dedupe as run_dedupe

        done = run_dedupe(
            spark,
            topics,
            Deduplication(id=id_field, watermark=watermark, time=time),
            bootstrap_servers=where.bootstrap,
            to_topic=to_topic,
            checkpoint=checkpoint,
            options=where.options,
            schedule=schedule,
        )
    finish_stream(as_json, done)


# fmt: off
@click.command(
    epilog=examples(
        "penstock pipeline run enrich orders --table customers --key customer.id --to-topic full --checkpoint ./state",
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--table", required=True, metavar="TOPIC", help="A compacted topic: the newest value of each key counts.")
@click.option("--key", metavar="FIELD",
              help="The field of JSON values that has the table's key.  [default: the record's key]")
@click.option("--field", metavar="NAME", help="The name of the new field.  [default: the table's]")
@click.option("--required", is_flag=True, help="Leave out records that have no row in the table.")
@click.option("--to-topic", required=True, metavar="NAME", help="Where the records go.")
@click.option("--checkpoint", required=True, metavar="PATH", help="Where offsets are kept.")
@scheduled
@json_option
@on_spark
def enrich(
    where: OnSpark, topics: tuple[str, ...], to_topic: str, checkpoint: str, every: str | None, once: bool,
    as_json: bool, **how: Any,
) -> None:
    """Write topics to a topic, each record with the value that a compacted topic has for its key."""
    # fmt: on
    check_when(every, once)
    with stream(where, "enrich", every, as_json) as (spark, schedule):
        from penstock.spark import Enrichment
        from penstock.spark import enrich as run_enrich

        done = run_enrich(
            spark,
            topics,
            Enrichment(**how),
            bootstrap_servers=where.bootstrap,
            to_topic=to_topic,
            checkpoint=checkpoint,
            options=where.options,
            schedule=schedule,
        )
    finish_stream(as_json, done)


# fmt: off
@click.command(
    epilog=examples(
        "penstock pipeline run mirror orders payments --from old-kafka:9092 --checkpoint ./mirror --every 10s",
        "penstock pipeline run mirror orders --from old-kafka:9092 --group billing --checkpoint ./mirror",
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--from", "from_servers", required=True, metavar="HOST:PORT", help="Brokers of the other cluster.")
@click.option("--from-option", "from_options", multiple=True, metavar="NAME=VALUE|@FILE",
              help="An option for reading there, or a file with one in a line: kafka.sasl.jaas.config=...")
@click.option("--prefix", default="", metavar="TEXT", help="Before each topic's name here.")
@click.option("--group", "groups", multiple=True, metavar="NAME",
              help="A consumer group whose progress there is translated and committed here.")
@click.option("--checkpoint", required=True, metavar="PATH", help="Where offsets are kept.")
@scheduled
@json_option
@on_spark
def mirror(
    where: OnSpark, topics: tuple[str, ...], from_servers: str, from_options: tuple[str, ...], prefix: str,
    groups: tuple[str, ...], checkpoint: str, every: str | None, once: bool, as_json: bool,
) -> None:
    """Copy topics of another Kafka cluster to this one: same partitions, order, keys, headers and timestamps.

    -o is an option for writing here. No other program should write to the copies.
    """
    # fmt: on
    check_when(every, once)
    settings = key_values_or_files(from_options)
    with stream(where, "mirror", every, as_json) as (spark, schedule):
        from penstock.spark import mirror as run_mirror

        done = run_mirror(
            spark,
            topics,
            from_servers=from_servers,
            bootstrap_servers=where.bootstrap,
            checkpoint=checkpoint,
            prefix=prefix,
            groups=groups,
            from_options=settings,
            options=where.options,
            schedule=schedule,
        )
    moved = {group: dict(offsets) for group, offsets in done.groups.items()}
    result = {"rows": done.totals.rows, "topics": dict(done.topics), "groups": moved}
    told = f"; committed offsets of {', '.join(sorted(moved))}" if moved else ""
    finish(as_json, result, f"copied {done.totals.rows:,} records to {', '.join(done.topics.values())}{told}")


# fmt: off
@click.command(
    epilog=examples(
        "penstock pipeline run reprocess --from ./lake --function fixes:add_country orders --to-topic orders-2",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--from", "path", required=True, metavar="PATH", help="The archive.")
@catalog_option
@click.option("--function", "name", required=True, metavar="MODULE:NAME",
              help="A function from DataFrame to DataFrame; its module is found in the current folder, too.")
@click.option("--to-topic", required=True, metavar="NAME", help="Where the results go.")
@selected
@click.option("--append", is_flag=True, help="Also into a topic that has records already.")
@click.option("--checkpoint", metavar="PATH",
              help="Where the run keeps how far it has come.  [default: _replays in the archive]")
@json_option
@on_spark
def reprocess(
    where: OnSpark, topics: tuple[str, ...], path: str, catalog: str | None, name: str, to_topic: str,
    append: bool, checkpoint: str | None, as_json: bool, **bounds: Any,
) -> None:
    """Write what a function makes of an archive's records to a topic, exactly once.

    A run that was interrupted continues when you run the same command again.
    """
    # fmt: on
    wanted = selection_of(bounds)
    function = _function(name)
    with stream(where, "reprocess", None, as_json) as (spark, schedule):
        from penstock.spark import Selection
        from penstock.spark import reprocess as run_reprocess

        done = run_reprocess(
            spark,
            path,
            function,
            topics or None,
            bootstrap_servers=where.bootstrap,
            to_topic=to_topic,
            selection=Selection(**wanted),
            append=append,
            options=where.options,
            checkpoint=checkpoint,
            schedule=schedule,
            catalog=catalog,
        )
    result = {"rows": done.rows, "created": list(done.created), "resumed": done.resumed, "finished": done.finished}
    earlier = ", those of the interrupted run included" if done.resumed else ""
    rest = "" if done.finished else "; stopped, and the same command continues"
    finish(as_json, result, f"wrote {done.rows:,} records to {to_topic}{earlier}{rest}")


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise click.BadParameter(f"{name!r} cannot be found: {problem}", param_hint="--function") from None
    if not callable(found):
        raise click.BadParameter(f"{name!r} is no function", param_hint="--function")
    function: Callable[..., Any] = found
    return function
