"""Opens a socket to a broker, with TLS if the settings say so."""

import socket
import time
from typing import Final, TypeAlias

from penstock.client.errors import ClientError, Unreachable
from penstock.client.wire.settings import ClientSettings, ServerAddress

CONNECT_TIMEOUT_MS_MAX: Final = 10_000
"""A host that is up answers a SYN at once; the rest of request_timeout_ms is for the broker's work."""
MIN_CONNECT_S: Final = 0.001
"""A timeout of 0 would make the socket non-blocking, and connect would fail at once."""

_Where: TypeAlias = tuple[str | int, ...] | tuple[int, bytes]
"""An address as getaddrinfo returns it and connect takes it."""


def explain(problem: OSError, timeout_ms: int) -> str:
    """The text of an OSError."""
    if isinstance(problem, TimeoutError):
        return f"no answer within {timeout_ms} ms"
    return problem.strerror or str(problem) or type(problem).__name__


def failure(problem: OSError, address: ServerAddress, settings: ClientSettings, doing: str) -> ClientError:
    """A connection broke with this problem, or cannot be made."""
    if settings.security.tls:
        from penstock.client.tls_context import tls_failure  # `ssl` is not loaded for connections without it

        final = tls_failure(problem, str(address))
        if final is not None:
            return final
    return Unreachable(f"{address}: {explain(problem, settings.request_timeout_ms)} while {doing}")


def begin_tls(sock: socket.socket, address: ServerAddress, settings: ClientSettings) -> socket.socket:
    """The encrypted socket, after the handshake. If it fails, the socket is closed."""
    from penstock.client.tls_context import client_context

    try:
        return client_context(settings.security).wrap_socket(sock, server_hostname=address.host)
    except OSError as problem:
        sock.close()
        raise failure(problem, address, settings, "beginning TLS") from None
    except BaseException:
        sock.close()
        raise


def connect(address: ServerAddress, settings: ClientSettings) -> socket.socket:
    """A socket to the first of the host's addresses that accepts; the time is divided among them."""
    timeout_ms = min(settings.request_timeout_ms, CONNECT_TIMEOUT_MS_MAX)
    choices = _resolve(address)
    deadline = time.monotonic() + timeout_ms / 1000
    failure: OSError = TimeoutError()
    for index, (family, where) in enumerate(choices):
        share_s = (deadline - time.monotonic()) / (len(choices) - index)
        try:
            return _connect_to(family, where, max(MIN_CONNECT_S, share_s))
        except OSError as problem:
            failure = problem
    raise Unreachable(
        f"{address}: {explain(failure, timeout_ms)} while connecting: "
        "check that the broker runs and that this address is the right one"
    )


def _resolve(address: ServerAddress) -> list[tuple[int, _Where]]:
    try:
        # Only the resolver's own limits bound this; it has no timeout argument.
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise Unreachable(
            f"{address}: the host name cannot be resolved ({getattr(problem, 'strerror', None) or problem}): "
            "check bootstrap_servers and the addresses that the brokers advertise",
            retriable=getattr(problem, "errno", None) == socket.EAI_AGAIN,
        ) from None
    return [(family, where) for family, _kind, _protocol, _name, where in found]


def _connect_to(family: int, where: _Where, timeout_s: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.connect(where)
    except BaseException:
        sock.close()
        raise
    return sock
