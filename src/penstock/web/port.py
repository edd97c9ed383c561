"""The HTTP port of a node: uvicorn on a bound socket, inside a running event loop.

Uvicorn is made to own a process, so it is kept from handling signals, from waking up ten times a second to check
whether it should stop, and from logging: a host application may run uvicorn itself, and its loggers are its own. All
lines of this port come from the logger "penstock.web".

Limits on clients:
    many connections            limits.max_http_connections, and an eighth of the process' files; one more closes the
                                oldest idle connection, or is closed at once if all are being served
    an idle connection          limits.http_idle_timeout_ms, also if it sends bytes and never completes a request
    headers that do not end     MAX_HEADER_BYTES, and the bytes of one read of the socket
    a body                      read only by operations that take one, up to a size and a time (`api.bodies`); uvicorn
                                stops reading from the socket at 64 KB. The rest of a body that is too large is read and
                                discarded for a few seconds, so that its sender reads the response
    a body in small chunks      limits.max_http_body_chunks, then the request is refused and the connection closed, also
                                if the operation takes no body
    two lengths                 refused (`app.OneLength`)
    a response that is not read the client must read DRAIN_BYTES_MIN in the idle timeout, or the connection is closed;
                                large responses wait outside the socket's buffer, where they are counted (`api.routing`)
    TLS                         `node.tls.port` has the limits on handshakes
    a WebSocket                 counts as a connection; `websocket_protocol` has its other limits

The status log gets an event for each connection, as for those of the Kafka port. One that becomes a WebSocket ends as
an HTTP connection; `websocket_protocol` reports on the WebSocket."""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.node import Node, descriptors
from penstock.node.limited_log import LimitedLog
from penstock.types import EventSink
from penstock.web import websocket_protocol
from penstock.web.app import build_app

if TYPE_CHECKING:
    from penstock.node.tls import TlsPort

log = logging.getLogger("penstock.web")

MAX_HEADER_BYTES = 16 * 1024
DRAIN_BYTES_MIN = 64 * 1024
"""Bytes that a client must read of its response within the idle timeout: a slower one takes memory from others."""
STOP_SECONDS = 2
"""How long a response that is being sent may delay the stop."""
STOP_POLL_SECONDS = 0.02
TLS_RECORD = b"\x16\x03"
"""The first bytes of a client that speaks TLS."""


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
        self._app = build_app(node)
        config = _SilentConfig(
            self._app,
            http=protocol,
            ws=socket_protocol,
            **websocket_protocol.SETTINGS,
            lifespan="off",
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
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
        self._app.state.stopping.set()
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


class ChunkLimit(h11.Connection):
    """The server's side of a connection, which refuses bodies in too many chunks. A body of 300,000 chunks of one byte
    comes in a few reads of the socket, and each chunk is an event that takes the event loop's time."""

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, MAX_HEADER_BYTES)
        self._most = most
        self._chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            if self._chunks > self._most:
                message = f"a body of more than limits.max_http_body_chunks={self._most} chunks"
                raise h11.RemoteProtocolError(message, error_status_hint=413)
        elif isinstance(event, h11.Request):
            self._chunks = 0
        return event


_arrivals = itertools.count()
"""Numbers connections in their order; the event loop's clock is too coarse for that."""


class BoundedProtocol(H11Protocol):
    """One HTTP connection, with limits."""

    def __init__(
        self,
        *args: Any,
        max_connections: int,
        max_chunks: int,
        idle_seconds: float,
        events: EventSink,
        logger: Any,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.conn = ChunkLimit(max_chunks)
        self.logger = logger
        self.access_log = False
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        self._events = events
        self._is_told = False
        """Whether the status log has its opened event."""
        self._why_closed: str | None = None
        """Set if this node closes it."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._requests_seen: object = None
        self._unsent_seen = 0
        self.arrival = next(_arrivals)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        principal = transport.get_extra_info("principal")
        if principal is not None:
            self.app_state = {**self.app_state, "principal": principal}
        if len(self.connections) > self._max_connections and not self._close_an_idle_one():
            self._tell("refused", "too many connections")
            transport.abort()
        else:
            self._is_told = True
            self._tell("opened")
            self._start_idle_timer()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None and data[:2] == TLS_RECORD and self.conn.trailing_data[0] == b"":
            self.logger.warning(
                "a client speaks TLS to the HTTP port, which has none: use http://, or set tls_cert"
            )
            self._why_closed = "it speaks TLS"
            self.transport.abort()
            return
        super().data_received(data)

    def _tell(self, what: str, reason: str | None = None) -> None:
        websocket_protocol.tell_connection(self._events, what, self.client, "http", reason)

    def _close_an_idle_one(self) -> bool:
        """Closes the oldest idle connection: a client with many idle ones must not shut out a health probe."""
        others = (each for each in self.connections if each is not self and isinstance(each, BoundedProtocol))
        idle = [each for each in others if not (each.answering or each.transport.is_closing())]
        if not idle:
            return False
        oldest = min(idle, key=lambda each: each.arrival)
        oldest._why_closed = "idle, and the limit of connections is reached"
        oldest.transport.abort()
        return True

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._is_told:
            self._tell("closed", self._why_closed)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From here on the connection belongs to the WebSocket protocol, which has its own timeouts."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._tell("closed", "it becomes a WebSocket")
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuses a request that is not HTTP or exceeds a limit, unless its response has begun."""
        self._why_closed = "an invalid request"
        if self.cycle is not None:  # the application may have begun with it: it must neither wait nor answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drained = True

    def _start_idle_timer(self) -> None:
        self._requests_seen = self.cycle
        self._unsent_seen = self.transport.get_write_buffer_size()
        self._drained = False
        self._idle_timer = self.loop.call_later(self._idle_seconds, self._check_idle)

    def _check_idle(self) -> None:
        """Closes the connection unless a request came since the last check, or a response is being sent and read."""
        if self._is_stuck():
            self._why_closed = "the client does not read its response"
            self.transport.abort()
        elif self.answering or self.cycle is not self._requests_seen:
            self._start_idle_timer()
        else:
            self._why_closed = "idle"
            self.transport.close()

    def _is_stuck(self) -> bool:
        """Whether the client has read too little since the last check. A response in pieces refills the buffer: it is
        enough that the buffer ran low in between."""
        unsent = self.transport.get_write_buffer_size()
        taken = self._unsent_seen - unsent
        return self._unsent_seen > 0 and unsent > 0 and taken < DRAIN_BYTES_MIN and not self._drained
