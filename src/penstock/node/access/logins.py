"""Logins with a password, a proof or a token, over every interface of the node.

A password costs some milliseconds of CPU to check, by design. So passwords are checked in one thread, one after the
other (`check_queue.py`): however many clients guess, a core is left for the others. SCRAM costs the node a few hashes
only. Tokens have a thread of their own, because their check may wait for an identity provider.

Failed logins of one address are answered later and later, up to SLOWEST_SECONDS. Guessing is slow, and a client that
mistyped its password once does not notice. Failures are forgotten when the address has had none for FORGET_SECONDS, and
not by a success: otherwise somebody with an account could log in between two guesses at the passwords of others. The
number of addresses that are remembered is bounded.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from penstock.cluster import ClusterState
from penstock.config.oidc import OidcSettings
from penstock.node.access.check_queue import CheckQueue
from penstock.node.access.new_credentials import new_credentials
from penstock.node.parts import Part
from penstock.node.scheduling.clock import Clock, SystemClock
from penstock.security import principals
from penstock.security.credentials import Decoys, ScramCredential
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Accepted, Exchange, Step
from penstock.security.mechanisms import OAUTHBEARER, PLAIN
from penstock.security.oauth import TokenVerifier
from penstock.security.plain import check_password
from penstock.security.sasl import Verifiers, start_exchange
from penstock.security.tokens import ApiToken, check_token, is_api_token, parse_token

T = TypeVar("T")

NONCE_BYTES = 18
"""24 characters, as the RFC's examples have."""
FIRST_DELAY_SECONDS = 0.1
"""Kafka's connection.failed.authentication.delay.ms."""
SLOWEST_SECONDS = 5.0
FREE_FAILURES = 5
"""Failures that are answered with the first delay; from there on it doubles."""
MAX_DOUBLINGS = 10
FORGET_SECONDS = 300.0
MAX_ADDRESSES = 10_000
REMEMBERED_PASSWORDS = 10_000
REMEMBER_SECONDS = 60.0
"""HTTP clients send their password with every request: one that was right is not checked again for so long, unless the
user has changed."""


def _verifier(oidc: OidcSettings, clock: Clock) -> TokenVerifier:
    from penstock.node.access.identity_provider import IdentityProvider  # most nodes have none

    return IdentityProvider(oidc, clock=clock).verify


class _Failures(NamedTuple):
    number: int
    last: float


