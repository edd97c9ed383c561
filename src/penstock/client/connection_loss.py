"""The errors of the `websockets` package as a ConnectionLoss. Its blocking and asyncio clients raise the same ones."""

from http import HTTPStatus
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.http11 import Response

from penstock.client.errors import Denied
from penstock.client.frames import MAX_FRAME_BYTES
from penstock.client.http_api import error_in
from penstock.client.http_refusals import refusal
from penstock.client.session import ConnectionLoss
from penstock.client.tls_context import tls_failure

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


class UpgradeRefused(WebSocketException):
    """A node has answered with this response instead of opening a WebSocket. Connections raise it instead of
    InvalidStatus, because `connect` follows redirects that it knows by that, and leaves the login behind."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


def connection_loss(problem: Exception, url: str = "") -> ConnectionLoss:
    """Why a connection to this address ended, or could not be made."""
    if isinstance(problem, ConnectionClosed):
        close = problem.rcvd or problem.sent
        return ConnectionLoss(str(problem), close.code if close is not None else None)
    if isinstance(problem, UpgradeRefused):
        return _refused(problem.response)
    if isinstance(problem, InvalidURI):
        return ConnectionLoss(str(problem), denied=Denied("invalid_url", str(problem)))
    if isinstance(problem, TimeoutError):
        return ConnectionLoss("no answer in time")
    distrust = tls_failure(problem, url)
    return ConnectionLoss(str(problem) or type(problem).__name__, denied=distrust)


def _refused(response: Response) -> ConnectionLoss:
    location = response.headers.get("Location")
    if location is not None and 300 <= response.status_code < 400:
        return ConnectionLoss(f"redirected to {location}", redirect=location)
    reason = f"{response.reason_phrase}: is this address a broker's HTTP port?"
    code, message = error_in(response.body) or (f"http_{response.status_code}", reason)
    retriable = response.status_code in RETRIABLE_STATUS
    return ConnectionLoss(message, denied=refusal(code, message, retriable=retriable))
