"""Parses durations and offsets of the command line."""

import re
from datetime import UTC, datetime
from typing import Any

import click

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Duration(click.ParamType[int]):
    """30s, 500ms, 5m, 1h; seconds without a unit. In milliseconds."""

    name = "duration"

    def __init__(self, least_ms: int = 0, most_ms: int | None = None) -> None:
        self._least_ms = least_ms
        self._most_ms = most_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)?", value)
        if found is None:
            expected = "expected a number with ms, s, m, h or d, such as 30s; without a unit it is seconds"
            self.fail(f"{value!r}: {expected}", param, ctx)
        duration_ms = int(found[1]) * UNITS_MS[found[2] or "s"]
        if duration_ms < self._least_ms:
            self.fail(f"{value!r}: expected at least {in_words(self._least_ms)}", param, ctx)
        if self._most_ms is not None and duration_ms > self._most_ms:
            self.fail(f"{value!r}: expected at most {in_words(self._most_ms)}", param, ctx)
        return duration_ms


def in_words(duration_ms: int) -> str:
    """The duration in the largest unit that divides it."""
    unit = next(unit for unit in reversed(UNITS_MS) if duration_ms % UNITS_MS[unit] == 0)
    return f"{duration_ms // UNITS_MS[unit]}{unit}"


def rounded(duration_ms: int) -> str:
    """The duration in the largest unit of which it has at least one, rounded down."""
    unit = next((unit for unit in reversed(UNITS_MS) if duration_ms >= UNITS_MS[unit]), "ms")
    return f"{duration_ms // UNITS_MS[unit]}{unit}"


def moment_ms(option: str, text: str) -> int:
    """Milliseconds since 1970, from themselves or from ISO 8601 (without a zone: local time)."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option} {text!r}: expected ISO 8601 such as 2026-01-31T08:00:00Z, or ms since 1970"
        ) from None
    return int(moment.astimezone(UTC).timestamp() * 1000)


class Place(click.ParamType[dict[str, Any]]):
    """TOPIC:PARTITION:OFFSET, as a dictionary."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        found = re.fullmatch(r"([a-zA-Z0-9._-]+):(\d{1,9}):(\d{1,18})", str(value))
        if found is None:
            self.fail(f"{value!r}: expected TOPIC:PARTITION:OFFSET, as `list` shows them", param, ctx)
        return {"topic": found[1], "partition": int(found[2]), "offset": int(found[3])}
