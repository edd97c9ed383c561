"""Tokens of an identity provider: JSON Web Tokens (RFC 7519), checked against a set of keys (JWKS, RFC 7517).

A token is accepted if all of this holds:

1. Its algorithm is one of the table below, and the key that its `kid` names is of the type that the algorithm needs.
   So a token cannot choose `none`, nor HS256 with a public key as the secret. A token without `kid` is accepted only
   if the set has one key.
2. The key's signature is right. PyJWT verifies it; everything else is checked here.
3. `iss` is the configured issuer, and `aud` names the configured audience: tokens for other services are refused.
4. `exp` is there and not past; `nbf` and `iat` are not in the future. Clocks may differ by `clock_skew_ms`.
5. The subject claim is a user's name. Groups come from a claim that is configured, a text or a list of texts.

The identity provider decides on names: a token for the subject `admin` makes its client User:admin.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import ConfigError
from penstock.security.errors import AuthenticationError, UnknownKey
from penstock.security.principals import group, is_login_name, user

MAX_TOKEN_BYTES = 16_384
"""Tokens with many groups have some kilobytes; servers of HTTP refuse headers beyond 8 to 16 KiB."""
MAX_GROUPS = 1_000
"""Groups in one token; every decision looks up each."""
MAX_JWKS_BYTES = 1_048_576
MAX_KEYS = 100
"""Keys in one set; providers publish two to ten."""
MIN_RSA_BITS = 2_048
"""RFC 7518 requires it."""
_LATEST_S = 253_402_300_799
"""The end of the year 9999: later times are mistakes, and would overflow a field of milliseconds somewhere."""

_EC_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
ALGORITHMS = _RSA | frozenset(_EC_CURVES.values()) | {"EdDSA"}

Claims = Mapping[str, Any]


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokens are accepted, and what their claims mean."""

    issuer: str
    audience: str
    subject_claim: str = "sub"
    groups_claim: str = ""
    """A claim, or a path to one with dots (`realm_access.roles`); empty for no groups."""
    clock_skew_ms: int = 30_000

    def validate(self) -> None:
        """ConfigError names the setting that is missing."""
        for field in ("issuer", "audience", "subject_claim"):
            if not getattr(self, field):
                raise ConfigError(f"oidc.{field}", "", "a text that is not empty")
        if not 0 <= self.clock_skew_ms <= 600_000:
            raise ConfigError("oidc.clock_skew_ms", self.clock_skew_ms, "0 to 600000")


class VerifiedToken(msgspec.Struct, frozen=True):
    """What a token proves."""

    principal: str
    groups: tuple[str, ...]
    expires_ms: int


class VerificationKey(msgspec.Struct, frozen=True):
    """A public key, and the algorithms that it may be used with."""

    algorithms: frozenset[str]
    key: Any


class KeySet(msgspec.Struct, frozen=True):
    """The keys of an identity provider."""

    keys: Mapping[str | None, VerificationKey]

    def find(self, key_id: str | None) -> VerificationKey:
        """The key of this id; without an id, the only key. UnknownKey: a newer set may have it."""
        if key_id is None and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        found = self.keys.get(key_id) if key_id is not None else None
        if found is None:
            raise UnknownKey("the token names no key of the identity provider's key set")
        return found


# --- keys


def parse_jwks(document: bytes) -> KeySet:
    """The keys of a JWKS document that can verify signatures. Others in it are skipped: sets may hold keys of newer
    kinds, and keys for encryption. AuthenticationError if the document is not a key set, or has no usable key."""
    if len(document) > MAX_JWKS_BYTES:
        raise AuthenticationError(f"the key set has over {MAX_JWKS_BYTES} bytes")
    try:
        entries = msgspec.json.decode(document, type=_Document).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise AuthenticationError("the key set is not a JWKS document") from None
    if len(entries) > MAX_KEYS:
        raise AuthenticationError(f"the key set has over {MAX_KEYS} keys")
    keys: dict[str | None, VerificationKey] = {}
    for entry in entries:
        key = _verification_key(entry)
        if key is not None:
            keys.setdefault(_text(entry, "kid"), key)
    if not keys:
        raise AuthenticationError("the key set has no key that can verify signatures")
    return KeySet(keys)


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


def _text(entry: Mapping[str, Any], field: str) -> str | None:
    value = entry.get(field)
    return value if isinstance(value, str) else None


def _fitting(entry: Mapping[str, Any]) -> frozenset[str]:
    """The algorithms that fit the key's type; none for a type that is not supported, as `oct`."""
    kind, curve = entry.get("kty"), _text(entry, "crv") or ""
    if kind == "RSA":
        fitting = _RSA
    elif kind == "EC" and curve in _EC_CURVES:
        fitting = frozenset({_EC_CURVES[curve]})
    elif kind == "OKP" and curve in ("Ed25519", "Ed448"):
        fitting = frozenset({"EdDSA"})
    else:
        return frozenset()
    named = entry.get("alg")
    return fitting if named is None else fitting & {str(named)}


