"""`penstock roles`: roles, and who has them."""

from typing import Any

import click

from penstock.cli.access_words import (
    OPERATION_LIST,
    PRINCIPAL,
    RESOURCE_TYPES,
    new_pattern,
    pattern,
    shown,
)
from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, RolesApi, asks
from penstock.cli.output import note, show_facts, show_json
from penstock.cli.topics import confirm

ROLES, GRANTS = "roles", "grants"


@click.group(
    epilog=examples(
        "penstock roles list",
        "penstock roles grant reader alice",
        "penstock roles grant writer importer 'orders.*'",
        "penstock roles grants",
    )
)
def roles() -> None:
    """Give roles to users and groups, and make roles of your own.

    \b
    viewer     sees topics, records, groups and the cluster; joins no group, changes nothing
    reader     reads records, in groups of its choice
    writer     writes records, also in transactions
    operator   creates, changes and deletes topics; reads no record, gives no permission
    admin      everything, access rules and users included
    """


@roles.command("list", epilog=examples("penstock roles list", "penstock roles list --json"))
@json_option
@asks(RolesApi)
def list_roles(api: RolesApi, as_json: bool) -> None:
    """List roles, what they allow, and how many grants of them there are."""
    found = api.get(ROLES)["roles"]
    rows = found if as_json else [_for_people(row) for row in found]
    show_facts(rows, as_json, "role", "built in=built_in", "grants", "permissions", nothing="no roles")


def _for_people(role: Facts) -> Facts:
    rows = role["permissions"]
    return {**role, "permissions": "\n".join(_permission_text(row) for row in rows)}


def _permission_text(row: Facts) -> str:
    denied = "" if row["permission"] == "allow" else "DENY "
    named = "" if shown(row) == "*" else f" {shown(row)}"
    return f"{denied}{row['resource_type']}{named}: {', '.join(row['operations'])}"


class RolePermission(click.ParamType[Facts]):
    """TYPE:OPERATION,...[:NAME], as the fields of a permission."""

    name = "permission"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Facts:
        kind, _, rest = str(value).partition(":")
        operations, _, name = rest.partition(":")
        if kind not in RESOURCE_TYPES or not operations:
            expected = (
                f"TYPE:OPERATION,... or TYPE:OPERATION,...:NAME, where TYPE is {', '.join(RESOURCE_TYPES)}"
            )
            self.fail(f"{value!r}: expected {expected}", param, ctx)
        found = OPERATION_LIST.convert(operations, param, ctx)
        return {"resource_type": kind, "operations": list(found), **new_pattern(name or "*")}


@roles.command(
    epilog=examples(
        "penstock roles create cleaner topic:delete,describe",
        "penstock roles create auditor topic:describe group:describe cluster:describe",
        "penstock roles create biller topic:read:invoices 'group:read:billing.*'",
    )
)
@click.argument("role")
@click.argument(
    "permissions", nargs=-1, required=True, type=RolePermission(), metavar="TYPE:OPERATION,...[:NAME]..."
)
@json_option
@asks(RolesApi)
def create(api: RolesApi, role: str, permissions: tuple[Facts, ...], as_json: bool) -> None:
    """Create a role of your own, or replace its permissions: all who have it get the new ones."""
    made = api.put(ROLES, role, permissions=list(permissions))
    note(f"the role {role} is set; `penstock roles grant {role} PRINCIPAL` gives it to a user or a group")
    if as_json:
        show_json(made)


@roles.command(epilog=examples("penstock roles delete cleaner", "penstock roles delete cleaner --yes"))
@click.argument("role")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@asks(RolesApi)
def delete(api: RolesApi, role: str, yes: bool) -> None:
    """Delete a role of your own that has no grants."""
    if not yes:
        confirm(f"delete the role {role}?")
    api.delete(ROLES, role)
    note(f"deleted {role}")


@roles.command(
    epilog=examples(
        "penstock roles grants",
        "penstock roles grants --principal alice",
        "penstock roles grants --role admin --json",
    )
)
@click.option("--principal", type=PRINCIPAL, help="Of this principal.")
@click.option("--role", help="Of this role.")
@json_option
@asks(RolesApi)
def grants(api: RolesApi, principal: str | None, role: str | None, as_json: bool) -> None:
    """List who has which role, and for which names."""
    found = api.get(GRANTS, principal=principal, role=role)["grants"]
    rows = found if as_json else [{**row, "name": shown(row)} for row in found]
    show_facts(rows, as_json, "principal", "role", "for=name", "host", nothing="no grants")


def _grant(role: str, principal: str, host: str, named: Facts) -> Facts:
    return {"role": role, "principal": principal, "host": host, **named}


def _grant_arguments(command: Any) -> Any:
    for option in reversed(
        (
            click.argument("role"),
            click.argument("principal", type=PRINCIPAL),
            click.argument("name", default="*"),
            click.option("--host", default="*", help="Only from this address or network.  [default: *]"),
        )
    ):
        command = option(command)
    return command


@roles.command(
    epilog=examples(
        "penstock roles grant reader alice",
        "penstock roles grant writer importer 'orders.*'",
        "penstock roles grant operator Group:ops --host 10.1.0.0/16",
    )
)
@_grant_arguments
@asks(RolesApi)
def grant(api: RolesApi, role: str, principal: str, name: str, host: str) -> None:
    """Give ROLE to PRINCIPAL: for everything, or for topics, groups and transactions called NAME (or NAME*)."""
    api.post(GRANTS, **_grant(role, principal, host, new_pattern(name)))
    note(f"{principal} has the role {role}{'' if name == '*' else f' for {name}'}")


@roles.command(
    epilog=examples("penstock roles revoke reader alice", "penstock roles revoke writer importer 'orders.*'")
)
@_grant_arguments
@asks(RolesApi)
def revoke(api: RolesApi, role: str, principal: str, name: str, host: str) -> None:
    """Take ROLE from PRINCIPAL: exactly the grant that `grants` shows. Other rules may still allow the same."""
    api.delete(GRANTS, **_grant(role, principal, host, pattern(name)))
    note(f"{principal} has no longer the role {role}{'' if name == '*' else f' for {name}'}")
