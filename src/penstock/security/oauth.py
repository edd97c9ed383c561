"""OAUTHBEARER (RFC 7628): a client logs in with a token of an identity provider.

    n,[a=name to act as],^A auth=Bearer TOKEN ^A [name=value ^A ...] ^A          (^A is one byte, 0x01)

Kafka's extensions (name=value) are ignored. If the token is refused, the server answers with an error in JSON, the
client consents with one more message, and then the login fails; so says the RFC, and clients wait for it.

    state    message         checked                      next
    FIRST    client-first    the token                    OVER (accepted), or FAILED with the error as a challenge
    FAILED   anything                                     OVER (rejected)
"""

import re
from collections.abc import Callable

import msgspec

from penstock.security.bearer_tokens import MAX_TOKEN_BYTES, VerifiedToken
from penstock.security.errors import AuthenticationError, MalformedMessage
from penstock.security.exchange import Accepted, Challenge, State, TableExchange
from penstock.security.principals import name_of

MAX_OAUTH_BYTES = MAX_TOKEN_BYTES + 4_096
"""The token, and room for extensions."""
MAX_PAIRS = 32
"""The token and its extensions; Kafka's clients send at most a handful."""

TokenVerifier = Callable[[str], VerifiedToken]
"""Verifies a token, or raises AuthenticationError."""

_REFUSED = msgspec.json.encode({"status": "invalid_token"})
"""Kafka's answer to a token that it does not accept."""
_KEY = re.compile(r"[A-Za-z]+")
_TOKEN = re.compile(r"[-A-Za-z0-9._~+/]+=*")


def parse_client_first(data: bytes) -> tuple[str, str]:
    """The name to act as (empty if none) and the token. MalformedMessage says what is wrong."""
    if len(data) > MAX_OAUTH_BYTES:
        raise MalformedMessage(f"an OAUTHBEARER message has at most {MAX_OAUTH_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("an OAUTHBEARER message is UTF-8") from None
    header, *pairs = text.split("\x01", MAX_PAIRS + 2)
    if not 3 <= len(pairs) <= MAX_PAIRS + 2 or pairs[-2:] != ["", ""]:
        raise MalformedMessage(
            "an OAUTHBEARER message is n,, then up to 32 pairs that each end with ^A, then ^A"
        )
    return _acts_as(header), _token(pairs[:-2])


def _acts_as(header: str) -> str:
    flag, *rest = header.split(",")
    if flag not in ("n", "y") or len(rest) != 2 or rest[1]:
        raise MalformedMessage("an OAUTHBEARER message begins with n,, and offers no channel binding")
    if rest[0] and not rest[0].startswith("a="):
        raise MalformedMessage("an OAUTHBEARER message begins with n,a=NAME,")
    return rest[0][2:].replace("=2C", ",").replace("=3D", "=")


def _token(pairs: list[str]) -> str:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not _KEY.fullmatch(key) or key in found:
            raise MalformedMessage("an OAUTHBEARER message has pairs of a name and a value, each name once")
        found[key] = value
    scheme, _, token = found.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token.strip(" ")):
        raise MalformedMessage("an OAUTHBEARER message has auth=Bearer TOKEN")
    return token.strip(" ")


class OAuthServer(TableExchange):
    """One login of a client."""

    __slots__ = ("_problem", "_verify")

    def __init__(self, verify: TokenVerifier) -> None:
        super().__init__({State.FIRST: self._on_first, State.FAILED: self._on_consent})
        self._verify = verify
        self._problem: AuthenticationError | None = None

    def _on_first(self, data: bytes) -> tuple[Challenge | Accepted, State]:
        authzid, token = parse_client_first(data)
        try:
            verified = self._verify(token)
            if authzid not in ("", name_of(verified.principal)):
                raise AuthenticationError("a client asks to act as another user than its token names")
        except AuthenticationError as problem:
            self._problem = problem
            return Challenge(_REFUSED), State.FAILED
        return Accepted(b"", verified.principal, verified.groups, verified.expires_ms), State.OVER

    def _on_consent(self, _data: bytes) -> tuple[Challenge | Accepted, State]:
        assert self._problem is not None
        raise self._problem
