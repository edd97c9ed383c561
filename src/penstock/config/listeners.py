"""Listeners for Kafka clients, and TLS on every port.

The common case is one listener, made of the settings `kafka`, `advertise`, `tls_cert`, `tls_key` and `tls_ca`. A node
with several has a table `[[listeners]]` for each: one without TLS for its own machine, and one with TLS for the
network, for example.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.config.address import UNREACHABLE_HOSTS, Address
from penstock.config.fields import check_fields
from penstock.errors import ConfigError

DEFAULT_LISTENER = "default"
"""The name of the listener of a node that has only one."""
MAX_LISTENERS = 16
"""Each is a socket, and an address that every node and every metadata snapshot holds."""

ClientAuth = Literal["none", "wanted", "required"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
ListenerName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
FileName = Annotated[str, Meta(min_length=1, max_length=4096)]
PrincipalRules = Annotated[str, Meta(min_length=1, max_length=8192)]

PASSWORD_MECHANISMS: tuple[Mechanism, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
"""Offered by a listener that requires login and does not name its mechanisms, in the order that clients see."""
TOKEN_MECHANISMS: tuple[Mechanism, ...] = ("OAUTHBEARER",)
"""Offered behind them if there is an identity provider."""
READABLE_MECHANISMS: tuple[Mechanism, ...] = ("PLAIN", "OAUTHBEARER")
"""Send the password or the token itself: an eavesdropper can log in with it."""

T = TypeVar("T")


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS on a port for clients. All files are PEM; `cert` may have intermediate certificates behind the first."""

    cert: FileName
    key: FileName
    ca: FileName | None = None
    """Certificates of the authorities that may sign clients' certificates."""
    client_auth: ClientAuth | None = None
    """Whether clients show a certificate. None: required if there is a `ca`, else none."""
    principal_rules: PrincipalRules = "DEFAULT"
    """How a certificate's subject becomes a principal: Kafka's ssl.principal.mapping.rules."""

    @property
    def client_certificates(self) -> ClientAuth:
        return self.client_auth or ("required" if self.ca is not None else "none")

    def validate(self, field: str) -> None:
        check_fields(self, f"{field}.")
        if self.ca is None and self.client_certificates != "none":
            expected = "a `ca` as well: without one, no client's certificate can be checked"
            raise ConfigError(f"{field}.client_auth", self.client_auth, expected)


class InterNodeTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS between nodes: each node shows its certificate, and checks that `ca` has signed the other's."""

    cert: FileName
    key: FileName
    ca: FileName
    check_hostname: bool = True
    """Whether the certificate of a node must name the host at which it is dialled."""


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One port for Kafka clients."""

    bind: Address
    name: ListenerName = DEFAULT_LISTENER
    advertise: Address | None = None
    """The address that clients of this listener are given, if it is not `bind`. Port 0: the bound one."""
    tls: TlsSettings | None = None
    mechanisms: tuple[Mechanism, ...] | None = None
    """SASL mechanisms by which clients log in; empty: clients cannot log in here. None: `default_mechanisms` if login
    is required, else none."""

    @property
    def advertised(self) -> Address:
        return self.advertise or self.bind

    @property
    def protocol(self) -> str:
        """Kafka's name for it."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return f"SASL_{transport}" if self.mechanisms else transport

    @property
    def has_login(self) -> bool:
        """Whether a client that cannot say who it is gets nothing here."""
        return bool(self.mechanisms) or (self.tls is not None and self.tls.client_certificates == "required")


class _ListenerTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[listeners]]` as it is written."""

    bind: str
    name: ListenerName = DEFAULT_LISTENER
    advertise: str | None = None
    tls: TlsSettings | bool = False
    mechanisms: tuple[Mechanism, ...] | None = None


def default_mechanisms(bind: Address, *, encrypted: bool, tokens: bool) -> tuple[Mechanism, ...]:
    """`tokens`: there is an identity provider. Beyond loopback, READABLE_MECHANISMS need TLS."""
    known = PASSWORD_MECHANISMS + (TOKEN_MECHANISMS if tokens else ())
    if encrypted or bind.is_loopback:
        return known
    return tuple(one for one in known if one not in READABLE_MECHANISMS)


def check_listeners(listeners: tuple[Listener, ...], *, plain_without_tls: bool) -> None:
    """Raises ConfigError unless clients could use these listeners together."""
    if len(listeners) > MAX_LISTENERS:
        raise ConfigError("listeners", len(listeners), f"{MAX_LISTENERS} at most")
    for number, listener in enumerate(listeners):
        _check_listener(listener, f"listener {listener.name}", plain_without_tls)
        for other in listeners[:number]:
            if listener.name == other.name:
                raise ConfigError("listeners", listener.name, "a name of its own for each listener")
            if listener.bind == other.bind and listener.bind.port != 0:
                raise ConfigError("listeners", str(listener.bind), "an address of its own for each listener")


def _check_listener(listener: Listener, field: str, plain_without_tls: bool) -> None:
    check_fields(listener, f"{field}: ")
    if listener.tls is not None:
        listener.tls.validate(f"{field}: tls")
    check_reachable(f"{field}: {'advertise' if listener.advertise else 'bind'}", listener.advertised)
    readable = [one for one in listener.mechanisms or () if one in READABLE_MECHANISMS]
    if readable and listener.tls is None and not listener.bind.is_loopback and not plain_without_tls:
        secrets = "passwords" if readable[0] == "PLAIN" else "tokens"
        expected = (
            f"no {readable[0]}, or TLS: other machines can reach this listener, and {readable[0]} sends {secrets} that "
            "everyone on the way can read. plain_without_tls=true allows it all the same"
        )
        raise ConfigError(f"{field}: mechanisms", ",".join(listener.mechanisms or ()), expected)


def check_reachable(field: str, advertised: Address) -> None:
    if advertised.host in UNREACHABLE_HOSTS:
        expected = (
            "a host that clients can reach: this one only means `every interface`. Set advertise "
            "(--advertise HOST:PORT) to the address that clients use"
        )
        raise ConfigError(field, str(advertised), expected)


def read_listeners(origin: str, value: object) -> tuple[Listener, ...]:
    """The tables of the config file."""
    if not isinstance(value, list | tuple):
        raise ConfigError(origin, value, "tables: [[listeners]], in the config file only")
    return tuple(_read_listener(f"{origin}, table {number}", table) for number, table in enumerate(value, 1))


def _read_listener(origin: str, value: object) -> Listener:
    table = read_table(origin, value, _ListenerTable)
    if table.tls is True:
        raise ConfigError(f"tls of {origin}", True, "a table with cert and key, or false")
    return Listener(
        name=table.name,
        bind=Address.parse(f"bind of {origin}", table.bind),
        advertise=Address.parse(f"advertise of {origin}", table.advertise) if table.advertise else None,
        tls=table.tls or None,
        mechanisms=table.mechanisms,
    )


def read_http_tls(origin: str, value: object) -> TlsSettings | bool:
    """A table, or false for none."""
    if value is False or str(value).lower() == "false":
        return False
    return read_table(origin, value, TlsSettings)


def read_table(origin: str, value: Any, kind: type[T]) -> T:
    """A table of the config file as its struct."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise ConfigError(origin, value, str(problem)) from None
