"""An identity provider for tests: keys of every kind, its key set, and tokens, honest and forged."""

import base64
import hashlib
import hmac
import json
from functools import cache

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from penstock.security.bearer_tokens import TokenSettings

NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
SETTINGS = TokenSettings(issuer="https://id.example", audience="penstock", groups_claim="groups")
CLAIMS = {
    "iss": "https://id.example",
    "aud": "penstock",
    "sub": "alice",
    "exp": NOW_S + 600,
    "groups": ["ops"],
}


@cache
def private_key(kind):
    return {
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "rsa-2": lambda: rsa.generate_private_key(65537, 2048),
        "rsa-weak": lambda: rsa.generate_private_key(65537, 1024),
        "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "p521": lambda: ec.generate_private_key(ec.SECP521R1()),
        "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "ed448": ed448.Ed448PrivateKey.generate,
    }[kind]()


ALGORITHMS = {
    "RS256": "rsa",
    "RS384": "rsa",
    "RS512": "rsa",
    "PS256": "rsa",
    "PS384": "rsa",
    "PS512": "rsa",
    "ES256": "p256",
    "ES384": "p384",
    "ES512": "p521",
    "EdDSA": "ed25519",
}
"""A kind of key for each algorithm that is accepted."""


def _family(kind):
    return "RS256" if kind.startswith("rsa") else "EdDSA" if kind.startswith("ed") else "ES256"


@cache
def _jwk(kind):
    algorithm = get_default_algorithms()[_family(kind)]
    return algorithm.to_jwk(private_key(kind).public_key())


def jwk(kind, **changes):
    """The public key as an entry of a key set; its id is its kind."""
    entry = {**json.loads(_jwk(kind)), "kid": kind, "use": "sig", **changes}
    entry.pop("key_ops", None)
    return {name: value for name, value in entry.items() if value is not None}


def jwks(*entries):
    return json.dumps({"keys": list(entries)}).encode()


def token(algorithm="RS256", kind=None, *, headers=None, **claims):
    """A token with a good signature. A claim or header None is left out."""
    kind = kind or ALGORITHMS[algorithm]
    kept = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    shown = {name: value for name, value in {"kid": kind, **(headers or {})}.items() if value is not None}
    return jwt.encode(kept, private_key(kind), algorithm, headers=shown)


def part(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header, claims=CLAIMS, signature=b""):
    """A token with any header."""
    return f"{part(header)}.{part(claims)}.{part(signature)}"


def signed_by_secret(secret: bytes, algorithm="HS256", **header):
    """A token whose signature is an HMAC."""
    body = f"{part({'alg': algorithm, **header})}.{part(CLAIMS)}"
    return f"{body}.{part(hmac.digest(secret, body.encode(), hashlib.sha256))}"
