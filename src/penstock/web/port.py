"""The HTTP port of a node: uvicorn on a bound socket, inside a running event loop.

Uvicorn is made to own a process, so it is kept from handling signals, from waking up ten times a second to check
whether it should stop, and from logging: a host application may run uvicorn itself, and its loggers are its own. All
lines of this port come from the logger "penstock.web".

Limits on clients:
    many connections            limits.max_http_connections, and an eighth of the process' files; one more closes the
                                oldest idle connection, or is closed at once if all are being served
    what one connection sends   `http_protocol`, and `websocket_protocol` for a WebSocket, which counts as a connection
    a body                      read only by operations that take one, up to a size and a time (`api.bodies`); uvicorn
                                stops reading from the socket at 64 KB. The rest of a body that is too large is read and
                                discarded for a few seconds, so that its sender reads the response
    a response that is not read large ones wait outside the socket's buffer, where they are counted (`api.routing`)
    TLS                         `node.tls.port` has the limits on handshakes"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import uvicorn

from penstock.node import Node
from penstock.node.limits import descriptors
from penstock.node.limits.limited_log import LimitedLog
from penstock.web import websocket_protocol
from penstock.web.app import WebApp
from penstock.web.http_protocol import BoundedProtocol
from penstock.web.trusted_proxies import TrustedProxies

if TYPE_CHECKING:
    from penstock.node.tls import TlsPort

log = logging.getLogger("penstock.web")

STOP_SECONDS = 2
"""How long a response that is being sent may delay the stop."""
STOP_POLL_SECONDS = 0.02


class WebPort:
    """Serves the node's HTTP paths from `start()` to `stop()`. The socket is closed by `stop()`."""

    def __init__(self, listener: socket.socket, node: Node) -> None:
        self._listener = listener
        most = min(node.config.limits.max_http_connections, descriptors.for_http())
        idle_seconds = node.config.limits.http_idle_timeout_ms / 1000
        protocol: Any = partial(
            BoundedProtocol,
            max_connections=most,
            max_chunks=node.config.limits.max_http_body_chunks,
            idle_seconds=idle_seconds,
            events=node.events,
            logger=_LimitedLogger(log, LimitedLog(log, asyncio.get_running_loop().time)),
        )
        socket_protocol: Any = partial(websocket_protocol.BoundedSocket, events=node.events)
        self._app = WebApp(node)
        trusted = node.config.http_trusted_proxies
        config = _SilentConfig(
            TrustedProxies(self._app, trusted) if trusted else self._app,
            http=protocol,
            ws=socket_protocol,
            **websocket_protocol.SETTINGS,
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,  # uvicorn would trust programs on this machine, and take any text for an address
            timeout_keep_alive=ceil(idle_seconds),
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._server = _EmbeddedServer(config)
        self._tls = self._server.tls = self._tls_port(node, most)
        self._task: asyncio.Task[None] | None = None

    def _tls_port(self, node: Node, most: int) -> "TlsPort | None":
        settings = node.config.http_encryption
        if settings is None:
            return None
        from penstock.node.tls import client_port

        connections = self._server.server_state.connections
        return client_port(
            f"HTTP port {node.config.http}",
            "tls of the HTTP port",
            settings,
            node.config.limits,
            room=lambda: most - len(connections),
            speaks_http=True,
        )

    async def start(self) -> None:
        """Returns when the port accepts connections."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._listener]))
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({self._task, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Ends long polls, lets responses finish, then closes every connection and the socket."""
        self._app.stopping.set()
        self._server.ask_to_stop()
        if self._task is not None:
            await self._task
        if self._tls is not None:
            self._tls.stop()
        self._listener.close()


class _SilentConfig(uvicorn.Config):
    """Changes no logger: uvicorn's own would remove the handlers of "uvicorn.access"."""

    def configure_logging(self) -> None:
        pass


class _EmbeddedServer(uvicorn.Server):
    """Uvicorn in a process that it does not own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.tls: TlsPort | None = None
        self.listening = asyncio.Event()
        self._stopping = asyncio.Event()

    def ask_to_stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the host

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, without its lines about the process."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets)
        await self.main_loop()
        await self.shutdown(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops accepting connections, and gives responses that are being sent STOP_SECONDS."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(STOP_POLL_SECONDS)
        except TimeoutError:
            log.warning("%d requests were not answered before the node stopped", len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with this project's TLS instead of the event loop's."""
        await self.lifespan.startup()
        kind: Any = self.config.http_protocol_class
        new = partial(kind, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        factory = new if self.tls is None else self.tls.wrap(new)
        loop, backlog = asyncio.get_running_loop(), self.config.backlog
        self.servers = [await loop.create_server(factory, sock=one, backlog=backlog) for one in sockets or ()]
        self.started = True
        self.listening.set()

    async def main_loop(self) -> None:
        await self._stopping.wait()


class _LimitedLogger(logging.LoggerAdapter[logging.Logger]):
    """Uvicorn warns of every request that is not HTTP: clients must not fill the disk with such lines."""

    def __init__(self, logger: logging.Logger, warnings: LimitedLog) -> None:
        super().__init__(logger, {})
        self.level = logger.level
        self._warnings = warnings

    def warning(self, msg: object, *args: object, **options: Any) -> None:
        self._warnings.warn(str(msg), str(msg) % args if args else str(msg))
