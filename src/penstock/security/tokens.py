"""API tokens: passwords for programs, which a user makes, names, and revokes one by one.

    pst_ID_SECRET       pst_ + 16 characters + _ + 32 characters, of a-z and 2-7

The prefix lets scanners of source code find tokens that were committed by mistake. The id finds the token in the store
and may be shown. The secret has 160 random bits, so one SHA-256 is enough to store it: there is nothing to guess, and a
check costs a microsecond. The token acts as its user; what the user may no longer do, the token may not either.
"""

import base64
import hashlib
import hmac
import re

import msgspec

from penstock.errors import ErrorCode, KafkaError
from penstock.security.errors import AuthenticationError

TOKEN_PREFIX = "pst_"
TOKEN_RANDOM_BYTES = 30
"""10 for the id, 20 for the secret."""
MAX_DESCRIPTION_CHARACTERS = 200

_ID_BYTES = 10
_TOKEN = re.compile(r"pst_([a-z2-7]{16})_([a-z2-7]{32})")


class ApiToken(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a token. Its form as a msgpack array is stored: fields are added at the end only."""

    token_id: str
    secret_hash: bytes
    user: str
    created_ms: int
    expires_ms: int | None = None
    description: str = ""

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def __repr__(self) -> str:
        return f"ApiToken({self.token_id!r}, user={self.user!r})"


def _text(data: bytes) -> str:
    return base64.b32encode(data).decode().lower()


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def make_token(
    random: bytes, user: str, now_ms: int, expires_ms: int | None = None, description: str = ""
) -> tuple[str, ApiToken]:
    """The token for the user to keep, and what to store of it. `random` are TOKEN_RANDOM_BYTES random bytes."""
    assert len(random) == TOKEN_RANDOM_BYTES
    if len(description) > MAX_DESCRIPTION_CHARACTERS or not description.isprintable():
        message = f"a token's description has at most {MAX_DESCRIPTION_CHARACTERS} printable characters"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if expires_ms is not None and expires_ms <= now_ms:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the token would have expired already")
    token_id, secret = _text(random[:_ID_BYTES]), _text(random[_ID_BYTES:])
    stored = ApiToken(token_id, _hash(secret), user, now_ms, expires_ms, description)
    return f"{TOKEN_PREFIX}{token_id}_{secret}", stored


def is_api_token(text: str) -> bool:
    """Whether a bearer's text is meant to be an API token, and not a JWT."""
    return text.startswith(TOKEN_PREFIX)


def parse_token(text: str) -> tuple[str, str]:
    """The id and the secret."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise AuthenticationError("an API token is not of the form pst_ID_SECRET")
    return match[1], match[2]


_NO_TOKEN = ApiToken("", _hash(""), "", 0)


def check_token(secret: str, stored: ApiToken | None, now_ms: int) -> ApiToken:
    """The stored token, if the secret is its secret and it has not expired. None: there is no token of this id, which
    takes as long to find out as a wrong secret."""
    right = hmac.compare_digest(_hash(secret), (stored or _NO_TOKEN).secret_hash)
    if stored is None:
        raise AuthenticationError("there is no API token of this id")
    if not right:
        raise AuthenticationError(f"wrong secret for the API token {stored.token_id}")
    if stored.has_expired(now_ms):
        raise AuthenticationError(f"the API token {stored.token_id} has expired")
    return stored
