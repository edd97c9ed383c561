"""An identity provider whose key set can be slow or gone, and the tokens that it signs, or that others forge."""

import base64
import json
import time
from collections.abc import Iterator
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER, AUDIENCE = "https://id.example.org", "penstock"
KEY_ID = "known"
LIFETIME_SECONDS = 3_600
DRIP_SECONDS = 0.5


class Mode(Enum):
    UP = "up"
    SLOW = "slow"
    """Sends a byte from time to time, for ever."""
    DOWN = "down"


class IdentityProvider:
    """Serves its key set on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.mode = Mode.UP
        self.asked = 0
        self._key = generate_private_key(SECP256R1())
        self._is_closed = Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                if provider.mode is Mode.DOWN:
                    self.send_error(503)
                    return
                self.send_response(200)
                self.end_headers()
                for part in provider._answer():
                    self.wfile.write(part)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the harness prints outcomes."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self) -> Iterator[bytes]:
        while self.mode is Mode.SLOW:
            yield b" "
            if self._is_closed.wait(DRIP_SECONDS):
                return
        public: str = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key())
        yield json.dumps({"keys": [{**json.loads(public), "kid": KEY_ID, "use": "sig"}]}).encode()

    # --- tokens

    def token(self, user: str) -> str:
        return jwt.encode(_claims(user), self._key, "ES256", headers={"kid": KEY_ID})

    def forged(self, user: str) -> list[str]:
        """Tokens that the provider has not signed, each for another mistake of a verifier."""
        good = self.token(user)
        public = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        other = generate_private_key(SECP256R1())
        return [
            *(_with_algorithm(good, algorithm) for algorithm in ("none", "NONE", "HS256", "RS256", "ES384")),
            _with_algorithm(good, "none").rpartition(".")[0] + ".",
            _hmac(user, public),
            jwt.encode(_claims(user), other, "ES256", headers={"kid": KEY_ID}),
            jwt.encode(_claims(user), other, "ES256", headers={"kid": "invented"}),
            jwt.encode(
                _claims(user), other, "ES256", headers={"kid": KEY_ID, "jwk": _public(other.public_key())}
            ),
        ]


def _claims(user: str) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": int(time.time()) + LIFETIME_SECONDS}


def _public(key: Any) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key))
    return written


def _with_algorithm(token: str, algorithm: str) -> str:
    """The token with another `alg` in its header, and the signature that it had."""
    _, payload, signature = token.split(".")
    return f"{_encoded({'alg': algorithm, 'typ': 'JWT', 'kid': KEY_ID})}.{payload}.{signature}"


def _hmac(user: str, secret: bytes) -> str:
    """Signed with the public key as a shared secret. PyJWT refuses to do that, so it is done by hand."""
    signed = f"{_encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': KEY_ID})}.{_encoded(_claims(user))}"
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = algorithm.sign(signed.encode(), secret)
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
