"""Tokens of an identity provider: its keys, from a file or over HTTPS, and when they are read again.

A file is read again when it has changed. A URL is asked again after REFRESH_SECONDS, and when a token names a key that
is not known: providers change their keys. If the provider does not answer, the keys that are known go on to be used. A
client with invented keys makes the node ask every ASK_AGAIN_SECONDS at most, and a provider that answers byte by byte
holds up other tokens for FETCH_SECONDS at most.

Everything here may wait, so it runs in a thread of the logins (`logins.py`).
"""

import logging
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

from penstock.config.oidc import OidcSettings
from penstock.node.scheduling.clock import Clock, SystemClock
from penstock.security.bearer_tokens import (
    MAX_JWKS_BYTES,
    KeySet,
    TokenSettings,
    VerifiedToken,
    parse_jwks,
    verify_token,
)
from penstock.security.errors import AuthenticationError, UnknownKey

log = logging.getLogger("penstock.login")

REFRESH_SECONDS = 3_600.0
ASK_AGAIN_SECONDS = 30.0
FETCH_SECONDS = 5.0
"""How long the provider may take: other tokens wait meanwhile."""

UNAVAILABLE = "the keys of the identity provider are not known here: try again later"


class IdentityProvider:
    """Verifies tokens of one provider."""

    def __init__(
        self,
        settings: OidcSettings,
        *,
        clock: Clock | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = settings.jwks
        self._wall_ms = (clock or SystemClock()).wall_ms
        self._now = now
        self._settings = TokenSettings(
            issuer=settings.issuer,
            audience=settings.audience,
            subject_claim=settings.subject_claim,
            groups_claim=settings.groups_claim,
            clock_skew_ms=settings.clock_skew_ms,
        )
        self._keys: KeySet | None = None
        self._asked_at = float("-inf")
        self._version: object = None
        """What the file looked like when it was read."""
        self._fetch: _Fetch | None = None
        """The request that the provider has not answered."""

    def verify(self, token: str) -> VerifiedToken:
        """What the token proves. AuthenticationError says why it proves nothing."""
        self._refresh(REFRESH_SECONDS)
        try:
            return self._verified(token)
        except UnknownKey:
            if not self._refresh(ASK_AGAIN_SECONDS):
                raise
            return self._verified(token)

    def _verified(self, token: str) -> VerifiedToken:
        if self._keys is None:
            raise AuthenticationError("no key set could be read", UNAVAILABLE)
        return verify_token(token, self._keys, self._settings, self._wall_ms())

    def _refresh(self, age_s: float) -> bool:
        """Reads the keys again if they are older, or the file has changed. Whether other keys may be known now."""
        if self._keys is None:
            age_s = min(age_s, ASK_AGAIN_SECONDS)
        version = None if self._is_url else _version(self._source)
        if version == self._version and self._now() - self._asked_at < age_s:
            return False
        self._asked_at, self._version = self._now(), version
        try:
            self._keys = parse_jwks(self._read())
        except (OSError, ValueError, HTTPException, AuthenticationError) as trouble:
            log.warning("the keys of the identity provider, %s: %s", self._source, trouble)
            return False
        return True

    @property
    def _is_url(self) -> bool:
        return self._source.startswith(("https://", "http://"))

    def _read(self) -> bytes:
        if not self._is_url:
            with Path(self._source).open("rb") as file:
                return file.read(MAX_JWKS_BYTES + 1)
        fetch = self._fetch = self._fetch or _Fetch(self._source)
        fetch.join(FETCH_SECONDS)
        if fetch.is_alive():
            raise TimeoutError(f"no whole answer within {FETCH_SECONDS:g} s")
        self._fetch = None
        if fetch.problem is not None:
            raise fetch.problem
        return fetch.answer


class _Fetch(Thread):
    """One request to the provider. The timeout of a socket is for each of its reads: a provider that sends a byte a
    second would never reach it. So the request has a thread, which is left alone when it takes too long: the process
    does not wait for it when it ends."""

    def __init__(self, url: str) -> None:
        super().__init__(name="penstock-jwks", daemon=True)
        self._url = url
        self.answer = b""
        self.problem: Exception | None = None
        self.start()

    def run(self) -> None:
        request = Request(self._url, headers={"accept": "application/json"})
        try:
            with urlopen(request, timeout=FETCH_SECONDS) as answer:
                self.answer = answer.read(MAX_JWKS_BYTES + 1)
        except (OSError, ValueError, HTTPException) as problem:
            self.problem = problem


def _version(path: str) -> object:
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
