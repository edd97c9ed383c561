"""Principals, operations and names of resources, as people type them.

PRINCIPAL    alice (User:alice), User:alice, Group:ops, or * for everybody
OPERATION    read, write, create, delete, alter, describe, ... or all; several with commas
TYPE         topic, group (also queues, subscriptions and cliques), cluster, transactional_id, user
NAME         orders; orders.* for all names that begin with it; * for all
"""

from typing import Any, get_args

import click

from penstock.cli.http_api import Facts
from penstock.security.acl_words import OperationName, ResourceKind
from penstock.security.acls import ANY_NAME

OPERATIONS: tuple[str, ...] = get_args(OperationName)
RESOURCE_TYPES: tuple[str, ...] = get_args(ResourceKind)


class Principal(click.ParamType[str]):
    """A user without its type, or a principal."""

    name = "principal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if ":" in value else f"User:{value}"


class Operations(click.ParamType[tuple[str, ...]]):
    """Operations with commas between them."""

    name = "operations"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        found = tuple(operation(part) for part in value.split(","))
        unknown = [one for one in found if one not in OPERATIONS]
        if unknown:
            self.fail(f"{unknown[0]!r}: expected one of {', '.join(OPERATIONS)}", param, ctx)
        return found


def operation(text: str) -> str:
    """Kafka's tools write `DescribeConfigs`, `DESCRIBE_CONFIGS` or `describe-configs`."""
    apart = "".join(f"_{char}" if char.isupper() and not text.isupper() else char for char in text.strip())
    return apart.lower().replace("-", "_").strip("_")


PRINCIPAL, OPERATION_LIST = Principal(), Operations()
RESOURCE_TYPE = click.Choice(RESOURCE_TYPES, case_sensitive=False)


def pattern(name: str) -> Facts:
    """NAME as the fields of a rule: a star at the end stands for the rest of the name."""
    if name != ANY_NAME and name.endswith("*"):
        return {"name": name.removesuffix("*"), "pattern_type": "prefixed"}
    return {"name": name, "pattern_type": "literal"}


def new_pattern(name: str) -> Facts:
    """The same for a rule that is made. Inside of a name a star would be a plain character: such a rule would match
    nothing that exists, and one that denies would protect nothing."""
    if "*" in name[:-1]:
        raise click.UsageError(f"{name!r}: a star stands for the rest of a name, so it can only be its end")
    return pattern(name)


def shown(row: Facts) -> str:
    """The name of a rule, as people type it."""
    return f"{row['name']}*" if row["pattern_type"] == "prefixed" else str(row["name"])


def check_name(resource_type: str, name: str | None) -> None:
    """Only the cluster needs no name."""
    if name is None and resource_type != "cluster":
        raise click.UsageError(f"NAME is missing: expected the name of a {resource_type}, NAME* or *")
