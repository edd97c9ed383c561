"""TLS between nodes: each side shows a certificate and checks the other's. The handshake of two nodes, and their
cluster key, come on top: a certificate lets a process talk, the key makes it a node.
"""

import asyncio
import ssl
from collections.abc import Callable

from penstock.config import Address, InterNodeTls, Limits
from penstock.node.peers.connection import PeerConnection
from penstock.node.peers.handshake import MAGIC
from penstock.node.tls import Hint, TlsPort, TlsTransport, inter_node_files
from penstock.node.tls.transport import SCRATCH_BYTES


class PeerEncryption:
    """Makes the connections of the inter-node port, in both directions."""

    def __init__(self, settings: InterNodeTls, limits: Limits) -> None:
        """ConfigError for files that cannot be used."""
        self._accepts, self._dials = inter_node_files(settings)
        self._limits = limits
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._port: TlsPort | None = None

    def accept(self, name: str, new: Callable[[], PeerConnection]) -> Callable[[], TlsTransport]:
        """The factory of the connections that other nodes open."""
        self._accepts.watch()
        self._dials.watch()
        most = self._limits.max_peer_handshakes
        self._port = TlsPort(name, self._accepts, self._limits, hint=_hint, room=lambda: most)
        return self._port.wrap(new)

    def dial(self, connection: PeerConnection, address: Address) -> TlsTransport:
        """The outer side of a connection that this node opens."""
        owner = _Dial(connection, self._dials.current, self._scratch, self._limits.peer_handshake_timeout_ms)
        return TlsTransport(owner, lambda: connection, dials=True, hostname=address.host)

    def stop(self) -> None:
        self._dials.stop()
        if self._port is not None:
            self._port.stop()


def _hint(first: bytes) -> Hint:
    if first.startswith(MAGIC):
        return Hint("is a node without inter_node_tls, and this node has it: give it the same setting")
    return Hint("speaks no TLS, which the inter-node port needs")


class _Dial:
    """The TLS handshake of one connection that this node opens."""

    def __init__(
        self, connection: PeerConnection, context: ssl.SSLContext, scratch: memoryview, timeout_ms: int
    ) -> None:
        self.scratch = scratch
        self._connection = connection
        self._context = context
        self._timeout_ms = timeout_ms
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, connection: TlsTransport) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_ms / 1000, self._late, connection)

    def _late(self, connection: TlsTransport) -> None:
        self._connection.not_opened(f"no TLS handshake within {self._timeout_ms} ms")
        connection.abort()

    def context(self) -> ssl.SSLContext:
        return self._context

    def admits(self, connection: TlsTransport) -> bool:
        return True

    def not_tls(self, connection: TlsTransport, first: bytes) -> bytes:
        raise AssertionError("a node that dials speaks first")

    def failed(self, connection: TlsTransport, problem: str) -> None:
        self._connection.not_opened(f"TLS: {problem}")

    def ended(self, connection: TlsTransport) -> None:
        if self._timer is not None:
            self._timer.cancel()
