"""How the nodes of a scenario are secured, and how honest clients reach them.

OPEN        no TLS and no login
TLS         the Kafka port speaks TLS
LOGIN       clients must log in, by a password or a token of an identity provider
MUTUAL_TLS  nodes show each other certificates on the inter-node port
RELAYED     gossip between nodes passes through the attacker's hands
"""

import ssl
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from penstock.kafka.wire import ApiKey, Message, encode_request, join
from penstock.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest
from penstock.node.tls.dev_certificates import LOCAL_HOSTS, DevCertificates
from tools.hostile.identity_provider import AUDIENCE, ISSUER, IdentityProvider

PLAIN = "PLAIN"
HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2


class Setup(Enum):
    OPEN = "open"
    TLS = "tls"
    LOGIN = "login"
    MUTUAL_TLS = "mutual tls"
    RELAYED = "relayed"


class Access(NamedTuple):
    """What an honest client of the nodes has. It travels to other processes."""

    user: str = ""
    password: str = ""
    authority: str = ""
    """The file of the authority that signed the certificates of the Kafka port."""

    @property
    def settings(self) -> dict[str, str]:
        """Of librdkafka."""
        if self.user:
            return {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        if self.authority:
            return {"security.protocol": "ssl", "ssl.ca.location": self.authority}
        return {}

    @property
    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.authority) if self.authority else None

    @property
    def opening(self) -> list[bytes]:
        """The requests by which a connection logs in; each is answered."""
        return plain_login(self.user, self.password) if self.user else []


OPEN_ACCESS = Access()


def plain_login(user: str, password: str) -> list[bytes]:
    """The two requests of a login with a password."""
    return sasl_login(PLAIN, f"\0{user}\0{password}".encode())


def sasl_login(mechanism: str, message: bytes) -> list[bytes]:
    """The handshake, and the first message of the mechanism."""
    return [
        _request(ApiKey.SASL_HANDSHAKE, HANDSHAKE_VERSION, SaslHandshakeRequest(mechanism=mechanism)),
        _request(ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, SaslAuthenticateRequest(auth_bytes=message)),
    ]


def _request(key: ApiKey, version: int, message: Message) -> bytes:
    return join(encode_request(key, version, 1, "hostile", message))


class Material:
    """The files and the identity provider of one setup."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self.provider = IdentityProvider() if setup is Setup.LOGIN else None
        self.certificates: DevCertificates | None = None
        self._folder = folder
        if setup in (Setup.TLS, Setup.MUTUAL_TLS):
            self.certificates = DevCertificates(folder / "certificates")
            self.certificates.issue("node", common_name="node", hosts=LOCAL_HOSTS)

    def flags(self) -> tuple[str, ...]:
        """Of `penstock serve`."""
        lines = self._settings()
        if not lines:
            return ()
        config = self._folder / "security.toml"
        config.write_text("\n".join(lines) + "\n")
        return ("--config", str(config))

    def _settings(self) -> list[str]:
        if self.setup is Setup.LOGIN:
            assert self.provider is not None
            oidc = {"jwks": self.provider.url, "issuer": ISSUER, "audience": AUDIENCE}
            return ["require_login = true", "metrics_without_login = true", "[oidc]", *_toml(oidc)]
        if self.certificates is None:
            return []
        folder = self.certificates.folder
        cert, key = str(folder / "node.pem"), str(folder / "node.key")
        if self.setup is Setup.TLS:
            return [*_toml({"tls_cert": cert, "tls_key": key}), "http_tls = false"]
        return ["[inter_node_tls]", *_toml({"cert": cert, "key": key, "ca": str(self.certificates.ca)})]

    def access(self, admin_password: str) -> Access:
        if self.setup is Setup.LOGIN:
            return Access("admin", admin_password)
        if self.setup is Setup.TLS and self.certificates is not None:
            return Access(authority=str(self.certificates.ca))
        return OPEN_ACCESS

    def close(self) -> None:
        if self.provider is not None:
            self.provider.close()


def _toml(values: Mapping[str, str]) -> list[str]:
    return [f'{name} = "{value}"' for name, value in values.items()]
