"""Bodies, and the memory that callers make the node hold.

A body is read up to `max_http_body_bytes` and `http_body_timeout_ms`. What all bodies and large answers hold together
is counted as it arrives, not as it is announced; past `max_http_memory_bytes` callers are sent away with 503, so that
4,096 connections with 8 MiB each do not cost 32 GiB. It is given back when the answer has been sent, or its caller
has gone: `port` ends those that do not read.
"""

import asyncio

from starlette.requests import ClientDisconnect, Request

from penstock.config import Limits
from penstock.web.api.problems import Problem

JSON = "application/json"
BINARY = "application/octet-stream"


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


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits, holding: Holding) -> bytes:
    """The whole body, or Problem."""
    most = limits.max_http_body_bytes
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
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
    async for part in request.stream():
        if len(body) + len(part) > most:
            raise _too_large(most)
        holding.take(len(part))
        body += part
    return bytes(body)


def _too_large(most: int) -> Problem:
    message = f"a body of more than limits.max_http_body_bytes={most}; send it in several requests"
    return Problem(413, "body_too_large", message)
