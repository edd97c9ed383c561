"""What the `websockets` package raises, in a session's words. The blocking and the asynchronous one raise the same."""

import json
from http import HTTPStatus
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI
from websockets.http11 import Response

from penstock.client.errors import Denied
from penstock.client.session import Loss

PASSING = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Answers that may be others the next time."""


def loss_of(problem: Exception) -> Loss:
    """Why a connection ended, or was never made."""
    if isinstance(problem, ConnectionClosed):
        close = problem.rcvd or problem.sent
        return Loss(str(problem), close.code if close is not None else None)
    if isinstance(problem, InvalidStatus):
        return _refused(problem.response)
    if isinstance(problem, InvalidURI):
        return Loss(str(problem), denied=Denied("invalid_url", str(problem)))
    if isinstance(problem, TimeoutError):
        return Loss("no answer in time")
    return Loss(str(problem) or type(problem).__name__)


def _refused(response: Response) -> Loss:
    location = response.headers.get("Location")
    if location is not None and 300 <= response.status_code < 400:
        return Loss(f"sent to {location}", redirect=location)
    code, message = f"http_{response.status_code}", response.reason_phrase
    try:
        told = json.loads(response.body or b"")["error"]
        code, message = str(told["code"]), str(told["message"])
    except (ValueError, LookupError, TypeError):
        message = f"{message}: is this address a broker's HTTP port?"
    retriable = response.status_code in PASSING
    return Loss(message, denied=Denied(code, message, retriable=retriable))


DIAL_SETTINGS: dict[str, Any] = {"compression": None, "proxy": None, "open_timeout": 10, "close_timeout": 2}
"""For `connect` of both. Brokers are not behind a proxy for browsers; compressing costs more than sending."""
