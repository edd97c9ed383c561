"""`penstock topics`: create, list, describe, alter and delete."""

import re
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

import click
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from penstock.cli import topic_facts
from penstock.cli.common_options import json_option
from penstock.cli.connection import Connection, connects
from penstock.cli.help import examples
from penstock.cli.key_values import key_values
from penstock.cli.output import facts_table, note, show, show_facts, show_json, table
from penstock.cli.problem import Problem
from penstock.nearest import nearest

BROKERS_CHOICE = -1
"""CreateTopics takes it as "as many as the broker's configuration says"."""

T = TypeVar("T")


@click.group(
    epilog=examples(
        "penstock topics create orders --partitions 6",
        "penstock topics list",
        "penstock topics describe orders",
    )
)
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


@topics.command(
    epilog=examples(
        "penstock topics create orders",
        "penstock topics create clicks --partitions 12 --config retention.ms=86400000",
        "penstock topics create users --config cleanup.policy=compact --if-not-exists",
        "penstock topics create orders --json | jq -r '.[0].topic_id'",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=click.IntRange(min=1),
              help="How many partitions; the broker's default if left out.")  # fmt: skip
@click.option("-r", "--replication-factor", type=click.IntRange(min=1),
              help="How many replicas; the broker's default if left out.")  # fmt: skip
@click.option("-c", "--config", "configs", multiple=True, metavar="NAME=VALUE",
              help="A topic config, as often as needed.")  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="Succeed also if the topic already exists.")
@json_option
@connects
def create(
    connection: Connection,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create topics."""
    wanted = [
        NewTopic(
            name,
            num_partitions=partitions or BROKERS_CHOICE,
            replication_factor=replication_factor or BROKERS_CHOICE,
            config=key_values(configs),
        )
        for name in names
    ]
    admin = connection.admin()  # held: its requests die with it
    fine = KafkaError.TOPIC_ALREADY_EXISTS if if_not_exists else None
    created: list[bool] = []
    for topic in wanted:
        asked = partial(_only, admin.create_topics, topic)
        made = connection.change(asked, f"creating {topic.topic}", tolerated=fine)
        created.append(made)
        note(f"created {topic.topic}" if made else f"{topic.topic} exists already")
    if as_json:
        found = [topic_facts.describe(connection, name, all_configs=False) for name in names]
        show_json([{**facts, "created": made} for facts, made in zip(found, created, strict=True)])


def _only(ask: Callable[[list[T]], dict[Any, Any]], what: T) -> Any:
    """The future of a request for one thing. One at a time, because a request that was refused for lack of a controller
    is repeated, and one that succeeded must not be."""
    [future] = ask([what]).values()
    return future


@topics.command(
    "list",
    epilog=examples(
        "penstock topics list",
        "penstock topics list 'order.*' --json",
        "penstock topics list --internal",
    ),
)
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="Also the broker's own topics.")
@json_option
@connects
def list_topics(connection: Connection, pattern: str | None, internal: bool, as_json: bool) -> None:
    """List topics, all or those whose whole name matches the regular expression PATTERN."""
    matches = _matcher(pattern)
    facts = [
        {"topic": topic, "partitions": len(held.partitions), "replicas": _replicas(held.partitions.values())}
        for topic, held in sorted(topic_facts.all_topics(connection).items())
        if matches(topic) and (internal or not topic.startswith("__"))
    ]
    nothing = "no topics" if pattern is None else f"no topic matches {pattern!r}"
    show_facts(facts, as_json, "topic", "partitions", "replicas", nothing=nothing)


def _matcher(pattern: str | None) -> Any:
    try:
        compiled = re.compile(pattern or ".*")
    except re.error as failure:
        raise click.BadParameter(f"{pattern!r} is not a regular expression: {failure}") from None
    return compiled.fullmatch


def _replicas(partitions: Iterable[Any]) -> int:
    return max((len(partition.replicas) for partition in partitions), default=0)


@topics.command(
    epilog=examples("penstock topics describe orders", "penstock topics describe orders users --json")
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--all-configs", is_flag=True, help="Also the configs that have their default value.")
@json_option
@connects
def describe(connection: Connection, names: tuple[str, ...], all_configs: bool, as_json: bool) -> None:
    """Show topics' partitions, offsets and configs."""
    found = [topic_facts.describe(connection, name, all_configs=all_configs) for name in names]
    if as_json:
        show_json(found)
        return
    for topic in found:
        _show_topic(topic)


def _show_topic(topic: dict[str, Any]) -> None:
    offsets = ("start=start_offset", "end=end_offset", "messages")
    partitions = facts_table(topic["partitions"], "partition", "leader", "replicas", "in sync=isr", *offsets)
    show(f"{topic['topic']}  (id {topic['topic_id']})", partitions)
    if topic["configs"]:
        show("", table("config", "value", rows=sorted(topic["configs"].items())))
    show("")


@topics.command(
    epilog=examples(
        "penstock topics alter orders --partitions 12",
        "penstock topics alter orders --set retention.ms=3600000 --unset cleanup.policy",
    )
)
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1),
              help="The new number of partitions; it can only grow.")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE",
              help="Change a config, as often as needed.")  # fmt: skip
@click.option("--unset", "removals", multiple=True, metavar="NAME", help="Return a config to its default.")
@connects
def alter(
    connection: Connection,
    name: str,
    partitions: int | None,
    changes: tuple[str, ...],
    removals: tuple[str, ...],
) -> None:
    """Change a topic's configs or its number of partitions."""
    if partitions is None and not changes and not removals:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset")
    entries = [
        *(_entry(key, value, AlterConfigOpType.SET) for key, value in key_values(changes).items()),
        *(_entry(key, None, AlterConfigOpType.DELETE) for key in removals),
    ]
    admin = connection.admin()
    if removals:
        _check_known(name, removals, topic_facts.config_names(connection, admin, name))
    if entries:
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        asked = partial(_only, admin.incremental_alter_configs, resource)
        connection.change(asked, f"changing the configs of {name}")
    if partitions is not None:
        asked = partial(_only, admin.create_partitions, NewPartitions(name, partitions))
        connection.change(asked, f"adding partitions to {name}")
    note(f"changed {name}")


def _check_known(topic: str, removals: Iterable[str], known: Collection[str]) -> None:
    """Brokers accept the removal of unknown configs, for tools that clean up; on the command line it is a typing
    error."""
    from penstock.config import TOPIC_CONFIGS  # only `alter` needs it

    for name in removals:
        if name not in known and name not in TOPIC_CONFIGS:
            hint = f"`penstock topics describe {topic} --all-configs` shows what there is"
            raise Problem(f"--unset: unknown config {name}{nearest(name, known)}", hint)


def _entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


@topics.command(
    epilog=examples("penstock topics delete orders", "penstock topics delete orders clicks --yes --if-exists")
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="Succeed also if the topic does not exist.")
@connects
def delete(connection: Connection, names: tuple[str, ...], yes: bool, if_exists: bool) -> None:
    """Delete topics and all of their messages."""
    if not yes:
        confirm(f"delete {', '.join(names)} and every message in it?")
    admin = connection.admin()  # held: its requests die with it
    fine = KafkaError.UNKNOWN_TOPIC_OR_PART if if_exists else None
    for name in names:
        asked = partial(_only, admin.delete_topics, name)
        gone = connection.change(asked, f"deleting {name}", tolerated=fine)
        note(f"deleted {name}" if gone else f"{name} is not there")


def confirm(question: str) -> None:
    """Asks the person for confirmation; a script must pass --yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("this needs a confirmation, and stdin is not a terminal: add --yes")
    click.confirm(question, abort=True, err=True)
