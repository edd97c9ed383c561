"""The options by which a pipeline takes some records of an archive, by time and by offset."""

from datetime import UTC, datetime
from typing import Any

import click

from penstock.cli.common_options import Command

# fmt: off
SELECTION_OPTIONS = (
    click.option("--from-time", metavar="TIME", help="Records at or after it (ISO 8601, or ms since 1970)."),
    click.option("--to-time", metavar="TIME", help="Records before it."),
    click.option("--from-offset", type=click.IntRange(min=0), help="Records at or after it, in each partition."),
    click.option("--to-offset", type=click.IntRange(min=0), help="Records before it."),
)
# fmt: on


def selected(command: Command) -> Command:
    """Gives a command the options of a Selection."""
    for option in reversed(SELECTION_OPTIONS):
        command = option(command)
    return command


def selection_of(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a Selection, with their times parsed."""
    times = {
        name: parse_time(f"--{name.replace('_', '-')}", given[name]) for name in ("from_time", "to_time")
    }
    return {**given, **times}


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