class Logins(Part):
    """One per node, on its event loop."""

    def __init__(
        self,
        state: ClusterState,
        *,
        oidc: OidcSettings | None = None,
        max_session_ms: int = 0,
        clock: Clock | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        clock = clock or SystemClock()
        self._wall_ms = clock.wall_ms
        self._now = now
        self._verify_token = None if oidc is None or not oidc.is_set else _verifier(oidc, clock)
        self._max_session_ms = max_session_ms
        self._clock_skew_ms = 0 if oidc is None else oidc.clock_skew_ms
        self._spare_secret = secrets.token_bytes(32)
        """For a cluster without users, which has no secret yet."""
        self._passwords = CheckQueue("penstock-passwords")
        self._tokens = CheckQueue("penstock-tokens")
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._right: OrderedDict[bytes, tuple[object, float, str]] = OrderedDict()
        self._salt = secrets.token_bytes(32)

    async def stop(self) -> None:
        for queue in (self._passwords, self._tokens):
            queue.stop()

    # --- SASL

    def begin(self, mechanism: str) -> Exchange:
        """A login by one of the mechanisms in `security.sasl`."""
        return start_exchange(mechanism, self._verifiers(), secrets.token_urlsafe(NONCE_BYTES))

    async def step(self, mechanism: str, exchange: Exchange, data: bytes, host: str) -> Step:
        """The next step after one message of a client at this address."""
        if mechanism == PLAIN:
            return await self._checked(self._passwords, host, lambda: exchange.step(data))
        if mechanism == OAUTHBEARER:
            return await self._checked(self._tokens, host, lambda: exchange.step(data))
        return exchange.step(data)

    def lifetime_ms(self, accepted: Accepted) -> int:
        """For how long a login is good: until its token expires, at most `max_session_ms`; 0 for ever. A token that is
        accepted after that, because clocks may differ, is good for as long as it is accepted: its client would
        otherwise log in again and again."""
        longest = self._max_session_ms
        if accepted.expires_ms is None:
            return longest
        left = accepted.expires_ms - self._wall_ms()
        left = max(1, left if left > 0 else left + self._clock_skew_ms)
        return min(left, longest) if longest else left

    def expires_ms(self, accepted: Accepted) -> int | None:
        """When a login ends, by the wall clock; None: never."""
        lifetime_ms = self.lifetime_ms(accepted)
        return self._wall_ms() + lifetime_ms if lifetime_ms else None

    def _verifiers(self) -> Verifiers:
        access = self._state.access
        decoys = Decoys(access.login_secret or self._spare_secret)
        if self._verify_token is None:
            return Verifiers(access.credential, decoys)
        return Verifiers(access.credential, decoys, self._verify_token)

    # --- passwords

    async def check_password(self, user: str, password: str, host: str = "") -> str:
        """The principal of the user with this password; AuthenticationError if there is none."""
        # The object changes with the user: a password that was changed is checked again.
        version = self._state.access.users.get(user)
        key = blake2b(f"{user}\0{password}".encode("utf-8", "surrogatepass"), key=self._salt).digest()
        known = self._right.get(key)
        if known is not None and known[0] is version and known[1] > self._now():
            return known[2]
        verifiers = self._verifiers()
        principal = await self._checked(
            self._passwords,
            host,
            lambda: check_password(user, password, verifiers.credentials, verifiers.decoys),
        )
        self._right[key] = (version, self._now() + REMEMBER_SECONDS, principal)
        if len(self._right) > REMEMBERED_PASSWORDS:
            self._right.popitem(last=False)
        return principal

    async def make_credentials(self, password: str) -> dict[str, ScramCredential]:
        """The stored form of a new password. It takes its turn with the passwords that are checked."""
        return await self._checked(self._passwords, "", lambda: new_credentials(password))

    # --- tokens

    async def check_bearer(self, token: str, host: str = "") -> Accepted:
        """The token's user; AuthenticationError if it is not good."""
        if is_api_token(token):
            stored = self.check_api_token(token)
            return Accepted(b"", principals.user(stored.user), expires_ms=stored.expires_ms)
        if self._verify_token is None:
            raise AuthenticationError("a bearer token, and no identity provider is configured")
        verify = self._verify_token
        verified = await self._checked(self._tokens, host, lambda: verify(token))
        return Accepted(b"", verified.principal, verified.groups, verified.expires_ms)

    def check_api_token(self, text: str) -> ApiToken:
        """The stored form of the API token; AuthenticationError if it was revoked, has expired, or never was one."""
        token_id, secret = parse_token(text)
        stored = self._state.access.tokens.get(token_id)
        return check_token(secret, stored, self._wall_ms())

    async def _checked(self, queue: CheckQueue, host: str, work: Callable[[], T]) -> T:
        failures = self._failures.get(host)
        is_suspect = (
            failures is not None
            and failures.number > FREE_FAILURES
            and self._now() - failures.last <= FORGET_SECONDS
        )
        return await queue.run(work, host, is_suspect=is_suspect)

    # --- failures

    def failed(self, host: str) -> float:
        """A login from this address has failed: how many seconds to wait with the answer."""
        before = self._failures.pop(host, None)
        number = 1 if before is None or self._now() - before.last > FORGET_SECONDS else before.number + 1
        self._failures[host] = _Failures(number, self._now())
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        doublings = min(max(0, number - FREE_FAILURES), MAX_DOUBLINGS)
        return min(SLOWEST_SECONDS, FIRST_DELAY_SECONDS * (1 << doublings))
