"""`penstock acls`: add, list, remove and check access rules."""

from typing import Any

import click

from penstock.cli.access_words import (
    OPERATION_LIST,
    OPERATIONS,
    PRINCIPAL,
    RESOURCE_TYPE,
    check_name,
    new_pattern,
    operation,
    pattern,
    shown,
)
from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import AclsApi, Facts, asks
from penstock.cli.output import counted, facts_table, note, show, show_facts, show_json
from penstock.cli.topics import confirm

COLUMNS = ("principal", "permission", "operation", "type=resource_type", "name", "host")
EXIT_DENIED = 1


@click.group(
    epilog=examples(
        "penstock acls add alice read topic orders",
        "penstock acls add alice read group 'billing.*'",
        "penstock acls list --principal alice",
        "penstock acls check alice write topic orders",
    )
)
def acls() -> None:
    """Add, list, remove and check access rules. They are Kafka's ACLs.

    \b
    PRINCIPAL   alice (short for User:alice), Group:ops, or * for everybody
    OPERATION   read, write, create, delete, alter, describe, ... or all
    TYPE        topic, group (also queues and subscriptions), cluster, transactional_id, user
    NAME        orders, or orders.* for all that begin with it, or * for all
    """


@acls.command(
    epilog=examples(
        "penstock acls add alice read topic orders",
        "penstock acls add importer write,describe topic 'orders.*'",
        "penstock acls add alice read group '*'",
        "penstock acls add bob alter cluster",
        "penstock acls add mallory all topic '*' --deny --host 10.1.0.0/16",
    )
)
@click.argument("principal", type=PRINCIPAL)
@click.argument("operations", type=OPERATION_LIST, metavar="OPERATION,...")
@click.argument("resource_type", type=RESOURCE_TYPE, metavar="TYPE")
@click.argument("name", required=False)
@click.option("--deny", is_flag=True, help="Deny it instead: wins over every rule that allows it.")
@click.option("--host", default="*", help="Only from this address or network.  [default: *]")
@json_option
@asks(AclsApi)
def add(
    api: AclsApi,
    principal: str,
    operations: tuple[str, ...],
    resource_type: str,
    name: str | None,
    deny: bool,
    host: str,
    as_json: bool,
) -> None:
    """Allow PRINCIPAL to do OPERATION with the resource. Rules that exist stay as they are."""
    check_name(resource_type, name)
    rule = {
        "principal": principal,
        "resource_type": resource_type,
        "host": host,
        "permission": "deny" if deny else "allow",
        **(new_pattern(name) if name is not None else {}),
    }
    made = api.post(acls=[{**rule, "operation": one} for one in operations])["acls"]
    note(f"added {counted(len(made), 'rule')}")
    if as_json:
        show_json(made)


def _filters(command: Any) -> Any:
    """The options that select rules."""
    for option in reversed(
        (
            click.option("--principal", type=PRINCIPAL, help="Of this principal."),
            click.option("--type", "resource_type", type=RESOURCE_TYPE, help="About resources of this type."),
            click.option("--name", help="With this very name, or NAME*."),
            click.option("--match", "matched", metavar="NAME", help="That apply to the resource NAME."),
            click.option("--operation", "wanted", metavar="OPERATION", help="About this operation."),
            click.option("--permission", type=click.Choice(["allow", "deny"])),
            click.option("--host", help="For this host."),
        )
    ):
        command = option(command)
    return command


def _query(
    principal: str | None,
    resource_type: str | None,
    name: str | None,
    matched: str | None,
    wanted: str | None,
    permission: str | None,
    host: str | None,
) -> Facts:
    if name is not None and matched is not None:
        raise click.UsageError("--name and --match exclude each other")
    if wanted is not None and operation(wanted) not in OPERATIONS:
        raise click.UsageError(f"--operation {wanted!r}: expected one of {', '.join(OPERATIONS)}")
    named = pattern(name) if name is not None else {}
    if matched is not None:
        named = {"name": matched, "pattern_type": "match"}
    return {
        "principal": principal,
        "resource_type": resource_type,
        "operation": None if wanted is None else operation(wanted),
        "permission": permission,
        "host": host,
        **named,
    }


@acls.command(
    "list",
    epilog=examples(
        "penstock acls list",
        "penstock acls list --principal alice",
        "penstock acls list --type topic --match orders.eu --json",
    ),
)
@_filters
@json_option
@asks(AclsApi)
def list_acls(api: AclsApi, as_json: bool, **filters: Any) -> None:
    """List access rules, all or those that the options select. `penstock roles grants` lists roles."""
    found = api.get(**_query(**filters))["acls"]
    rows = found if as_json else [{**row, "name": shown(row)} for row in found]
    show_facts(rows, as_json, *COLUMNS, nothing="no access rules")


@acls.command(
    epilog=examples(
        "penstock acls remove --principal alice --type topic --name orders",
        "penstock acls remove --principal alice --yes",
    )
)
@_filters
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@asks(AclsApi)
def remove(api: AclsApi, yes: bool, as_json: bool, **filters: Any) -> None:
    """Remove the access rules that the options select, after showing them."""
    query = _query(**filters)
    if not any(query.values()):
        raise click.UsageError("this would remove every rule: expected --principal, --name or another option")
    if not yes:
        _confirm(api, query)
    removed = api.remove(**query)["acls"]
    note(f"removed {counted(len(removed), 'rule')}")
    if as_json:
        show_json(removed)


def _confirm(api: AclsApi, query: Facts) -> None:
    found = api.get(**query)["acls"]
    if found:
        show(facts_table([{**row, "name": shown(row)} for row in found], *COLUMNS))
        confirm(f"remove {counted(len(found), 'rule')}?")


@acls.command(
    epilog=examples(
        "penstock acls check alice write topic orders",
        "penstock acls check alice read topic orders --host 10.1.2.3 --group Group:ops",
        "penstock acls check alice alter cluster && echo allowed",
    )
)
@click.argument("principal", type=PRINCIPAL)
@click.argument("wanted", metavar="OPERATION")
@click.argument("resource_type", type=RESOURCE_TYPE, metavar="TYPE")
@click.argument("name", required=False)
@click.option("--host", help="The address that it comes from.  [default: yours]")
@click.option("--group", "groups", multiple=True, metavar="Group:NAME", help="A group that it is in.")
@json_option
@asks(AclsApi)
def check(
    api: AclsApi,
    principal: str,
    wanted: str,
    resource_type: str,
    name: str | None,
    host: str | None,
    groups: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tell whether PRINCIPAL may do OPERATION with the resource, and which rule decides.

    The exit code is 0 if it is allowed, and 1 if it is denied.
    """
    check_name(resource_type, name)
    found = api.get(
        "check",
        principal=principal,
        operation=operation(wanted),
        resource_type=resource_type,
        name=name,
        host=host,
        groups=",".join(groups) or None,
    )
    if as_json:
        show_json(found)
    else:
        show(_explained(found))
    if not found["allowed"]:
        raise click.exceptions.Exit(EXIT_DENIED)


def _explained(found: Facts) -> str:
    """A rule's reason begins with the decision already."""
    decision, reason = "allowed" if found["allowed"] else "denied", found["reason"]
    return reason if reason.startswith(decision) else f"{decision}: {reason}"
