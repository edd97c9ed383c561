"""The SASL mechanisms that a Kafka listener may offer, by their names.

    PLAIN             the password in clear: for TLS only
    SCRAM-SHA-256     a proof of the password
    SCRAM-SHA-512     the same with another hash
    OAUTHBEARER       a token (JWT) of an identity provider

GSSAPI and delegation tokens are not offered. A mechanism is one row in the table below.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from penstock.security.bearer_tokens import VerifiedToken
from penstock.security.credentials import SCRAM_MECHANISMS, Credentials, Decoys, ScramMechanism
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Exchange
from penstock.security.mechanisms import OAUTHBEARER, PLAIN
from penstock.security.oauth import OAuthServer, TokenVerifier
from penstock.security.plain import PlainServer
from penstock.security.scram import ScramServer


def _no_tokens(_token: str) -> VerifiedToken:
    raise AuthenticationError("no identity provider is configured")


class Verifiers(msgspec.Struct, frozen=True):
    """What the mechanisms check logins against."""

    credentials: Credentials
    decoys: Decoys
    token: TokenVerifier = _no_tokens
    """Verifies a JWT, or raises AuthenticationError; it knows the keys and the time."""


def _scram(mechanism: ScramMechanism, verifiers: Verifiers, nonce: str) -> Exchange:
    return ScramServer(mechanism, verifiers.credentials, verifiers.decoys, nonce)


def _plain(verifiers: Verifiers, _nonce: str) -> Exchange:
    return PlainServer(verifiers.credentials, verifiers.decoys)


def _oauth(verifiers: Verifiers, _nonce: str) -> Exchange:
    return OAuthServer(verifiers.token)


MECHANISMS: dict[str, Callable[[Verifiers, str], Exchange]] = {
    PLAIN: _plain,
    **{mechanism.sasl_name: partial(_scram, mechanism) for mechanism in SCRAM_MECHANISMS},
    OAUTHBEARER: _oauth,
}
"""How an exchange of each mechanism begins: with the verifiers, and a random text that is used once."""


def start_exchange(mechanism: str, verifiers: Verifiers, nonce: str) -> Exchange:
    """A new login by one of MECHANISMS. `nonce` is random, of printable ASCII without a comma, and used once."""
    return MECHANISMS[mechanism](verifiers, nonce)
