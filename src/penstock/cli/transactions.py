"""`penstock transactions`: list, describe and abort.

It speaks Kafka's protocol, so it works with any broker that has transactions.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from penstock.cli.common_options import json_option
from penstock.cli.connection import REQUEST_TIMEOUT_S, Connection, connects
from penstock.cli.help import examples
from penstock.cli.login import security_of
from penstock.cli.output import facts_table, note, show, show_facts, show_json
from penstock.cli.parameters import Duration, in_words, rounded
from penstock.cli.problem import Problem
from penstock.cli.topics import confirm
from penstock.client.errors import ClientError, Refused
from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.transactions import (
    ENDING,
    Described,
    Filters,
    OpenOnPartition,
    TransactionAdmin,
)
from penstock.errors import ErrorCode
from penstock.types import TopicPartition

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
ID_COLUMNS = ("transactional id=transactional_id", "coordinator", "producer id=producer_id", "state")
OPEN_COLUMNS = (
    "topic",
    "partition",
    "start offset=start_offset",
    "producer id=producer_id",
    "epoch=producer_epoch",
    "last write=last_write",
    "transactional id=transactional_id",
    "hanging",
)
HINTS = {
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`penstock transactions list` shows the ids that there are",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "--id-pattern is a regular expression of RE2 for the whole id: 'billing-.*'",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old for this command or for one of its filters",
}

Row = dict[str, Any]


@click.group(
    epilog=examples(
        "penstock transactions list --state ongoing --longer-than 10m",
        "penstock transactions describe billing-1",
        "penstock transactions abort billing-1",
    )
)
def transactions() -> None:
    """List, describe and abort transactions; find hanging ones."""


@contextmanager
def _admin(connection: Connection) -> Iterator[tuple[TransactionAdmin, Cluster]]:
    """The client, whose errors become Problems."""
    connection.check_reachable()
    timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
    settings = ClientSettings(
        bootstrap_servers=connection.servers,
        client_id="penstock-cli",
        request_timeout_ms=timeout_ms,
        retry_for_ms=timeout_ms,
        security=security_of(connection.settings).settings,
    )
    try:
        with Cluster(settings) as cluster:
            yield TransactionAdmin(cluster), cluster
    except ClientError as failure:
        hint = HINTS.get(failure.code, "") if isinstance(failure, Refused) else ""
        raise Problem(str(failure), hint) from None


# --- list


@transactions.command(
    "list",
    epilog=examples(
        "penstock transactions list",
        "penstock transactions list --state ongoing --longer-than 10m",
        "penstock transactions list --id-pattern 'billing-.*' --json",
        "penstock transactions list --topic orders",
    ),
)
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
              help="Only ids in this state, as often as needed.")  # fmt: skip
@click.option("--longer-than", type=Duration(), metavar="TIME",
              help="Only transactions that have been open for longer: 90s, 15m, 2h.")  # fmt: skip
@click.option("--producer-id", "producer_ids", multiple=True, type=click.IntRange(min=0),
              help="Only ids with this producer id, as often as needed.")  # fmt: skip
@click.option(
    "--id-pattern", metavar="REGEX", help="Only ids that this regular expression matches as a whole."
)
@click.option(
    "--topic", metavar="NAME", help="Instead of ids, the transactions that are open in this topic's log."
)
@json_option
@connects
def list_transactions(
    connection: Connection,
    states: tuple[str, ...],
    longer_than: int | None,
    producer_ids: tuple[int, ...],
    id_pattern: str | None,
    topic: str | None,
    as_json: bool,
) -> None:
    """List transactional ids, or with --topic the transactions that are open in a topic.

    A transaction of --topic is hanging if no coordinator knows it: `abort --topic` ends it. You must be allowed to
    see all transactional ids, or those of others seem to hang.
    """
    filters = Filters(states, producer_ids, -1 if longer_than is None else longer_than, id_pattern)
    if topic is not None and filters != Filters():
        raise click.UsageError("--topic cannot be combined with a filter of ids")
    with _admin(connection) as (admin, cluster):
        if topic is not None:
            rows = [_open_row(one) for one in admin.open_on(_partitions(cluster, topic))]
            _show_open(rows, as_json, topic)
            return
        found = [one._asdict() for one in admin.find(filters)]
    show_facts(found, as_json, *ID_COLUMNS, nothing="no transactional ids")


def _partitions(cluster: Cluster, name: str) -> list[TopicPartition]:
    topic = cluster.topics([name]).get(name)
    if topic is None:
        raise Problem(f"there is no topic {name}", "`penstock topics list` shows what there is")
    return [TopicPartition(name, index) for index in topic.partitions]


def _open_row(one: OpenOnPartition) -> Row:
    return {
        "topic": one.tp.topic,
        "partition": one.tp.partition,
        "start_offset": one.start_offset,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "last_write_ms": one.last_write_ms,
        "transactional_id": one.transactional_id,
        "hanging": one.transactional_id is None,
    }


def _show_open(rows: list[Row], as_json: bool, topic: str) -> None:
    shown = rows if as_json else [_with_age(row) for row in rows]
    show_facts(shown, as_json, *OPEN_COLUMNS, nothing=f"no transaction is open in {topic}")
    if any(row["hanging"] for row in rows):
        note(
            "hanging: open in the log, and no coordinator will end it; `penstock transactions abort --topic` does"
        )


def _with_age(row: Row) -> Row:
    """For people. Clocks of producers may be ahead."""
    written_ms = row["last_write_ms"]
    age = "-" if written_ms < 0 else f"{rounded(max(0, _now_ms() - written_ms))} ago"
    return {**row, "last_write": age}


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- describe


@transactions.command(
    epilog=examples(
        "penstock transactions describe billing-1",
        "penstock transactions describe billing-1 billing-2 --json",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@json_option
@connects
def describe(connection: Connection, names: tuple[str, ...], as_json: bool) -> None:
    """Show the state of transactional ids: producer, timeout, how long the transaction is open, its partitions."""
    with _admin(connection) as (admin, _):
        found = [admin.describe(name) for name in names]
    if as_json:
        show_json([_described_row(one) for one in found])
        return
    for one in found:
        _show_described(one)


def _described_row(one: Described) -> Row:
    return {
        **one._asdict(),
        "start_ms": one.start_ms if one.is_open else None,
        "open_ms": _open_ms(one) if one.is_open else None,
        "partitions": [tp._asdict() for tp in one.partitions],
    }


def _open_ms(one: Described) -> int:
    return max(0, _now_ms() - one.start_ms)


def _show_described(one: Described) -> None:
    age = f", open for {rounded(_open_ms(one))}" if one.is_open else ""
    show(
        f"{one.transactional_id}  ({one.state}{age}, timeout {in_words(one.timeout_ms)}, "
        f"coordinator {one.coordinator})",
        f"producer id {one.producer_id}, epoch {one.producer_epoch}",
    )
    if one.partitions:
        show(facts_table([tp._asdict() for tp in one.partitions], "topic", "partition"))
    show("")


# --- abort


@transactions.command(
    epilog=examples(
        "penstock transactions abort billing-1",
        "penstock transactions abort billing-1 --yes",
        "penstock transactions abort --topic orders --partition 0 --start-offset 1734",
    )
)
@click.argument("name", required=False, metavar="[ID]")
@click.option("--topic", metavar="NAME", help="The topic in which a transaction hangs.")
@click.option("--partition", type=click.IntRange(min=0), help="Its partition.")
@click.option("--start-offset", type=click.IntRange(min=0), help="Its start, as `list --topic` shows it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connects
def abort(
    connection: Connection,
    name: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
) -> None:
    """Abort the open transaction of an ID, or a hanging one by its place in the log.

    The coordinator of the ID aborts. It also fences the producer, which must start again. For a hanging transaction the
    partition's leader writes an abort marker: do this only when the producer is gone.
    """
    place = (topic, partition, start_offset)
    if (name is None) == (place == (None, None, None)):
        raise click.UsageError("which one? expected an ID, or --topic, --partition and --start-offset")
    with _admin(connection) as (admin, _):
        if name is not None:
            _abort_id(admin, name, yes)
            return
        if topic is None or partition is None or start_offset is None:
            raise click.UsageError("--topic, --partition and --start-offset belong together")
        _abort_hanging(admin, TopicPartition(topic, partition), start_offset, yes)


def _abort_id(admin: TransactionAdmin, name: str, yes: bool) -> None:
    found = _abortable(admin.describe(name))
    if not yes:
        _show_described(found)
        confirm(f"abort this transaction of {name}, and fence its producer?")
        now = _abortable(admin.describe(name))
        if (now.start_ms, now.producer_epoch) != (found.start_ms, found.producer_epoch):
            raise Problem(f"the transaction has ended meanwhile, and {name} has begun another one")
    admin.abort(found)
    note(f"aborted the transaction of {name}")


def _abortable(found: Described) -> Described:
    if found.state in ENDING:
        raise Problem(
            f"the transaction of {found.transactional_id} is being ended: {found.state}",
            "its outcome cannot change; `penstock transactions describe` shows the partitions whose marker is "
            "missing, and `penstock cluster status` whether they have a leader",
        )
    if not found.is_open:
        raise Problem(f"{found.transactional_id} has no open transaction: {found.state}")
    return found


def _abort_hanging(admin: TransactionAdmin, tp: TopicPartition, start_offset: int, yes: bool) -> None:
    found = next((one for one in admin.open_on([tp]) if one.start_offset == start_offset), None)
    if found is None:
        raise Problem(
            f"no transaction that began at offset {start_offset} is open in {tp}",
            f"`penstock transactions list --topic {tp.topic}` shows those that are",
        )
    if found.transactional_id is not None:
        raise Problem(
            f"this transaction does not hang: {found.transactional_id} has it open",
            f"`penstock transactions abort {found.transactional_id}` lets its coordinator abort it",
        )
    if not yes:
        show(facts_table([_with_age(_open_row(found))], *OPEN_COLUMNS))
        confirm(f"write an abort marker to {tp}?")
    admin.end_hanging(found)
    note(f"aborted the transaction of producer {found.producer_id} in {tp}")
