"""What the pipelines that are streams have in common: when they run, and how they end."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.cli.output import show

Command = TypeVar("Command", bound=Callable[..., Any])


def every_option(command: Command) -> Command:
    every = click.option(
        "--every", metavar="TIME", help="Keep running, a batch at most this often: 500ms, 10s, 5m."
    )
    once = click.option("--once", is_flag=True, help="All that is there now, then end (the default).")
    return every(once(command))


def check_when(every: str | None, once: bool) -> None:
    if every is not None and once:
        raise click.UsageError("--every and --once exclude each other")


def finish(as_json: bool, result: dict[str, Any], line: str) -> None:
    if as_json:
        click.echo(json.dumps({"done": result}))
    else:
        show(line)