def _verification_key(entry: Mapping[str, Any]) -> VerificationKey | None:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    algorithms = _fitting(entry)
    if not algorithms or entry.get("use", "sig") != "sig":
        return None
    public = {
        name: value for name, value in entry.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")
    }
    try:
        key = PyJWK(public, algorithm=min(algorithms)).key
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if getattr(key, "key_size", MIN_RSA_BITS) < MIN_RSA_BITS and entry.get("kty") == "RSA":
        return None
    return VerificationKey(algorithms, key)


# --- tokens


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    crit: Any = None


def _decode_part(part: str) -> bytes:
    from jwt.utils import base64url_decode

    try:
        return base64url_decode(part)
    except ValueError:
        raise AuthenticationError("the token is not a JWT") from None


def _header(token: str) -> _Header:
    if len(token) > MAX_TOKEN_BYTES:
        raise AuthenticationError(f"the token has over {MAX_TOKEN_BYTES} bytes")
    if token.count(".") != 2 or not token.isascii():
        raise AuthenticationError("the token is not a JWT")
    try:
        header = msgspec.json.decode(_decode_part(token.partition(".")[0]), type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise AuthenticationError("the token is not a JWT") from None
    if header.crit is not None:
        raise AuthenticationError("the token has extensions that must be understood (crit)")
    if header.alg not in ALGORITHMS:
        raise AuthenticationError(f"the token's algorithm {header.alg[:20]!r} is not accepted")
    return header


def key_id(token: str) -> str | None:
    """The id of the key that signed the token, as the token says; not verified. A port may look whether its key set has
    it, and fetch the set again, before it verifies."""
    return _header(token).kid


def _claims(token: str, keys: KeySet) -> Claims:
    """The claims of a token with a good signature."""
    from jwt import PyJWS
    from jwt.exceptions import PyJWTError

    header = _header(token)
    key = keys.find(header.kid)
    if header.alg not in key.algorithms:
        raise AuthenticationError(f"the token's algorithm {header.alg} does not fit its key")
    try:
        payload = PyJWS(algorithms=[header.alg]).decode(token, key.key, algorithms=[header.alg])
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (PyJWTError, ValueError, TypeError):
        raise AuthenticationError("the token's signature is wrong") from None
    except (msgspec.MsgspecError, RecursionError):
        raise AuthenticationError("the token is not a JWT") from None


def verify_token(token: str, keys: KeySet, settings: TokenSettings, now_ms: int) -> VerifiedToken:
    """What the token proves at this time. AuthenticationError says why it proves nothing; after UnknownKey it may prove
    something with newer keys."""
    claims = _claims(token, keys)
    if claims.get("iss") != settings.issuer:
        raise AuthenticationError("the token is from another issuer")
    audience = claims.get("aud")
    if settings.audience not in (audience if isinstance(audience, list) else [audience]):
        raise AuthenticationError("the token is for another audience")
    expires_ms = _check_times(claims, settings.clock_skew_ms, now_ms)
    name = claims.get(settings.subject_claim)
    if not isinstance(name, str) or not is_login_name(name):
        raise AuthenticationError(f"the token's claim {settings.subject_claim!r} is not a user's name")
    return VerifiedToken(user(name), _groups(claims, settings.groups_claim), expires_ms)


def _time_ms(claims: Claims, claim: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LATEST_S:
        raise AuthenticationError(f"the token's claim {claim!r} is not a time")
    return int(value * 1000)


def _check_times(claims: Claims, skew_ms: int, now_ms: int) -> int:
    expires_ms = _time_ms(claims, "exp")
    if expires_ms is None:
        raise AuthenticationError("the token never expires")
    if now_ms >= expires_ms + skew_ms:
        raise AuthenticationError("the token has expired")
    for claim in ("nbf", "iat"):
        begins_ms = _time_ms(claims, claim)
        if begins_ms is not None and begins_ms > now_ms + skew_ms:
            raise AuthenticationError(f"the token is not valid yet ({claim})")
    return expires_ms


def _at(claims: Claims, path: str) -> object:
    """The claim of this name, or at the end of this path."""
    if path in claims:
        return claims[path]
    value: object = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _groups(claims: Claims, claim: str) -> tuple[str, ...]:
    value = _at(claims, claim) if claim else None
    if value is None:
        return ()
    names = value if isinstance(value, list) else [value]
    if len(names) > MAX_GROUPS:
        raise AuthenticationError(f"the token has over {MAX_GROUPS} groups")
    found = [group(name) for name in names if isinstance(name, str) and is_login_name(name)]
    if len(found) != len(names):
        raise AuthenticationError(f"the token's claim {claim!r} is not a list of groups")
    return tuple(found)
