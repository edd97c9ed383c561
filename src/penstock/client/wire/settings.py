"""The settings of a client: the brokers' addresses, TLS and login, timeouts, and limits."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.client.security_settings import NO_SECURITY, OAUTHBEARER, SecuritySettings
from penstock.errors import ConfigError

MAX_PORT = 65_535
MAX_INT32 = 2**31 - 1
MIN_RESPONSE_BYTES = 1 << 10
"""A smaller limit could not hold the first answer of a connection."""

MAX_IN_FLIGHT: Final = 5
"""Batches of a partition that a producer sends before the first is acked: brokers keep the order of as many."""
REQUEST_OVERHEAD_BYTES: Final = 1 << 10
"""The bytes of a request around a batch: headers, and a topic name of at most 249 bytes."""
BATCH_BYTES: Final = 256 << 10
"""Larger batches gain nothing (see the head of batch/_encode.py) and reach the topics' limits sooner."""


class ServerAddress(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """Times are in milliseconds."""

    bootstrap_servers: str
    """`host:port,host:port`; an IPv6 host is in brackets. One that answers is enough to find the others."""
    client_id: str = "penstock"
    request_timeout_ms: int = 30_000
    """The longest wait for one whole answer. Connecting gets this too, but at most 10 s."""
    retry_for_ms: int = 120_000
    """How long the client retries during leader changes, restarts and slow answers; 0 tries once."""
    retry_backoff_ms: int = 100
    """The first pause between two tries; it doubles up to 1 s."""
    max_response_bytes: int = 256 << 20
    """The client refuses a larger answer before reading it."""
    security: SecuritySettings = NO_SECURITY
    """TLS, and the login."""

    def validate(self) -> None:
        """Raises ConfigError for the first invalid field."""
        parse_servers(self.bootstrap_servers)
        if len(self.client_id.encode()) > 1000:
            raise ConfigError("client_id", self.client_id[:40] + "...", "at most 1000 bytes")
        _check("request_timeout_ms", self.request_timeout_ms, 1, MAX_INT32)
        _check("retry_for_ms", self.retry_for_ms, 0, MAX_INT32)
        _check("retry_backoff_ms", self.retry_backoff_ms, 1, MAX_INT32)
        _check("max_response_bytes", self.max_response_bytes, MIN_RESPONSE_BYTES, MAX_INT32)
        self.security.validate()
        if self.security.mechanism == OAUTHBEARER and not self.security.token:
            raise ConfigError("sasl.mechanism", OAUTHBEARER, "a token")


def parse_servers(text: str) -> tuple[ServerAddress, ...]:
    """The addresses in `host:port,host:port`, each once."""
    servers = tuple(dict.fromkeys(_parse_server(part.strip()) for part in text.split(",") if part.strip()))
    if not servers:
        raise ConfigError("bootstrap_servers", text, "HOST:PORT[,HOST:PORT...], such as 127.0.0.1:9092")
    return servers


def _parse_server(text: str) -> ServerAddress:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not (colon and bare and 0 < number <= MAX_PORT) or (":" in bare and not bracketed):
        expected = (
            f"HOST:PORT with a port from 1 to {MAX_PORT}, such as 127.0.0.1:9092 or [::1]:9092, "
            "several with commas between them"
        )
        raise ConfigError("bootstrap_servers", text, expected)
    return ServerAddress(bare, number)


def _check(field: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise ConfigError(field, value, f"{lowest} .. {highest}")
