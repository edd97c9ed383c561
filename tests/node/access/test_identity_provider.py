"""The keys of an identity provider: when they are read again, and what happens if that fails."""

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.request import urlopen

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from penstock.config.oidc import OidcSettings
from penstock.errors import ConfigError
from penstock.node.access import identity_provider
from penstock.node.access.identity_provider import ASK_AGAIN_SECONDS, REFRESH_SECONDS, IdentityProvider
from penstock.security.errors import AuthenticationError

PATIENCE_SECONDS = 60
ISSUER, AUDIENCE = "https://id.example.org", "penstock"
KEYS = {name: generate_private_key(65537, 2048) for name in ("old", "new")}


def jwks(*names: str) -> bytes:
    def public(name: str) -> dict[str, str]:
        written: str = jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key())
        return {**json.loads(written), "kid": name, "use": "sig", "alg": "RS256"}

    return json.dumps({"keys": [public(name) for name in names]}).encode()


def token(key: str, subject: str = "alice", private: RSAPrivateKey | None = None) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": time.time() + 600, "groups": ["ops"]}
    return jwt.encode(claims, private or KEYS[key], "RS256", headers={"kid": key})


def provider(source: object, now: Callable[[], float] = time.monotonic) -> IdentityProvider:
    settings = OidcSettings(jwks=str(source), issuer=ISSUER, audience=AUDIENCE, groups_claim="groups")
    settings.validate()
    return IdentityProvider(settings, now=now)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Answers with `keys`, or with 500 if there are none."""

    def __init__(self) -> None:
        self.keys: bytes | None = None
        self.asked = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                self.send_response(200 if server.keys else 500)
                self.end_headers()
                for part in server.body():
                    self.wfile.write(part)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def body(self) -> Iterator[bytes]:
        yield self.keys or b""

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(identity_provider, "FETCH_SECONDS", PATIENCE_SECONDS)
    server = Server()
    yield server
    server.close()


def test_a_token_proves_its_user_and_groups(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks("old"))
    found = provider(keys).verify(token("old"))
    assert (found.principal, found.groups) == ("User:alice", ("Group:ops",))


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks("old"))
    found = provider(keys)
    found.verify(token("old"))
    keys.write_bytes(jwks("new"))
    found.verify(token("new"))
    with pytest.raises(AuthenticationError):
        found.verify(token("old"))


def test_a_damaged_file_leaves_the_keys_that_are_known(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks("old"))
    found = provider(keys)
    found.verify(token("old"))
    keys.write_bytes(b"not JSON")
    found.verify(token("old"))
    keys.unlink()
    found.verify(token("old"))


def test_an_unknown_key_makes_the_node_ask_again_but_not_all_the_time(server: Server) -> None:
    clock = Clock()
    server.keys = jwks("old")
    found = provider(server.url, clock)
    found.verify(token("old"))
    server.keys = jwks("old", "new")
    clock.now += ASK_AGAIN_SECONDS + 1
    found.verify(token("new"))
    assert server.asked == 2
    for _ in range(5):
        with pytest.raises(AuthenticationError):
            found.verify(token("invented", private=KEYS["old"]))
    assert server.asked == 2
    clock.now += REFRESH_SECONDS + 1
    found.verify(token("new"))
    assert server.asked == 3


def test_while_the_provider_does_not_answer_known_keys_are_used_and_others_refused(server: Server) -> None:
    clock = Clock()
    found = provider(server.url, clock)
    with pytest.raises(AuthenticationError) as refused:
        found.verify(token("old"))
    assert "try again later" in refused.value.message
    assert server.asked == 1
    server.keys = jwks("old")
    with pytest.raises(AuthenticationError):
        found.verify(token("old"))  # it is not asked for every login
    clock.now += ASK_AGAIN_SECONDS + 1
    found.verify(token("old"))
    server.keys = None
    clock.now += REFRESH_SECONDS + 1
    found.verify(token("old"))
    assert server.asked == 3


def test_a_provider_that_answers_byte_by_byte_holds_up_tokens_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer is used when it has come."""
    monkeypatch.setattr(identity_provider, "FETCH_SECONDS", 2.0)
    monkeypatch.setattr(
        identity_provider, "urlopen", lambda request, timeout: urlopen(request, timeout=PATIENCE_SECONDS)
    )
    may_end = Event()

    class Slow(Server):
        def body(self) -> Iterator[bytes]:
            keys = jwks("old")
            yield keys[:1]
            while not may_end.wait(0.05):
                yield b" "
            yield keys[1:]

    server, clock = Slow(), Clock()
    server.keys = b"anything"
    try:
        found = provider(server.url, clock)
        with pytest.raises(AuthenticationError, match="no key set"):
            found.verify(token("old"))
        may_end.set()
        monkeypatch.setattr(identity_provider, "FETCH_SECONDS", PATIENCE_SECONDS)
        clock.now += ASK_AGAIN_SECONDS + 1
        found.verify(token("old"))
        assert server.asked == 1
    finally:
        may_end.set()
        server.close()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (OidcSettings(jwks="keys.json"), "oidc.issuer"),
        (OidcSettings(jwks="keys.json", issuer="x"), "oidc.audience"),
        (OidcSettings(jwks="http://id.example.org/keys", issuer="x", audience="y"), "oidc.jwks"),
        (OidcSettings(issuer="x"), "oidc.issuer"),
    ],
)
def test_settings_that_would_accept_any_token_or_none_are_refused(settings: OidcSettings, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings.validate()
    assert refused.value.field == field
