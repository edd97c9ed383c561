"""The errors of the `websockets` package as a ConnectionLoss. Its blocking and asyncio clients raise the same ones."""

from http import HTTPStatus
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI
from websockets.http11 import Response

from penstock.client.errors import Denied
from penstock.client.frames import MAX_FRAME_BYTES
from penstock.client.http_api import error_in
from penstock.client.session import ConnectionLoss

CONNECT_SETTINGS: dict[str, Any] = {
    "compression": None,
    "proxy": None,
    "open_timeout": 10,
    "close_timeout": 2,
    "max_size": MAX_FRAME_BYTES,
}
"""For `connect` of both. Brokers are not behind a proxy for browsers; compressing costs more than sending."""

RETRIABLE_STATUS = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


def connection_loss(problem: Exception) -> ConnectionLoss:
    """Why a connection ended, or could not be made."""
    if isinstance(problem, ConnectionClosed):
        close = problem.rcvd or problem.sent
        return ConnectionLoss(str(problem), close.code if close is not None else None)
    if isinstance(problem, InvalidStatus):
        return _refused(problem.response)
    if isinstance(problem, InvalidURI):
        return ConnectionLoss(str(problem), denied=Denied("invalid_url", str(problem)))
    if isinstance(problem, TimeoutError):
        return ConnectionLoss("no answer in time")
    return ConnectionLoss(str(problem) or type(problem).__name__)


def _refused(response: Response) -> ConnectionLoss:
    location = response.headers.get("Location")
    if location is not None and 300 <= response.status_code < 400:
        return ConnectionLoss(f"redirected to {location}", redirect=location)
    reason = f"{response.reason_phrase}: is this address a broker's HTTP port?"
    code, message = error_in(response.body) or (f"http_{response.status_code}", reason)
    retriable = response.status_code in RETRIABLE_STATUS
    return ConnectionLoss(message, denied=Denied(code, message, retriable=retriable))
