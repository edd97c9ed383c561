"""SASL on the client's side, without I/O: the messages of each mechanism, and what a refusal means.

A login is a generator. It yields the messages for the broker, is sent the broker's answers, and returns when the client
is logged in as far as it can tell; AuthenticationError if the broker does not prove what it must.
"""

from collections.abc import Callable, Generator
from typing import Final

from penstock.client.errors import LoginFailed
from penstock.client.security_settings import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    SecuritySettings,
)
from penstock.errors import ErrorCode
from penstock.security.credentials import ScramMechanism
from penstock.security.scram import ScramClient

Login = Generator[bytes, bytes, None]

REAUTHENTICATE_AFTER: Final = 0.85
"""The part of a session's lifetime after which the client logs in again, as Kafka's clients do."""
TRY_AGAIN: Final = "try again"
"""The end of a broker's message if it refuses a login only because there are too many."""


def login_messages(security: SecuritySettings, nonce: str) -> Login:
    """`nonce` is random, printable, without a comma, and used once."""
    return _LOGINS[security.mechanism](security, nonce)


def _plain(security: SecuritySettings, _nonce: str) -> Login:
    yield f"\0{security.user}\0{security.password}".encode()


def _scram(security: SecuritySettings, nonce: str) -> Login:
    mechanism = _SCRAM[security.mechanism]
    client = ScramClient(mechanism, security.user, security.password, nonce)
    challenge = yield client.first()
    signature = yield client.final(challenge)
    client.verify(signature)


def _oauth(security: SecuritySettings, _nonce: str) -> Login:
    refusal = yield f"n,,\x01auth=Bearer {security.token}\x01\x01".encode()
    if refusal:  # an error in JSON: the broker waits for this consent before it refuses the login
        yield b"\x01"


_SCRAM: Final = {
    SCRAM_SHA_256: ScramMechanism.SCRAM_SHA_256,
    SCRAM_SHA_512: ScramMechanism.SCRAM_SHA_512,
}
_LOGINS: Final[dict[str, Callable[[SecuritySettings, str], Login]]] = {
    PLAIN: _plain,
    SCRAM_SHA_256: _scram,
    SCRAM_SHA_512: _scram,
    OAUTHBEARER: _oauth,
}


# --- refusals


def handshake_refused(
    address: object, security: SecuritySettings, code: int, offered: list[str]
) -> LoginFailed:
    """The answer to SaslHandshake was this error code."""
    if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        return LoginFailed(
            f"{address}: the broker offers no login by {security.mechanism}, but by {', '.join(offered) or 'none'}: "
            "name one of these as sasl.mechanism",
            problem="no mechanism",
            detail=", ".join(offered),
        )
    return LoginFailed(
        f"{address}: clients do not log in on this port: use the port on which they do, or leave out user, password, "
        "token and SASL",
        problem="not wanted",
    )


def login_refused(address: object, security: SecuritySettings, message: str | None) -> LoginFailed:
    """The broker does not accept the login."""
    said = message or "no reason given"
    if security.mechanism == OAUTHBEARER:
        advice = "the token may have expired, or be for another audience: get a new one"
    else:
        advice = (
            "check user and password; `penstock users` shows the users, and a user may lack a password for this "
            "mechanism (sasl.mechanism)"
        )
    return LoginFailed(
        f"{address}: the broker does not accept the login {security.described}: {said}: {advice}",
        detail=said,
        retriable=said.endswith(TRY_AGAIN),
    )


def login_required(address: object, offered: list[str]) -> LoginFailed:
    """The broker has closed a connection that did not log in."""
    return LoginFailed(
        f"{address}: the broker wants a login (by {', '.join(offered)}): give user and password, or a token "
        "(sasl.username, sasl.password)",
        problem="wanted",
        detail=", ".join(offered),
    )
