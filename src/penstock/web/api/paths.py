"""Finds the operation of a path. Paths are matched before they are unquoted, segment by segment: a group's name may
hold a slash (as %2F), and stays one segment. Browsers and many clients take the segments `.` and `..` out of an
address, also as %2E. So a name of one or two dots may be sent with a tilde before it (`~.`), and a name that looks like
that with one tilde more."""

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from penstock.node import Node
from penstock.web.api.routing import Endpoint, HttpOperation

ANY = ""
"""Stands for a segment that is a parameter."""


class OperationRoutes(BaseRoute):
    """All paths of the table, as one route."""

    def __init__(self, operations: Iterable[HttpOperation], node: Node) -> None:
        by_path: dict[str, dict[str, HttpOperation]] = {}
        for operation in operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        self._paths: dict[tuple[int, str, str], list[_Path]] = {}
        """By the number of segments, the third and the last one: /v1/topics/{topic}/records is (5, topics, records).
        Hardly ever is more than one left to compare."""
        for path, found in by_path.items():
            segments = [ANY if word.startswith("{") else word for word in path.split("/")]
            names = [(at, word[1:-1]) for at, word in enumerate(path.split("/")) if word.startswith("{")]
            key = len(segments), segments[min(2, len(segments) - 1)], segments[-1]
            one = _Path(segments, names, Endpoint(found, node, node.http_memory))
            self._paths.setdefault(key, []).append(one)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        sent = _segments(scope)
        count, about = len(sent), sent[2 if len(sent) > 2 else -1]
        refusing: Scope | None = None
        for last in (sent[-1], ANY):
            for path in self._paths.get((count, about, last), ()):
                found = path.find(sent)
                if found is None:
                    continue
                found_scope = {"endpoint": path.endpoint, "path_params": found}
                if scope["method"] in path.endpoint.methods:
                    return Match.FULL, found_scope
                refusing = refusing or found_scope
        return (Match.NONE, {}) if refusing is None else (Match.PARTIAL, refusing)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint: Endpoint = scope["endpoint"]
        if scope["method"] not in endpoint.methods:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(endpoint.methods))})
        await endpoint(scope, receive, send)


class _Path:
    """One path of the table."""

    def __init__(self, segments: list[str], names: list[tuple[int, str]], endpoint: Endpoint) -> None:
        self._segments = segments
        self._names = names
        self.endpoint = endpoint

    def find(self, sent: list[str]) -> dict[str, str] | None:
        """The parameters in a path of as many segments, if it is this one."""
        found, words = {}, sent.copy()
        for at, name in self._names:
            found[name] = words[at]
            words[at] = ANY
        if words != self._segments or ANY in found.values():
            return None
        return found


def _segments(scope: Scope) -> list[str]:
    raw: bytes = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0]
    if b"%" not in raw and b"~" not in raw:
        return raw.decode("utf-8", "replace").split("/")
    return [_name(unquote_to_bytes(segment).decode("utf-8", "replace")) for segment in raw.split(b"/")]


def _name(segment: str) -> str:
    """The name that a segment stands for."""
    return segment[1:] if segment.startswith("~") and segment.lstrip("~") in (".", "..") else segment
