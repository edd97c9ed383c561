"""A node that requires login, with and without TLS and with an identity provider, for tests of clients."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from penstock.client.security_settings import SecuritySettings
from penstock.config import Address, Listener, NodeConfig
from penstock.config.oidc import OidcSettings
from penstock.embedded import _BrokerThread
from tests.tls import Certificates

PATIENCE_SECONDS = 60
ANY_PORT = Address("127.0.0.1", 0)
ISSUER, AUDIENCE = "https://id.example.org", "penstock"
PASSWORDS = {"admin": "admin-password", "alice": "alice-password", "bob": "bob-password"}
SECRETS = (*PASSWORDS.values(), "wrong-password")
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER")
KEY = generate_private_key(SECP256R1())

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, CREATE, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
)


def token(user: str, lifetime_s: float = 600) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": time.time() + lifetime_s}
    return jwt.encode(claims, KEY, "ES256", headers={"kid": "k"})


class SecuredNode(NamedTuple):
    """Two Kafka listeners, `plain` and `tls`; the HTTP port has TLS. With `certificate_listeners` two more, without
    SASL: `anonymous` with TLS alone, and `certificate`, where the client's certificate names the user."""

    thread: _BrokerThread
    certificates: Certificates

    def address(self, listener: str) -> str:
        return next(str(one.bind) for one in self.thread.service.listeners if one.name == listener)

    @property
    def http_url(self) -> str:
        return self.thread.service.http_url or ""

    def arguments(self, user: str, password: str | None = None) -> dict[str, Any]:
        """Of `Client` and of cliques."""
        login = {"user": user, "password": password or PASSWORDS[user]}
        return {**login, "tls_ca": self.certificates.ca}

    def wire(self, listener: str, mechanism: str, user: str, secret: str | None = None) -> SecuritySettings:
        """Of the client for batches."""
        tls: dict[str, Any] = {"tls": True, "ca_file": self.certificates.ca} if listener == "tls" else {}
        if mechanism == "OAUTHBEARER":
            return SecuritySettings(mechanism=mechanism, token=secret or token(user), **tls)
        return SecuritySettings(mechanism=mechanism, user=user, password=secret or PASSWORDS[user], **tls)

    def admin(self) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": self.address("plain"),
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "admin",
                "sasl.password": PASSWORDS["admin"],
            }
        )

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        bindings = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", one, AclPermissionType.ALLOW
            )
            for one in operations
        ]
        admin = self.admin()
        for created in admin.create_acls(bindings).values():
            created.result(PATIENCE_SECONDS)

    def revoke(self, user: str, kind: ResourceType, name: str) -> None:
        every = AclBindingFilter(
            kind,
            name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        admin = self.admin()
        deleted = admin.delete_acls([every])[every].result(PATIENCE_SECONDS)
        assert len(deleted) > 0


def _listeners(certificates: Certificates, certificate_listeners: bool) -> tuple[Listener, ...]:
    with_logins = (
        Listener(name="plain", bind=ANY_PORT, mechanisms=MECHANISMS),
        Listener(name="tls", bind=ANY_PORT, tls=certificates.settings(), mechanisms=MECHANISMS),
    )
    if not certificate_listeners:
        return with_logins
    named = certificates.settings(ca=True, principal_rules="RULE:^.*CN=([^,]+).*$/$1/L, DEFAULT")
    return (
        *with_logins,
        Listener(name="anonymous", bind=ANY_PORT, tls=certificates.settings(), mechanisms=()),
        Listener(name="certificate", bind=ANY_PORT, tls=named, mechanisms=()),
    )


@contextmanager
def secured_node(
    folder: Path, *, certificate_listeners: bool = False, clock_skew_ms: int = 30_000, **settings: Any
) -> Iterator[SecuredNode]:
    certificates = Certificates(folder)
    keys = folder / "keys.json"
    public: str = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key())
    keys.write_text(json.dumps({"keys": [{**json.loads(public), "kid": "k", "use": "sig"}]}))
    config = NodeConfig(
        memory=True,
        http=ANY_PORT,
        http_tls=certificates.settings(),
        status_topic="",
        listeners=_listeners(certificates, certificate_listeners),
        require_login=True,
        oidc=OidcSettings(jwks=str(keys), issuer=ISSUER, audience=AUDIENCE, clock_skew_ms=clock_skew_ms),
        **settings,
    )
    thread = _BrokerThread(config, None, PASSWORDS)
    thread.start_and_wait()
    try:
        yield SecuredNode(thread, certificates)
    finally:
        thread.stop_and_wait()
