"""`penstock queues reset`: moves a queue to another place of its topics."""

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import QueuesApi, asks
from penstock.cli.output import facts_table, note, show, show_json
from penstock.cli.parameters import moment_ms


@click.command(
    epilog=examples(
        "penstock queues reset mail --to-earliest                             # shows what would change",
        "penstock queues reset mail --to-earliest --execute                   # all messages are done again",
        "penstock queues reset mail --to-timestamp 2026-01-31T08:00:00Z --execute",
        "penstock queues reset mail --topic outbox --partition 3 --to-offset 1200 --execute",
    )
)
@click.argument("name")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Only of this one; repeatable.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only of this partition of it.")
@click.option("--to-earliest", "target", flag_value="earliest", help="To the oldest message.")
@click.option("--to-latest", "target", flag_value="latest", help="To the end: skip all there is.")
@click.option("--to-offset", type=click.IntRange(min=0),
              help="To this offset, or the nearest that the partition has.")  # fmt: skip
@click.option("--to-timestamp", metavar="TIME",
              help="To the first message at or after TIME (ISO 8601, or ms since 1970).")  # fmt: skip
@click.option("--execute/--dry-run", default=False, help="Do it, or only show it (the default).")
@json_option
@asks(QueuesApi)
def reset(
    api: QueuesApi,
    name: str,
    topics: tuple[str, ...],
    partition: int | None,
    target: str | None,
    to_offset: int | None,
    to_timestamp: str | None,
    execute: bool,
    as_json: bool,
) -> None:
    """Move a queue: messages before its new place are done, messages after it are delivered, also again.

    The queue must have no connected consumers while this happens.
    """
    if sum(given is not None for given in (target, to_offset, to_timestamp)) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-offset, --to-timestamp")
    done = api.post(
        name,
        "reset",
        topics=list(topics) or None,
        partition=partition,
        to=target,
        offset=to_offset,
        timestamp_ms=None if to_timestamp is None else moment_ms("--to-timestamp", to_timestamp),
        dry_run=not execute,
    )
    if as_json:
        show_json(done)
        return
    show(facts_table(done["partitions"], "topic", "partition", "from", "to"))
    if not execute:
        note("nothing was changed; add --execute to do it")
