"""Which carrier an address names: penstock://host:port, nats://host:port or memory://NAME."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

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
    ) -> None:
        """`http`: the nodes' HTTP addresses, if workers reach them at others than the nodes say. `kafka`: settings of
        librdkafka, such as those for security. As in `penstock.client.Client`."""
        self._servers = bootstrap_servers
        self._http = http
        self._kafka = kafka

    def make_client(self) -> "AsyncClient":
        from penstock.client.aio.client import AsyncClient  # librdkafka is loaded when it is needed

        return AsyncClient(self._servers, http=self._http, kafka=self._kafka, reconnect_timeout_s=None)

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
    buries: bool,
) -> Transport:
    """`codec`: None for the carrier's default. `buries`: whether dead letters are kept."""
    if isinstance(carrier, str) and urlsplit(carrier).scheme == "penstock" and urlsplit(carrier).netloc:
        carrier = PenstockCarrier(urlsplit(carrier).netloc)
    if isinstance(carrier, PenstockCarrier):
        from penstock.clique.penstock_transport import PenstockTransport

        codecs = Codecs(codec or RecordCodec(), handlers)
        return PenstockTransport(clique, worker, carrier.make_client, handlers, codecs, buries=buries)
    codecs = Codecs(codec or WrappingCodec(), handlers)
    return ForwardingTransport(clique, worker, pubsub_of(carrier), handlers, codecs, buries=buries)


def described(carrier: Carrier) -> str:
    """For people: without a password."""
    if not isinstance(carrier, str):
        return repr(carrier)
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
            return _nats([f"{parts.scheme}://{server}" for server in parts.netloc.split(",")])
    raise CliqueError(f"carrier={carrier!r}: expected {SCHEMES}, or a PubSub")


def _nats(servers: list[str]) -> PubSub:
    try:
        from penstock.clique.nats_carrier import NatsPubSub
    except ModuleNotFoundError:
        raise MissingExtra(
            f"carrier={servers[0]!r} needs the package nats-py: pip install 'penstock[nats]'"
        ) from None
    return NatsPubSub(servers)
