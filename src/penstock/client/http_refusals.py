"""Refusals of the HTTP API and of WebSockets as errors, with advice where the broker's message has none."""

from typing import Final

from penstock.client.errors import PERMISSION_ADVICE, ClientError, Denied, LoginFailed

LOGIN_REQUIRED: Final = "login_required"
LOGIN_FAILED: Final = "login_failed"
NOT_AUTHORIZED: Final = "_authorization_failed"
"""The end of the codes of missing permissions."""


def refusal(code: str, message: str, *, retriable: bool = False) -> ClientError:
    """A node has refused a request with this code."""
    if code == LOGIN_REQUIRED:
        return LoginFailed(
            f"the broker's HTTP port wants a login: give user and password, or a token ({code})"
        )
    if code == LOGIN_FAILED:
        advice = "check user and password, or get a new token"
        return LoginFailed(f"the broker's HTTP port does not accept the login: {message}: {advice} ({code})")
    if code.endswith(NOT_AUTHORIZED):
        return Denied(code, f"{message}: {PERMISSION_ADVICE}")
    return Denied(code, message, retriable=retriable)
