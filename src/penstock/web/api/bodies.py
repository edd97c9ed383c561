"""Reading bodies, and the memory that requests take.

A body is read up to `max_http_body_bytes` and `http_body_timeout_ms`. The bytes of all bodies and large responses are
counted as they arrive, not as they are announced; past `max_http_memory_bytes` requests are refused with 503, so that
4,096 connections with 8 MiB each do not take 32 GiB. A request's bytes are released when its response has been sent or
its connection has ended: `port` ends connections that do not read.

A body that is too large is refused at once. Many clients read the response only after they have sent everything: if
the connection were closed before, they would see a reset and no response. So the rest of the body is read and discarded
for a while (`discard_rest`), after the response.
"""

import asyncio
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from penstock.config import Limits
from penstock.node.limits.memory import Reservation
from penstock.web.api.problems import Problem
from penstock.web.callers import header_of
from penstock.web.exchanges import take_body

JSON = "application/json"
BINARY = "application/octet-stream"
DISCARDED_BYTES = 32 * 1024 * 1024
"""Four of the largest bodies, by default. They take no memory."""
DISCARDED_SECONDS = 3.0


def reserve(reserved: Reservation, count: int) -> None:
    """Counts more bytes of a request or its response, or Problem."""
    if not reserved.try_take(count):
        budget = reserved.budget
        message = f"requests under way take {budget.used} bytes; {budget.name}={budget.max_bytes}"
        raise Problem(503, "too_busy", message)


class TooLarge(Problem):
    """`unread`: the client has not sent all of it yet."""

    def __init__(self, most: int, *, unread: bool) -> None:
        message = f"a body of more than limits.max_http_body_bytes={most}; send it in several requests"
        super().__init__(413, "body_too_large", message)
        self.unread = unread


def media_type(request: Request) -> str:
    return header_of(request.scope, b"content-type").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits, reserved: Reservation) -> bytes:
    """The whole body, or Problem."""
    most = limits.max_http_body_bytes
    announced = header_of(request.scope, b"content-length")
    if announced.isdigit() and int(announced) > most:
        raise TooLarge(most, unread=True)
    if (arrived := take_body(request.scope)) is not None:
        if len(arrived) > most:
            raise TooLarge(most, unread=False)
        reserve(reserved, len(arrived))
        return arrived
    try:
        async with asyncio.timeout(limits.http_body_timeout_ms / 1000):
            return await _read(request, most, reserved)
    except TimeoutError:
        message = f"the body did not end within limits.http_body_timeout_ms={limits.http_body_timeout_ms}"
        raise Problem(408, "body_too_slow", message) from None
    except ClientDisconnect:
        raise Problem(400, "invalid_body", "the connection ended before the body did") from None


async def _read(request: Request, most: int, reserved: Reservation) -> bytes:
    body = bytearray()
    more = True
    while more:
        part, more = await _next_part(request.receive)
        if len(body) + len(part) > most:
            reserved.release()
            raise TooLarge(most, unread=more)
        reserve(reserved, len(part))
        body += part
    return bytes(body)


async def discard_rest(receive: Receive) -> None:
    """Reads the rest of a body, up to a size and a time."""
    left, more = DISCARDED_BYTES, True
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DISCARDED_SECONDS):
            while more and left > 0:
                part, more = await _next_part(receive)
                left -= len(part)


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    """Some of the body, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
