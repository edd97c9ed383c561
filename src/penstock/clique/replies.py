"""Requests of this process that wait for their response."""

import asyncio
import secrets
from typing import Any

from penstock.client.arguments import as_bytes
from penstock.client.error_texts import ERROR_TEXT_MAX, error_text, error_type
from penstock.client.errors import CallFailed
from penstock.clique.codecs import Codec
from penstock.clique.errors import CliqueError, OverLimit
from penstock.clique.limits import REQUESTS_MAX
from penstock.clique.message import Message


class PendingRequests:
    """A request ends once: with the first response of its id, or with its timeout."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[bytes]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self) -> "tuple[str, asyncio.Future[bytes]]":
        if len(self._waiting) >= REQUESTS_MAX:
            raise OverLimit(f"{REQUESTS_MAX} requests wait for their response (limits.REQUESTS_MAX)")
        request_id = secrets.token_hex(12)
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        return request_id, future

    def end(self, request_id: str) -> None:
        """Later responses are dropped."""
        self._waiting.pop(request_id, None)

    def respond(self, request_id: str, data: bytes, error: str | None) -> None:
        future = self._waiting.pop(request_id, None)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(data)
        else:
            future.set_exception(CallFailed(error))

    def fail_all(self, error: CliqueError) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)


def encoded_result(codec: Codec, stream: str, result: Any) -> bytes:
    """A response goes through the codec of its stream. Raises TypeError or ValueError if it cannot."""
    if result is None:
        result = b""
    if not isinstance(result, (bytes, bytearray, memoryview, str)):
        raise TypeError(f"a responder returned {type(result).__name__}: expected bytes, text or None")
    return codec.encode(Message(stream=stream, value=as_bytes("result", result)))  # type: ignore[arg-type]


def error_of(problem: Exception) -> str:
    """One line of ASCII: it travels in a header."""
    text = f"{error_type(problem)}: {error_text(problem)}"[:ERROR_TEXT_MAX]
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()


def request_timed_out(stream: str, timeout_s: float) -> TimeoutError:
    return TimeoutError(
        f"no response from {stream} within {timeout_s:g} s. If no responder has begun the request, none will"
    )
