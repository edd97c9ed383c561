"""The TLS side of one port: which handshakes are under way, how long they may take, and hints for clients without TLS.

many handshakes          limits.max_tls_handshakes, and no more than the port may have connections beside those that
                         it has (`room`), because each is an open file. One more closes the oldest, which is the
                         least likely to come to its end: clients that connect and send nothing keep no others out
a slow handshake         limits.tls_handshake_timeout_ms, from the first packet to the end of the handshake
plain HTTP               answered with 400 and one line, because people try http:// first
anything else            a line in the log, at a limited rate, and the connection is closed
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.config import Limits, TlsSettings
from penstock.errors import PenstockError
from penstock.node.limits.limited_log import LimitedLog
from penstock.node.tls.contexts import TlsFiles, client_port_files
from penstock.node.tls.transport import SCRATCH_BYTES, InnerProtocol, TlsTransport
from penstock.security.certificates import certificate_principal, distinguished_name, parse_mapping_rules

log = logging.getLogger("penstock.tls")

Principal = Callable[[dict[str, Any]], str]
"""The principal of a certificate, as `getpeercert` describes it; PenstockError if it has none."""


class Hint(NamedTuple):
    """For a peer that does not speak TLS: a line for the log, and an answer that the peer may understand."""

    line: str
    answer: bytes = b""


_HTTPS = b"This port speaks HTTPS: use https:// instead of http://.\n"
_NO_HTTP = b"This port is for Kafka clients, with TLS (security.protocol=SSL). It does not speak HTTP.\n"


def http_hint(first: bytes) -> Hint:
    return Hint("speaks no TLS, which this port needs: use https://", _bad_request(_HTTPS))


def kafka_hint(first: bytes) -> Hint:
    if first[:1].isupper():  # a method of HTTP; Kafka's requests begin with a length, whose first byte is 0
        return Hint("sent HTTP to a port for Kafka clients with TLS", _bad_request(_NO_HTTP))
    return Hint("speaks no TLS, which this port needs: set security.protocol to SSL or SASL_SSL there")


class TlsPort:
    """Makes the connections of one port, and owns each until its handshake is over."""

    def __init__(
        self,
        name: str,
        files: TlsFiles,
        limits: Limits,
        *,
        hint: Callable[[bytes], Hint],
        room: Callable[[], int],
        principal: Principal | None = None,
    ) -> None:
        """`hint` gets the first bytes of a peer that speaks no TLS. `room`: how many handshakes the port has room for,
        beside its connections."""
        self.name = name
        self.files = files
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._limits = limits
        self._principal = principal
        self._hint = hint
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._warnings = LimitedLog(log, self._loop.time)
        self._under_way: dict[TlsTransport, asyncio.TimerHandle] = {}
        """Handshakes, oldest first, and the end of each one's time."""

    def wrap(self, new_protocol: Callable[[], InnerProtocol]) -> Callable[[], TlsTransport]:
        """The factory of a server's connections; `new_protocol` is called when a handshake has succeeded."""
        return lambda: TlsTransport(self, new_protocol)

    @property
    def handshakes(self) -> int:
        return len(self._under_way)

    def stop(self) -> None:
        """Ends the handshakes that are under way."""
        self.files.stop()
        for connection in list(self._under_way):
            connection.abort()

    # --- for connections

    def context(self) -> ssl.SSLContext:
        return self.files.current

    def opened(self, connection: TlsTransport) -> None:
        most = max(1, min(self._limits.max_tls_handshakes, self._room()))
        while len(self._under_way) >= most:
            oldest = next(iter(self._under_way))
            self._drop(oldest, "too many are under way (limits.max_tls_handshakes), and it was the oldest")
        seconds = self._limits.tls_handshake_timeout_ms / 1000
        self._under_way[connection] = self._loop.call_later(seconds, self._late, connection)

    def _late(self, connection: TlsTransport) -> None:
        milliseconds = self._limits.tls_handshake_timeout_ms
        self._drop(connection, f"no TLS handshake within limits.tls_handshake_timeout_ms={milliseconds}")

    def _drop(self, connection: TlsTransport, reason: str) -> None:
        self.failed(connection, reason)
        self.ended(connection)
        connection.abort()

    def admits(self, connection: TlsTransport) -> bool:
        certificate = connection.get_extra_info("peercert")
        if certificate and self._principal is not None:
            try:
                connection.set_extra_info("principal", self._principal(certificate))
            except PenstockError as refused:
                self.failed(connection, str(refused))
                return False
        return True

    def not_tls(self, connection: TlsTransport, first: bytes) -> bytes:
        line, answer = self._hint(first)
        self._warn(connection, line)
        return answer

    def failed(self, connection: TlsTransport, problem: str) -> None:
        if connection in self._under_way:
            self._warn(connection, f"TLS handshake failed: {problem}")

    def ended(self, connection: TlsTransport) -> None:
        timer = self._under_way.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _warn(self, connection: TlsTransport, problem: str) -> None:
        """One line for many clients with the same problem."""
        self._warnings.warn(problem, f"{self.name}: {connection.host}: {problem}")


def check_client_port(field: str, settings: TlsSettings) -> None:
    """Raises ConfigError for files or rules that cannot be used."""
    parse_mapping_rules(settings.principal_rules)
    client_port_files(field, settings)


def client_port(
    name: str,
    field: str,
    settings: TlsSettings,
    limits: Limits,
    *,
    room: Callable[[], int],
    speaks_http: bool = False,
) -> TlsPort:
    """A port for clients, which watches its files from now on. ConfigError for files or rules that cannot be used."""
    rules = parse_mapping_rules(settings.principal_rules)

    def principal(certificate: dict[str, Any]) -> str:
        return certificate_principal(distinguished_name(certificate["subject"]), rules)

    files = client_port_files(field, settings, ("http/1.1",) if speaks_http else ())
    files.watch()
    hint = http_hint if speaks_http else kafka_hint
    return TlsPort(name, files, limits, principal=principal, hint=hint, room=room)


def _bad_request(text: bytes) -> bytes:
    head = (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n"
    )
    return head % len(text) + text
