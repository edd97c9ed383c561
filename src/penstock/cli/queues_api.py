"""How commands about queues reach a node: over its HTTP port. And what people write where a program wants numbers."""

import re
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import click

from penstock.cli.cluster_api import DEFAULT_HTTP, HTTP_VARIABLE, ask_node, http_url

Command = TypeVar("Command", bound=Callable[..., Any])
Facts = dict[str, Any]

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class QueuesApi:
    """Asks one node, which asks the others."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, *path: object, **query: object) -> Facts:
        given = {name: value for name, value in query.items() if value is not None}
        asked = f"?{urlencode(given)}" if given else ""
        return ask_node(self._url, "GET", _path(path) + asked, Facts, None)

    def post(self, *path: object, **body: object) -> Facts:
        given = {name: value for name, value in body.items() if value is not None}
        return ask_node(self._url, "POST", _path(path), Facts, given)

    def patch(self, *path: object, **body: object) -> Facts:
        return ask_node(self._url, "PATCH", _path(path), Facts, body)

    def delete(self, *path: object) -> None:
        ask_node(self._url, "DELETE", _path(path), type(None), None)


def _path(parts: tuple[object, ...]) -> str:
    return "/".join(("/v1/queues", *(quote(str(part), safe="") for part in parts)))


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
    """As people write it: in the largest unit that fits."""
    unit = next(unit for unit in reversed(UNITS_MS) if duration_ms % UNITS_MS[unit] == 0)
    return f"{duration_ms // UNITS_MS[unit]}{unit}"


class Place(click.ParamType[Facts]):
    """TOPIC:PARTITION:OFFSET, as a dictionary."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Facts:
        found = re.fullmatch(r"([a-zA-Z0-9._-]+):(\d{1,9}):(\d{1,18})", str(value))
        if found is None:
            self.fail(f"{value!r}: expected TOPIC:PARTITION:OFFSET, as `list` shows them", param, ctx)
        return {"topic": found[1], "partition": int(found[2]), "offset": int(found[3])}


def asks_queues(command: Command) -> Command:
    """Gives a command --http, and hands it over as `api`."""

    def with_api(http: str, **rest: Any) -> Any:
        return command(api=QueuesApi(http), **rest)

    with_api.__doc__ = command.__doc__
    with_api.__name__ = command.__name__
    with_api.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    option = click.option(
        "--http", metavar="HOST:PORT", envvar=HTTP_VARIABLE, default=DEFAULT_HTTP, callback=http_url,
        show_default=True, show_envvar=True, help="The HTTP address of any of the cluster's nodes.",
    )  # fmt: skip
    return option(with_api)  # type: ignore[return-value]
