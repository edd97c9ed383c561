"""`penstock groups`: list, describe, reset and delete."""

from typing import Any

import click
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.cli import group_facts, queue_consumers, share_groups
from penstock.cli.common_options import json_option
from penstock.cli.connection import REQUEST_TIMEOUT_S, Connection, connects
from penstock.cli.help import examples
from penstock.cli.kafka_problems import explain
from penstock.cli.output import facts_table, note, show, show_facts, show_json
from penstock.cli.parameters import moment_ms
from penstock.cli.problem import Problem
from penstock.cli.queues_show import show_consumers
from penstock.cli.topic_facts import Partitions, offsets_at, partition_numbers
from penstock.cli.topics import confirm


@click.group(
    epilog=examples(
        "penstock groups list",
        "penstock groups describe billing",
        "penstock groups reset billing --topic orders --to-earliest --execute",
    )
)
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


@groups.command("list", epilog=examples("penstock groups list", "penstock groups list --json"))
@json_option
@connects
def list_groups(connection: Connection, as_json: bool) -> None:
    """List groups, their state, their type and how many consumers they have: share groups are queues."""
    admin = connection.admin()
    answer = connection.wait(admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S), "listing groups")
    if answer.errors:
        raise explain(answer.errors[0], "listing groups", connection.bootstrap)
    shares = share_groups.find(connection, admin)
    found = [
        {"group": group.group_id, "state": group_facts.state_of(group), "type": group.type.name.lower()}
        for group in answer.valid
    ]
    found += [
        {"group": name, "state": state, "type": share_groups.SHARE} for name, state in shares.states.items()
    ]
    found.sort(key=lambda group: group["group"])
    counts = group_facts.member_counts(connection, admin, [group.group_id for group in answer.valid])
    if shares.states:
        counts |= queue_consumers.counts(connection)
    rows = [{**group, "consumers": counts.get(group["group"])} for group in found]
    if shares.doubt:
        note(f"share groups may be missing: {shares.doubt}")
    show_facts(rows, as_json, "group", "state", "type", "consumers", nothing="no groups")


@groups.command(
    epilog=examples("penstock groups describe billing", "penstock groups describe billing --json")
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@connects
def describe(connection: Connection, names: tuple[str, ...], as_json: bool) -> None:
    """Show groups' members, and how far behind they are on every partition; of queues, their consumers."""
    found = [group_facts.describe(connection, name) for name in names]
    if as_json:
        show_json(found)
        return
    for group in found:
        _show_group(group)


def _show_group(group: dict[str, Any]) -> None:
    if group["type"] == share_groups.SHARE:
        show(f"{group['group']}  ({group['state']}, a queue: `penstock queues describe` shows its messages)")
        show_consumers(group)
        show("")
        return
    assignor = f", assignor {group['assignor']}" if group["assignor"] else ""
    show(f"{group['group']}  ({group['state']}{assignor}, coordinator {group['coordinator']})")
    if group["members"]:
        members = [{**member, "held": _held(member["partitions"])} for member in group["members"]]
        show("", facts_table(members, "member=member_id", "client=client_id", "host", "partitions=held"))
    if group["offsets"]:
        columns = ("topic", "partition", "committed", "end=end_offset", "lag", "member=member_id")
        show("", facts_table(group["offsets"], *columns))
    show("")


def _held(partitions: list[list[Any]]) -> str:
    return " ".join(f"{topic}-{partition}" for topic, partition in partitions) or "-"


@groups.command(
    epilog=examples(
        "penstock groups reset billing --topic orders --to-earliest           # shows what would change",
        "penstock groups reset billing --topic orders --to-earliest --execute",
        "penstock groups reset billing --all-topics --to-timestamp 2026-01-31T08:00:00Z --execute",
        "penstock groups reset billing --topic orders:3 --to-offset 1200 --execute",
    )
)
@click.argument("name")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION]",
              help="Which offsets to move, as often as needed.")  # fmt: skip
@click.option("--all-topics", is_flag=True, help="All partitions that the group has offsets for.")
@click.option("--to-earliest", "target", flag_value="earliest", help="To the oldest message.")
@click.option("--to-latest", "target", flag_value="latest", help="To the end: skip all there is.")
@click.option("--to-offset", type=click.IntRange(min=0),
              help="To this offset, or the nearest that the partition has.")  # fmt: skip
