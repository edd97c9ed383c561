"""How a client proves who it is, and how it knows its brokers: one value for the Kafka port, HTTP and WebSockets.

    made by    security_arguments.py (arguments of `Client`, names of librdkafka), spark/security_options.py (names of
               Kafka's Java clients)
    used by    http_nodes.py (HTTP and WebSockets), tls_context.py, wire/login.py; librdkafka gets its own settings

Passwords, tokens and private keys are part of the value, so that it can travel to other processes, and of nothing that
is printed: `repr` leaves them out, and so must every error and log line.
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ConfigError

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
PASSWORD_MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS)
MECHANISMS: Final = (*PASSWORD_MECHANISMS, OAUTHBEARER)
DEFAULT_MECHANISM: Final = SCRAM_SHA_256
"""Brokers offer it with and without TLS, and it does not show them the password."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
API_TOKEN_PREFIX: Final = "pst_"
"""Of the tokens that `penstock users token` makes; all others are an identity provider's."""


HIDDEN: Final = "(hidden)"
"""Stands for a secret in errors."""
_SECRET_WORDS: Final = ("password", "secret", "token", "jaas", "pem", "keystore.key")


def shown(name: str, value: object) -> object:
    """The value of a setting for errors, unless a setting of this name may hold a secret."""
    return HIDDEN if any(word in name.lower() for word in _SECRET_WORDS) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class SecuritySettings:
    """Without arguments: no TLS and no login. Files are PEM."""

    tls: bool = False
    ca_file: str = ""
    """The authorities that sign brokers' certificates; without any, those of the system."""
    ca_pem: str = field(default="", repr=False)
    """The same as text."""
    cert_file: str = ""
    """The certificate of this client, for brokers that ask for one; it may have intermediate ones behind it."""
    cert_pem: str = field(default="", repr=False)
    key_file: str = ""
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    check_certificate: bool = True
    check_hostname: bool = True
    mechanism: str = ""
    """By which the client logs in on the Kafka port; empty: it does not."""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """For OAUTHBEARER, and for HTTP and WebSockets, where it takes precedence over the password."""

    @property
    def protocol(self) -> str:
        """Kafka's `security.protocol`."""
        return f"{'SASL_' if self.mechanism else ''}{'SSL' if self.tls else 'PLAINTEXT'}"

    @property
    def has_credentials(self) -> bool:
        """Whether requests over HTTP have something that must not be told to strangers."""
        return bool(self.token or self.user)

    @property
    def described(self) -> str:
        """For errors: who logs in, and how."""
        if not self.mechanism:
            return "without a login"
        return f"by {self.mechanism}" + (f" as user {self.user!r}" if self.user else "")

    def validate(self) -> None:
        """Raises ConfigError for the first contradiction."""
        if self.mechanism:
            self._check_login()
        if (self.key_file or self.key_pem) and not (self.cert_file or self.cert_pem):
            raise ConfigError("ssl.key", self.key_file or HIDDEN, "a certificate (tls_cert) as well")

    def _check_login(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ConfigError("sasl.mechanism", self.mechanism, f"one of {', '.join(MECHANISMS)}")
        if self.mechanism in PASSWORD_MECHANISMS and not (self.user and self.password):
            given = "a user without a password" if self.user else "no user"
            raise ConfigError("sasl.mechanism", self.mechanism, f"a user and a password; there is {given}")


NO_SECURITY: Final = SecuritySettings()
