"""The table of operations, and how one is served: path and query become one struct, the body another, the handler
returns a third. The same table is what `openapi` describes, so the document cannot differ from what is served.

Paths are matched before they are unquoted, segment by segment: a group's name may hold a slash (as %2F), and stays one
segment. Everything a caller sends is checked against the structs' constraints; a name that is not known is refused,
because a misspelt option must not be silently without effect.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.node import Node
from penstock.web.api.bodies import (
    BINARY,
    JSON,
    Holding,
    Ledger,
    TooLarge,
    media_type,
    read_body,
    throw_away,
)
from penstock.web.api.problems import Error, Problem, as_problem, misfit, wrong

P = TypeVar("P", covariant=True)
B = TypeVar("B", covariant=True)
T = TypeVar("T")

PIECE_BYTES = 64 * 1024
"""Larger answers are sent in pieces, each when the one before has left: what a slow caller has not taken stays counted
by its Holding, and not in a buffer that nobody counts."""
ASIDE_FROM_BYTES = 64 * 1024
"""Work on more than this is done in a thread: some 100 us of the event loop."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_BOOLEANS = {"true": True, "false": False}


class NoParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Call(NamedTuple, Generic[P, B]):
    """One request, checked. `binary` is the body of an operation that takes one that is not JSON."""

    params: P
    body: B
    binary: bytes | None
    request: Request
    holding: Holding


class Answer(NamedTuple):
    """A body with a status of its own; bytes are JSON already."""

    status: int
    body: msgspec.Struct | bytes | None


Handler = Callable[[Any], Awaitable[msgspec.Struct | Answer | None]]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    method: str
    path: str
    name: str
    """For programs that are made from the document."""
    summary: str
    handler: Handler
    params: type[msgspec.Struct] = NoParams
    """Fields that the path names come from there, all others from the query."""
    body: type[msgspec.Struct] | None = None
    takes_binary: bool = False
    status: int = 200
    answer: type[msgspec.Struct] | None = None
    other_answers: Mapping[int, type[msgspec.Struct]] = {}
    refusals: tuple[int, ...] = ()
    """Statuses beside those that every operation has."""
    tag: str = ""


def routes(operations: Iterable[Operation], node: Node) -> list[Route]:
    """One for each path."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    ledger = Ledger(node.config.limits.max_http_memory_bytes)
    return [SegmentRoute(path, Endpoint(found, node, ledger)) for path, found in by_path.items()]


class SegmentRoute(Route):
    """Matches the path as it was sent, segment by segment."""

    def __init__(self, path: str, endpoint: "Endpoint") -> None:
        super().__init__(path, endpoint, methods=list(endpoint.operations))
        self._segments = path.split("/")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        sent = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0].split(b"/")
        found = self._found(sent) if len(sent) == len(self._segments) else None
        if found is None:
            return Match.NONE, {}
        known = scope["method"] in (self.methods or ())
        return Match.FULL if known else Match.PARTIAL, {"endpoint": self.endpoint, "path_params": found}

    def _found(self, sent: list[bytes]) -> dict[str, str] | None:
        found = {}
        for wanted, raw in zip(self._segments, sent, strict=True):
            segment = unquote_to_bytes(raw).decode("utf-8", "replace")
            if wanted.startswith("{") and segment:
                found[wanted[1:-1]] = segment
            elif wanted != segment:
                return None
        return found


class Endpoint:
    """Serves the operations of one path."""

    def __init__(self, operations: Mapping[str, Operation], node: Node, ledger: Ledger) -> None:
        self.operations = operations
        self._node = node
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        holding = Holding(self._ledger)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            response = await self._serve(self.operations[method], request, holding)
            await response(scope, receive, send)
        finally:
            holding.give_back()

    async def _serve(self, operation: Operation, request: Request, holding: Holding) -> Response:
        try:
            self._check_ready()
            call = await self._call(operation, request, holding)
            answer = await operation.handler(call)
            if not isinstance(answer, Answer):
                answer = Answer(operation.status, answer)
            return json_response(answer.status, answer.body, holding)
        except Problem as problem:
            return error_response(problem)
        except PenstockError as trouble:
            return error_response(as_problem(trouble))

    def _check_ready(self) -> None:
        if not self._node.ready:
            message = "this node is starting or stopping, or has not found its cluster yet; ask another one"
            raise Problem(503, "not_ready", message)

    async def _call(self, operation: Operation, request: Request, holding: Holding) -> Call[Any, Any]:
        params = read_params(operation.params, request)
        body = binary = None
        if operation.body is not None:
            kind = media_type(request)
            _check_type(operation, kind)
            data = await read_body(request, self._node.config.limits, holding)
            if kind == BINARY:
                binary = data
            else:
                body = await aside(len(data), decode, data, operation.body)
        return Call(params, body, binary, request, holding)


def _check_type(operation: Operation, kind: str) -> None:
    """Both are types that a browser asks about before it sends them for a page of somebody else."""
    expected = (JSON, BINARY) if operation.takes_binary else (JSON,)
    if kind not in expected:
        message = f"a body of type {kind or 'nothing'}: expected Content-Type {' or '.join(expected)}"
        raise Problem(415, "unsupported_media_type", message)


async def aside(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Does it at once if it is little, else in a thread."""
    if size < ASIDE_FROM_BYTES:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


