"""Which carrier an address names: penstock://host:port, nats://host:port or memory://NAME."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack, cast
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.client.security_arguments import SecurityArguments
from penstock.clique.codecs import Codec, RecordCodec, WrappingCodec
from penstock.clique.errors import CliqueError, MissingExtra
from penstock.clique.forwarding_transport import ForwardingTransport
from penstock.clique.handlers import HandlerTable
from penstock.clique.memory import MemoryPubSub
from penstock.clique.pubsub import PubSub
from penstock.clique.transport import Codecs, Transport

if TYPE_CHECKING:
    from penstock.client.aio.client import AsyncClient

SCHEMES: Final = "penstock://host:port, nats://host:port or memory://NAME"
_METHODS: Final = ("connect", "another", "publish", "subscribe", "close")


class PenstockCarrier:
    """The brokers of Penstock, with settings that an address cannot hold."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        http: str | Sequence[str] | None = None,
        kafka: Mapping[str, Any] | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """`http`: the nodes' HTTP addresses, if workers reach them at others than the nodes say. `kafka`: settings of
        librdkafka. The others are for TLS and the login. All are those of `penstock.client.Client`."""
        self._servers = bootstrap_servers
        self._http = http
        self._kafka = kafka
        self._security = security

    def make_client(self) -> "AsyncClient":
        from penstock.client.aio.client import AsyncClient  # librdkafka is loaded when it is needed

        return AsyncClient(
            self._servers, http=self._http, kafka=self._kafka, reconnect_timeout_s=None, **self._security
        )

    def __repr__(self) -> str:
        return f"penstock://{self._servers}"


Carrier = str | PubSub | PenstockCarrier


def transport_of(
    carrier: Carrier,
    clique: str,
    worker: str,
    handlers: HandlerTable,
    codec: Codec | None,
    *,
    keeps_dead_letters: bool,
    security: SecurityArguments | None = None,
) -> Transport:
    """`codec`: None for the carrier's default. `keeps_dead_letters`: whether messages that are given up become dead
    letters, or are only logged. `security`: for a carrier that is named by its address."""
    carrier = secured(carrier, security or {})
    if isinstance(carrier, PenstockCarrier):
        from penstock.clique.penstock_transport import PenstockTransport

        codecs = Codecs(codec or RecordCodec(), handlers)
        return PenstockTransport(
            clique, worker, carrier.make_client, handlers, codecs, keeps_dead_letters=keeps_dead_letters
        )
    codecs = Codecs(codec or WrappingCodec(), handlers)
    return ForwardingTransport(
        clique, worker, pubsub_of(carrier), handlers, codecs, keeps_dead_letters=keeps_dead_letters
    )


def secured(carrier: Carrier, security: SecurityArguments) -> Carrier:
    """The carrier with these settings. They may be in its address as well: penstock://user:password@host:port."""
    given = cast(SecurityArguments, {name: value for name, value in security.items() if value})
    if not isinstance(carrier, str):
        if given:
            raise TypeError(
                f"{', '.join(given)}: a carrier that is an object has its own settings: give them to it"
            )
        return carrier
    parts = urlsplit(carrier)
    if parts.scheme == "penstock" and parts.netloc:
        servers, login = _split_login(parts.netloc)
        if login and ("user" in given or "password" in given):
            raise TypeError("user, password: the address has them already")
        merged: SecurityArguments = {**login, **given}
        return PenstockCarrier(servers, **merged)
    if parts.scheme in ("nats", "tls") and parts.netloc and given:
        return _nats(_nats_servers(parts), nats_options(given))
    if given:
        raise TypeError(f"{', '.join(given)}: {described(carrier)} has no login and no TLS")
    return carrier


def _split_login(netloc: str) -> tuple[str, SecurityArguments]:
    login, at, servers = netloc.partition("@")
    if not at:
        return netloc, {}
    user, _, password = login.partition(":")
    return servers, {"user": unquote(user), "password": unquote(password)}


def nats_options(security: SecurityArguments) -> dict[str, Any]:
    """The options of `nats.connect` that mean the same."""
    options: dict[str, Any] = {name: security[name] for name in ("user", "password") if security.get(name)}
    token = security.get("token")
    if token:
        options["token"] = token if isinstance(token, str) else token()
    if any(security.get(name) for name in ("tls", "tls_ca", "tls_cert")):
        from penstock.client.security_arguments import client_security
        from penstock.client.tls_context import client_context

        files = {name: value for name, value in security.items() if name.startswith("tls")}
        options["tls"] = client_context(client_security(cast(SecurityArguments, files), {}).settings)
    return options


def described(carrier: Carrier) -> str:
    """For people: without a password."""
    if not isinstance(carrier, str):
        return repr(carrier)
    if "@" not in carrier:
        return carrier
    parts = urlsplit(carrier)
    servers = [server.rpartition("@")[2] for server in parts.netloc.split(",")]
    return parts._replace(netloc=",".join(servers)).geturl()


def pubsub_of(carrier: str | PubSub) -> PubSub:
    """The connection that an address names, not connected yet; or the object itself."""
    if not isinstance(carrier, str):
        missing = [name for name in _METHODS if not callable(getattr(carrier, name, None))]
        if missing:
            raise TypeError(
                f"carrier={carrier!r}: expected {SCHEMES}, or a PubSub; it has no {', '.join(missing)}"
            )
        return carrier
    parts = urlsplit(carrier)
    match parts.scheme:
        case "memory" if parts.netloc:
            return MemoryPubSub(parts.netloc)
        case "nats" | "tls" if parts.netloc:
            return _nats(_nats_servers(parts), {})
    raise CliqueError(f"carrier={described(carrier)!r}: expected {SCHEMES}, or a PubSub")


def _nats_servers(parts: SplitResult) -> list[str]:
    return [f"{parts.scheme}://{server}" for server in parts.netloc.split(",")]


def _nats(servers: list[str], options: Mapping[str, Any]) -> PubSub:
    try:
        from penstock.clique.nats_carrier import NatsPubSub
    except ModuleNotFoundError:
        raise MissingExtra(
            f"carrier={described(servers[0])!r} needs the package nats-py: pip install 'penstock[nats]'"
        ) from None
    return NatsPubSub(servers, **options)
