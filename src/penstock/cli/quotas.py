"""`penstock quotas`: list, set and remove quotas."""

import math
from collections.abc import Mapping
from typing import Any

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, QuotasApi, asks
from penstock.cli.key_values import key_values
from penstock.cli.output import counted, facts_table, note, show, show_facts, show_json
from penstock.cli.topics import confirm
from penstock.security.quotas import DEFAULT_ENTITY, QuotaKind

COLUMNS = ("user", "client id=client_id", "ip", "quotas")
KINDS = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""The fields of the HTTP API by the names that Kafka has for kinds of entities."""


@click.group(
    epilog=examples(
        "penstock quotas set --for-user alice producer_byte_rate=1048576",
        "penstock quotas list",
        "penstock quotas remove --for-user alice",
    )
)
def quotas() -> None:
    """List, set and remove quotas. They are Kafka's, and count on each node.

    \b
    producer_byte_rate         bytes a second that clients may write
    consumer_byte_rate         bytes a second that they may read
    request_percentage         how long their requests may keep a node busy: percent of a second
    controller_mutation_rate   partitions a second that they may create or delete
    connection_creation_rate   connections a second, with --for-ip
    """


def _entity_options(command: Any) -> Any:
    """For whom a quota is. Not --user: that is the user who runs the command."""
    for option in reversed(
        (
            click.option("--for-user", metavar="NAME", help="Clients of this user."),
            click.option("--for-client-id", metavar="ID", help="Clients with this client id."),
            click.option("--for-ip", metavar="ADDRESS", help="Connections from this address."),
            click.option("--default", "defaults", multiple=True, type=click.Choice(list(KINDS)),
                         help="All users, client ids or addresses without a quota of their own."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def _entity(
    for_user: str | None, for_client_id: str | None, for_ip: str | None, defaults: tuple[str, ...]
) -> Facts:
    found = {"user": for_user, "client_id": for_client_id, "ip": for_ip}
    for kind in defaults:
        if found[KINDS[kind]] is not None:
            raise click.UsageError(f"--for-{kind} and --default {kind} exclude each other")
        found[KINDS[kind]] = DEFAULT_ENTITY
    return {field: name for field, name in found.items() if name is not None}


def _one_entity(**options: Any) -> Facts:
    entity = _entity(**options)
    if not entity:
        raise click.UsageError("whose quota? --for-user, --for-client-id, --for-ip or --default says it")
    return entity


def _words(entity: Mapping[str, str]) -> str:
    return ", ".join(f"{kind} {entity[field]}" for kind, field in KINDS.items() if field in entity)


def _for_people(row: Facts) -> Facts:
    return {**row, "quotas": "\n".join(f"{name}={_digits(value)}" for name, value in row["quotas"].items())}


def _digits(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


@quotas.command(
    "list",
    epilog=examples(
        "penstock quotas list",
        "penstock quotas list --for-user alice",
        "penstock quotas list --default client-id --json",
    ),
)
@_entity_options
@json_option
@asks(QuotasApi)
def list_quotas(api: QuotasApi, as_json: bool, **options: Any) -> None:
    """List quotas, all or those that the options select."""
    found = api.get(**_entity(**options))["quotas"]
    rows = found if as_json else [_for_people(row) for row in found]
    show_facts(rows, as_json, *COLUMNS, nothing="no quotas")


@quotas.command(
    "set",
    epilog=examples(
        "penstock quotas set --for-user alice producer_byte_rate=1048576 consumer_byte_rate=2097152",
        "penstock quotas set --for-user alice --for-client-id importer request_percentage=20",
        "penstock quotas set --default client-id request_percentage=50",
        "penstock quotas set --for-ip 10.0.0.7 connection_creation_rate=10",
    ),
)
@_entity_options
@click.argument("values", nargs=-1, required=True, metavar="QUOTA=NUMBER...")
@json_option
@asks(QuotasApi)
def set_quotas(api: QuotasApi, values: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Set quotas of a user, a client id, both, or an address. Its other quotas stay."""
    entity = _one_entity(**options)
    made = api.patch(**entity, quotas=_numbers(key_values(values)))
    note(f"set {counted(len(values), 'quota')} of {_words(entity)}")
    if as_json:
        show_json(made)


def _numbers(given: Mapping[str, str]) -> dict[str, float]:
    return {_known(name): _number(name, text) for name, text in given.items()}


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise click.UsageError(f"{name}={text}: expected a number above 0")
    return number


def _known(name: str) -> str:
    if name not in list(QuotaKind):
        raise click.UsageError(f"there is no quota {name!r}: expected one of {', '.join(QuotaKind)}")
    return name


@quotas.command(
    epilog=examples(
        "penstock quotas remove --for-user alice",
        "penstock quotas remove --for-user alice producer_byte_rate --yes",
    )
)
@_entity_options
@click.argument("names", nargs=-1, metavar="[QUOTA...]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@asks(QuotasApi)
def remove(api: QuotasApi, names: tuple[str, ...], yes: bool, as_json: bool, **options: Any) -> None:
    """Remove quotas of exactly this user, client id, both, or address: these, or all, after showing them."""
    entity = _one_entity(**options)
    changes = {_known(name): None for name in names}
    if not yes:
        _confirm(api, entity, names)
    if names:
        left = api.patch(**entity, quotas=changes)
    else:
        left = {**api.remove(**entity), "quotas": {}}
    note(f"removed {', '.join(names) if names else 'all quotas'} of {_words(entity)}")
    if as_json:
        show_json(left)


def _confirm(api: QuotasApi, entity: Facts, names: tuple[str, ...]) -> None:
    found = [row for row in api.get(**entity)["quotas"] if _is_of(row, entity)]
    if found:
        show(facts_table([_for_people(row) for row in found], *COLUMNS))
        confirm(f"remove {', '.join(names) if names else 'these quotas'} of {_words(entity)}?")


def _is_of(row: Facts, entity: Facts) -> bool:
    """A list also has entities that name something more."""
    return all(row[field] == entity.get(field) for field in KINDS.values())
