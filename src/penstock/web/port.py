"""The HTTP port of a node: uvicorn on a socket that is bound already, inside an event loop that runs already.

Uvicorn is made for owning a process, so three of its habits are turned off: it does not take over signals, it
does not wake up ten times a second to look whether it should stop, and it does not configure logging.

What a caller may do to us, and the limit:
    many connections            limits.max_http_connections, and an eighth of the process' files; the next one takes
                                the place of the oldest that is idle, and is closed at once when all are being answered
    a connection without a word limits.http_idle_timeout_ms, also when it drips bytes and never completes a request
    headers that do not end     MAX_HEADER_BYTES, and what one read of the socket brings
    a body                      read only where one is wanted, up to a size and a time (`api.bodies`, `cluster`);
                                uvicorn stops reading from the socket at 64 KB. What is too large is thrown away for a
                                few seconds, so that its sender gets to read why
    two lengths                 refused (`app.OneLength`)
    an answer that is not read  DRAIN_BYTES_MIN in the same time, or the connection is ended; large answers wait
                                outside the socket's buffer, where they are counted (`api.routing`)
    a WebSocket                 counts as a connection; for the rest see `sockets`

Connections are told to the status log as those of the Kafka port are. One that becomes a WebSocket ends as an HTTP
connection: what becomes of it is told by `sockets`.
"""

import asyncio
import contextlib
import itertools
import resource
import socket
import sys
from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.node import Node
from penstock.types import EventSink
from penstock.web import sockets
from penstock.web.app import build_app

FILES_SHARE = 8
"""The Kafka port takes three quarters of the process' files, this one an eighth: logs must always find one."""
FILES_MIN = 64
MAX_HEADER_BYTES = 16 * 1024
DRAIN_BYTES_MIN = 64 * 1024
"""What a caller must have taken of its answer in the time that it may be idle: less holds memory that others need."""
STOP_SECONDS = 2
"""How long an answer that is under way may delay the stop."""


class WebPort:
    """Serves the node's HTTP paths from `start()` to `stop()`. The socket is closed by `stop()`."""

    def __init__(self, listener: socket.socket, node: Node) -> None:
        self._listener = listener
        most = min(node.config.limits.max_http_connections, _files_for_connections())
        idle_seconds = node.config.limits.http_idle_timeout_ms / 1000
        protocol: Any = partial(
            BoundedProtocol, max_connections=most, idle_seconds=idle_seconds, events=node.events
        )
        socket_protocol: Any = partial(sockets.BoundedSocket, events=node.events)
        self._app = build_app(node)
        config = uvicorn.Config(
            self._app,
            http=protocol,
            ws=socket_protocol,
            **sockets.SETTINGS,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=ceil(idle_seconds),
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._server = _GuestServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the port answers."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._listener]))
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({self._task, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Ends long polls, lets answers that are under way finish, then closes every connection and the socket."""
        self._app.state.stopping.set()
        self._server.ask_to_stop()
        if self._task is not None:
            await self._task
        self._listener.close()


class _GuestServer(uvicorn.Server):
    """Uvicorn as a guest in somebody else's process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._stopping = asyncio.Event()

    def ask_to_stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        await self._stopping.wait()


_arrivals = itertools.count()
"""Numbers connections in their order; the loop's clock is too coarse for that."""


class BoundedProtocol(H11Protocol):
    """One HTTP connection, with an end to its patience."""

    def __init__(
        self, *args: Any, max_connections: int, idle_seconds: float, events: EventSink, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        self._events = events
        self._is_told = False
        """Whether the status log knows that it is open."""
        self._why_closed: str | None = None
        """Set where this node ends it."""
        self._patience: asyncio.TimerHandle | None = None
        self._requests_seen: object = None
        self._unsent_seen = 0
        self.arrival = next(_arrivals)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections and not self._take_a_place():
            self._tell("refused", "too many connections")
            transport.abort()
        else:
            self._is_told = True
            self._tell("opened")
            self._wait_for_a_request()

    def _tell(self, what: str, reason: str | None = None) -> None:
        sockets.tell_connection(self._events, what, self.client, "http", reason)

    def _take_a_place(self) -> bool:
        """Ends the oldest idle connection: a caller who holds many silently must not shut out a probe."""
        others = (each for each in self.connections if each is not self and isinstance(each, BoundedProtocol))
        idle = [each for each in others if not (each.answering or each.transport.is_closing())]
        if not idle:
            return False
        oldest = min(idle, key=lambda each: each.arrival)
        oldest._why_closed = "idle, and another one needs its place"
        oldest.transport.abort()
        return True

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._is_told:
            self._tell("closed", self._why_closed)
        if self._patience is not None:
            self._patience.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection is the socket's from here on, which has a patience of its own."""
        if self._patience is not None:
            self._patience.cancel()
        self._tell("closed", "it is to be a WebSocket")
        super().handle_websocket_upgrade(event)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drained = True

    def _wait_for_a_request(self) -> None:
        self._requests_seen = self.cycle
        self._unsent_seen = self.transport.get_write_buffer_size()
        self._drained = False
        self._patience = self.loop.call_later(self._idle_seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        """Closes the connection unless a request came since the last look, or one is being answered to somebody who
        takes the answer."""
        if self._is_stuck():
            self._why_closed = "it does not take its answer"
            self.transport.abort()
        elif self.answering or self.cycle is not self._requests_seen:
            self._wait_for_a_request()
        else:
            self._why_closed = "idle"
            self.transport.close()

    def _is_stuck(self) -> bool:
        """Whether too little was taken since the last look. An answer in pieces fills the buffer again and again: that
        it ran low in between is as good."""
        unsent = self.transport.get_write_buffer_size()
        taken = self._unsent_seen - unsent
        return self._unsent_seen > 0 and unsent > 0 and taken < DRAIN_BYTES_MIN and not self._drained


def _files_for_connections() -> int:
    """How many of the process' files connections may take."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(FILES_MIN, soft // FILES_SHARE)
