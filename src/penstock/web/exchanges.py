"""A request and its response as `http_protocol` has them, in the request's scope: what ASGI has no words for."""

from http import HTTPStatus

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXCHANGE = "penstock.exchange"

_JSON_HEADS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n".encode()
    for status in HTTPStatus
}


def has_begun(scope: Scope) -> bool:
    """Whether some of the response has been sent."""
    exchange: RequestResponseCycle | None = scope.get(EXCHANGE)
    return exchange is None or exchange.response_started


def take_body(scope: Scope) -> bytes | None:
    """The whole body, if all of it has come: mostly it came with the headers, and nothing need be awaited. None: it has
    to be received."""
    exchange: RequestResponseCycle | None = scope.get(EXCHANGE)
    if exchange is None or exchange.more_body or exchange.disconnected:
        return None
    body, exchange.body = bytes(exchange.body), bytearray()
    exchange.message_event.clear()  # from here on `receive` waits for the end of the connection
    return body


def json_head(status: int, size: int, *, keep_alive: bool) -> bytes:
    """The first lines of a response with so many bytes of JSON."""
    end = b"\r\n\r\n" if keep_alive else b"\r\nconnection: close\r\n\r\n"
    return b"%scontent-length: %d%s" % (_JSON_HEADS[status], size, end)


def write_json(scope: Scope, status: int, body: bytes) -> bool:
    """Whether the whole response was written. If not, it has to be sent by ASGI's events, which cost more than a small
    response itself: each passes through several layers, and has its headers checked."""
    exchange: RequestResponseCycle | None = scope.get(EXCHANGE)
    if exchange is None or exchange.flow.write_paused or exchange.disconnected or scope["method"] == "HEAD":
        return False
    exchange.response_started = exchange.response_complete = True
    exchange.message_event.set()
    keep_alive = exchange.keep_alive
    exchange.transport.write(json_head(status, len(body), keep_alive=keep_alive) + body)
    if not keep_alive:
        exchange.transport.close()
    exchange.on_response()
    return True