# --- what comes in


def decode(data: bytes, wanted: type[T]) -> T:
    """JSON as the struct, or Problem."""
    if not data.strip():
        raise Problem(400, "invalid_body", "the body is empty: expected a JSON object")
    try:
        return msgspec.json.decode(data, type=wanted)
    except msgspec.ValidationError as trouble:
        raise misfit(trouble, wanted) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as trouble:
        raise Problem(400, "invalid_body", f"the body is not JSON: {trouble}") from None
    except RecursionError:
        raise Problem(400, "invalid_body", "the body is nested too deeply") from None


def read_params(wanted: type[T], request: Request) -> T:
    """Path and query as the struct, or Problem."""
    given: dict[str, str] = dict(request.path_params)
    for name, value in request.query_params.multi_items():
        if name in given:
            raise wrong(name, "given more than once")
        given[name] = value
    kinds = _kinds(cast(Hashable, wanted))
    try:
        return msgspec.convert(
            {name: _typed(value, kinds.get(name)) for name, value in given.items()}, wanted
        )
    except msgspec.ValidationError as trouble:
        raise misfit(trouble, wanted) from None


def _typed(value: str, kind: type | None) -> object:
    """As JSON would have it; what does not look right stays text, and is refused as such."""
    if kind is msgspec.inspect.IntType and _INTEGER.fullmatch(value):
        return int(value)
    if kind is msgspec.inspect.BoolType:
        return _BOOLEANS.get(value, value)
    return value


@cache
def _kinds(wanted: Any) -> dict[str, type]:
    info = msgspec.inspect.type_info(wanted)
    assert isinstance(info, msgspec.inspect.StructType)
    return {field.encode_name: _plain(field.type) for field in info.fields}


def _plain(kind: msgspec.inspect.Type) -> type:
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    return type(kind)


# --- what goes out


def json_response(status: int, body: msgspec.Struct | bytes | None, holding: Holding) -> Response:
    if body is None:
        return Response(status_code=status)
    text = body if isinstance(body, bytes) else msgspec.json.encode(body)
    if len(text) <= PIECE_BYTES:
        return Response(text, status, media_type=JSON)
    holding.take(len(text))
    return PiecewiseResponse(text, status, media_type=JSON)


def error_response(problem: Problem) -> Response:
    text = msgspec.json.encode(Error(error=problem.facts))
    kind = LingeringResponse if isinstance(problem, TooLarge) and problem.unread else Response
    return kind(text, problem.status, problem.headers, media_type=JSON)


class LingeringResponse(Response):
    """Sent at once, and ended when what still comes of the request's body has been thrown away."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await throw_away(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class PiecewiseResponse(Response):
    """Sent piece by piece, as fast as the caller takes it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        body = memoryview(bytes(self.body))
        for first in range(0, len(body), PIECE_BYTES):
            piece = bytes(body[first : first + PIECE_BYTES])
            more = first + PIECE_BYTES < len(body)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
