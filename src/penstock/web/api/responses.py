"""Responses of the web API: JSON, at once or in pieces, and the only shape of a refusal."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.node.limits.memory import Reservation
from penstock.web.api.bodies import JSON, TooLarge, discard_rest, reserve
from penstock.web.api.problems import Error, Problem
from penstock.web.exchanges import write_json

PIECE_BYTES = 64 * 1024
"""Larger responses are sent in pieces, each when the one before has left: bytes that a slow client has not read stay in
its Reservation, and not in a socket's buffer, which no limit counts."""


def json_response(status: int, text: bytes | None, reserved: Reservation) -> Response:
    if text is None:
        return Response(status_code=status)
    if len(text) <= PIECE_BYTES:
        return JsonResponse(text, status)
    reserve(reserved, len(text))
    return PiecewiseResponse(text, status, media_type=JSON)


def error_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The only shape of a refusal."""
    text = msgspec.json.encode(Error(error=problem.facts))
    kind = DiscardingResponse if isinstance(problem, TooLarge) and problem.unread else Response
    return kind(text, problem.status, {**problem.headers, **(headers or {})}, media_type=JSON)


class JsonResponse(Response):
    """JSON without further headers, as most responses are: written at once, where that is possible."""

    def __init__(self, body: bytes, status_code: int) -> None:
        self.body = body
        self.status_code = status_code
        self.background = None
        length = b"%d" % len(body)
        self.raw_headers = [(b"content-length", length), (b"content-type", JSON.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not write_json(scope, self.status_code, bytes(self.body)):
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            await send({"type": "http.response.body", "body": self.body})


class DiscardingResponse(Response):
    """Sent at once, and ended when the rest of the request's body has been read and discarded."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await discard_rest(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class PiecewiseResponse(Response):
    """Sent piece by piece, as fast as the client reads it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        body = memoryview(bytes(self.body))
        for first in range(0, len(body), PIECE_BYTES):
            piece = bytes(body[first : first + PIECE_BYTES])
            more = first + PIECE_BYTES < len(body)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
