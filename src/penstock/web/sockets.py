"""One WebSocket connection of the HTTP port: uvicorn's, made lean, and with an end to its patience.

What a caller may do to us, and the limit:
    a message without an end    MAX_MESSAGE_BYTES, all of its fragments together, and MAX_FRAGMENTS of them
    messages faster than ours   one is read at a time: the socket is not read further until it has been dealt with
    pings that are not awaited  answered only while PONG_BACKLOG_BYTES or less wait to be sent: the last one counts
    not a word, not even a pong PING_SECONDS, then as much again, then the connection is ended
    a closing that never ends   END_SECONDS, then what is unsent is dropped

Messages are not compressed. Deflating costs more than sending, for each subscriber anew, and a quarter of a megabyte
for each connection.

Whoever sends the same message to many may make its frame once (`text_frame`) and send it ready-made: an ASGI event of
type websocket.send with READY instead of text or bytes. What one connection may have unsent is bounded by `send`, which
waits while the transport's buffer is full.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from penstock.types import EventSink

READY = "penstock.frame"
"""The key of a frame that is made already, in an event for `send`."""
PATIENCE = "penstock.patience"
"""Beside it: how many seconds the frame may have to wait. Past them it is not sent, and TimeoutError, which ASGI takes
for the end of the connection."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""What callers send are a few words; the longest are lists of what was done."""
MAX_FRAGMENTS = 1024
"""A message in pieces of nothing would be counted by no limit on bytes."""
PONG_BACKLOG_BYTES = 64 * 1024
PING_SECONDS = 20.0
END_SECONDS = 5.0

log = logging.getLogger("penstock.web.sockets")
log.setLevel(logging.WARNING)  # uvicorn tells of every connection that is accepted

SETTINGS: dict[str, Any] = {
    "ws_max_size": MAX_MESSAGE_BYTES,
    "ws_ping_interval": PING_SECONDS,
    "ws_ping_timeout": PING_SECONDS,
    "ws_per_message_deflate": False,
}
"""For uvicorn's config."""


class BoundedSocket(WebSocketsSansIOProtocol):
    """A WebSocket that nobody can hold open, or fill up, for ever."""

    def __init__(self, *args: Any, events: EventSink, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._events = events
        self._told = ""
        """What the status log knows of it: nothing, that it is open, or that it was refused."""
        self.logger = log
        self._ending: asyncio.TimerHandle | None = None

    async def send(self, message: Any) -> None:
        frame = message.get(READY)
        if frame is None:
            await super().send(message)
            self._tell_beginning(message)
            if self.initial_response is not None and self.close_sent:
                self.handshake_complete = True  # by a refusal, which uvicorn would take for a mistake of ours
            return
        if not self.writable.is_set():
            async with asyncio.timeout(message.get(PATIENCE)):
                await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frame)

    def _tell_beginning(self, message: Any) -> None:
        """Whether it may be a WebSocket; what is said later has nothing to do with that."""
        if self._told:
            return
        if message["type"] == "websocket.accept":
            self._tell("opened")
        elif message["type"] == "websocket.http.response.start":
            status = HTTPStatus(message["status"])
            self._tell("refused", f"{status.value} {status.phrase}")
        else:  # closed before it was accepted: this is what uvicorn makes of that
            self._tell("refused", "403 Forbidden")

    def _tell(self, what: str, reason: str | None = None) -> None:
        self._told = what
        tell_connection(self._events, what, self.client, "websocket", reason)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(1009, "too many fragments")
            self.handle_parser_exception()
            self._end_soon()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() <= PONG_BACKLOG_BYTES:
            super().handle_ping()
        else:
            self.conn.data_to_send()  # forgotten: the next ping is answered as well

    # --- the end

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self._end_soon()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._end_soon()

    def shutdown(self) -> None:
        super().shutdown()
        self._end_soon()

    def _end_soon(self) -> None:
        """Whoever does not read keeps a closing transport open: it waits for what is unsent."""
        if self._ending is None and not self.disconnected:
            self._ending = self.loop.call_later(END_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._told == "opened":
            self._tell("closed")
        elif not self._told:
            self._tell("refused", "no handshake")
        if self._ending is not None:
            self._ending.cancel()


def tell_connection(
    events: EventSink, what: str, client: tuple[str, int] | None, protocol: str, reason: str | None
) -> None:
    """As the Kafka port tells its connections: opened, closed or refused."""
    peer = f"{client[0]}:{client[1]}" if client else "?"
    if reason is None:
        events.tell(f"connection.{what}", client=peer, protocol=protocol)
    else:
        events.tell(f"connection.{what}", client=peer, protocol=protocol, reason=reason)


def text_frame(text: bytes) -> bytes:
    """A whole text message, as it goes over the wire to a client."""
    return Frame(Opcode.TEXT, text).serialize(mask=False)


def binary_frame(data: bytes) -> bytes:
    return Frame(Opcode.BINARY, data).serialize(mask=False)