@click.option("--to-timestamp", metavar="TIME",
              help="To the first message at or after TIME (ISO 8601, or ms since 1970).")  # fmt: skip
@click.option("--new-group", is_flag=True, help="Create the group if it does not exist.")
@click.option("--execute/--dry-run", default=False, help="Do it, or only show it (the default).")
@json_option
@connects
def reset(
    connection: Connection,
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    target: str | None,
    to_offset: int | None,
    to_timestamp: str | None,
    new_group: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Move a group's offsets. The group must have no members while this happens.

    A group that does not exist is refused, since its name is probably mistyped, unless --new-group is given.
    """
    if sum(given is not None for given in (target, to_offset, to_timestamp)) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-offset, --to-timestamp")
    if bool(topics) == all_topics:
        raise click.UsageError("give --topic TOPIC[:PARTITION] or --all-topics")
    timestamp_ms = None if to_timestamp is None else moment_ms("--to-timestamp", to_timestamp)
    admin = connection.admin()
    before = group_facts.committed(connection, admin, name)
    if not new_group:
        group_facts.existing(connection, admin, name, before)
    places = list(before) if all_topics else _places(connection, admin, topics)
    if not places:
        raise Problem(f"group {name} has no offsets", "name topics with --topic")
    after = _targets(connection, admin, places, target, to_offset, timestamp_ms)
    if execute:
        group_facts.move(connection, admin, name, after)
    _show_reset(before, after, execute, as_json)


def _places(connection: Connection, admin: AdminClient, topics: tuple[str, ...]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for chosen in topics:
        topic, colon, partition = chosen.partition(":")
        existing = partition_numbers(connection, admin, topic)
        if colon and (not partition.isdigit() or int(partition) not in existing):
            raise click.UsageError(f"--topic {chosen}: {topic} has partitions 0 to {len(existing) - 1}")
        found += [(topic, number) for number in ([int(partition)] if colon else existing)]
    return found


def _targets(
    connection: Connection,
    admin: AdminClient,
    places: list[tuple[str, int]],
    target: str | None,
    to_offset: int | None,
    timestamp_ms: int | None,
) -> Partitions:
    """The new offset of each partition, within its start and end."""
    starts = offsets_at(connection, admin, places, OffsetSpec.earliest())
    if target == "earliest":
        return starts
    ends = offsets_at(connection, admin, places, OffsetSpec.latest())
    if to_offset is not None:
        return {place: _within(place, to_offset, starts[place], ends[place]) for place in places}
    if timestamp_ms is not None:
        found = offsets_at(connection, admin, places, OffsetSpec.for_timestamp(timestamp_ms))
        return {place: found[place] if found[place] >= 0 else ends[place] for place in places}
    return ends


def _within(place: tuple[str, int], wanted: int, start: int, end: int) -> int:
    """The wanted offset, or the nearest one of the partition, with a note."""
    nearest = min(max(wanted, start), end)
    if nearest != wanted:
        note(f"{place[0]}-{place[1]} has offsets {start:,} to {end:,}: {nearest:,} instead of {wanted:,}")
    return nearest


def _show_reset(before: Partitions, after: Partitions, executed: bool, as_json: bool) -> None:
    moves = [
        {"topic": place[0], "partition": place[1], "from": before.get(place), "to": offset}
        for place, offset in sorted(after.items())
    ]
    if as_json:
        show_json({"executed": executed, "moves": moves})
        return
    show(facts_table(moves, "topic", "partition", "from", "to"))
    if not executed:
        note("nothing was changed; add --execute to do it")


@groups.command(
    epilog=examples("penstock groups delete billing", "penstock groups delete billing shipping --yes")
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connects
def delete(connection: Connection, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups and their offsets. Messages stay."""
    if not yes:
        confirm(f"delete the offsets of {', '.join(names)}?")
    admin = connection.admin()  # held: its requests die with it
    for name, future in admin.delete_consumer_groups(list(names)).items():
        connection.wait(future, f"deleting group {name}")
        note(f"deleted {name}")
