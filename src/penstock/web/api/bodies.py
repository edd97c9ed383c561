"""Bodies, and the memory that callers make the node hold.

A body is read up to `max_http_body_bytes` and `http_body_timeout_ms`. What all bodies and large answers hold together
is counted as it arrives, not as it is announced; past `max_http_memory_bytes` callers are sent away with 503, so that
4,096 connections with 8 MiB each do not cost 32 GiB. It is given back when the answer has been sent, or its caller
has gone: `port` ends those that do not read.

Who sends a body that is too large is told so at once. Many callers read their answer only after they have sent
everything: were the connection closed before, they would see it reset, and no answer. So what comes is read and thrown
away for a while (`throw_away`), after the answer.
"""

import asyncio
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from penstock.config import Limits
from penstock.web.api.problems import Problem

JSON = "application/json"
BINARY = "application/octet-stream"
THROWN_AWAY_BYTES = 32 * 1024 * 1024
"""Four of the largest bodies, by default. Nothing of it is held."""
THROWN_AWAY_SECONDS = 3.0


class Ledger:
    """Bytes that callers hold, all together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def take(self, count: int) -> None:
        if self.held + count > self._most:
            message = (
                f"all callers together hold {self.held} bytes; limits.max_http_memory_bytes={self._most}"
            )
            raise Problem(503, "too_busy", message)
        self.held += count

    def give_back(self, count: int) -> None:
        self.held -= count


class Holding:
    """One request's share."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.bytes = 0

    def take(self, count: int) -> None:
        self._ledger.take(count)
        self.bytes += count

    def give_back(self) -> None:
        self._ledger.give_back(self.bytes)
        self.bytes = 0


class TooLarge(Problem):
    """`unread`: there is more of it to come."""

    def __init__(self, most: int, *, unread: bool) -> None:
        message = f"a body of more than limits.max_http_body_bytes={most}; send it in several requests"
        super().__init__(413, "body_too_large", message)
        self.unread = unread


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits, holding: Holding) -> bytes:
    """The whole body, or Problem."""
    most = limits.max_http_body_bytes
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise TooLarge(most, unread=True)
    try:
        async with asyncio.timeout(limits.http_body_timeout_ms / 1000):
            return await _read(request, most, holding)
    except TimeoutError:
        message = f"the body did not end within limits.http_body_timeout_ms={limits.http_body_timeout_ms}"
        raise Problem(408, "body_too_slow", message) from None
    except ClientDisconnect:
        raise Problem(400, "invalid_body", "the connection ended before the body did") from None


async def _read(request: Request, most: int, holding: Holding) -> bytes:
    body = bytearray()
    more = True
    while more:
        part, more = await _next_part(request.receive)
        if len(body) + len(part) > most:
            holding.give_back()
            raise TooLarge(most, unread=more)
        holding.take(len(part))
        body += part
    return bytes(body)


async def throw_away(receive: Receive) -> None:
    """Reads what is left of a body, within bounds."""
    left, more = THROWN_AWAY_BYTES, True
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(THROWN_AWAY_SECONDS):
            while more and left > 0:
                part, more = await _next_part(receive)
                left -= len(part)


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    """Some of the body, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
