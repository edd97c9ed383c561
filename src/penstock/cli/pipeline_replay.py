"""`penstock pipeline run replay`."""

from datetime import UTC, datetime

import click

from penstock.cli.connection import json_option
from penstock.cli.help import examples
from penstock.cli.pipeline_schedule import finish
from penstock.cli.pipeline_session import OnSpark, on_spark


@click.command(
    epilog=examples(
        "penstock pipeline run replay --from ./archive orders --to-topic orders-again",
        "penstock pipeline run replay --from ./archive --suffix .replayed --from-time 2026-01-31T08:00:00Z",
        "penstock pipeline run replay --from ./archive orders --append",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--from", "path", required=True, metavar="PATH", help="The archive.")
@click.option("--to-topic", metavar="NAME", help="Another name for the one topic that is replayed.")
@click.option("--suffix", default="", metavar="TEXT", help="What is put after each topic's name.")
@click.option("--from-time", metavar="TIME", help="Records at or after it (ISO 8601, or ms since 1970).")
@click.option("--to-time", metavar="TIME", help="Records before it.")
@click.option("--from-offset", type=click.IntRange(min=0), help="Records at or after it, in each partition.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Records before it.")
@click.option("--append", is_flag=True, help="Also into topics that have records already.")
@json_option
@on_spark
def replay(
    where: OnSpark,
    topics: tuple[str, ...],
    path: str,
    to_topic: str | None,
    suffix: str,
    from_time: str | None,
    to_time: str | None,
    from_offset: int | None,
    to_offset: int | None,
    append: bool,
    as_json: bool,
) -> None:
    """Write an archive's records back to topics: same partitions, order, keys, headers and timestamps.

    Topics that do not exist are created with as many partitions as there were, and keep records for ever.
    """
    times = parse_time("--from-time", from_time), parse_time("--to-time", to_time)
    with where.session("replay") as spark:
        from penstock.spark import Selection
        from penstock.spark import replay as run_replay

        wish = Selection(from_time=times[0], to_time=times[1], from_offset=from_offset, to_offset=to_offset)
        done = run_replay(
            spark,
            path,
            topics or None,
            bootstrap_servers=where.bootstrap,
            to_topic=to_topic,
            suffix=suffix,
            selection=wish,
            append=append,
            options=where.options,
        )
    result = {"topics": dict(done.topics), "created": list(done.created), "rows": done.rows}
    count = "the selected records" if done.rows is None else f"{done.rows:,} records"
    finish(as_json, result, f"replayed {count} to {', '.join(done.topics.values())}")


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
