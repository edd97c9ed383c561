"""One WebSocket connection of the HTTP port: uvicorn's, with less overhead and with limits and timeouts.

    a message without an end    MAX_MESSAGE_BYTES, all of its fragments together, and MAX_FRAGMENTS of them
    messages without a pause    one is read at a time: the socket is not read until the message has been handled
    pings without a pause       answered only while PONG_BACKLOG_BYTES or less are unsent: the last one counts
    no message and no pong      PING_SECONDS, then as much again, then the connection is closed
    a close that never ends     END_SECONDS, then unsent bytes are dropped

Messages are not compressed: deflating costs more than sending, once for each subscriber, and a quarter of a megabyte
for each connection.

A message for many subscribers is encoded once (`text_frame`) and sent as bytes: an ASGI event of type websocket.send
with READY instead of text or bytes. `send` waits while the transport's buffer is full, which bounds the unsent bytes
of a connection."""

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from penstock.types import EventSink

READY = "penstock.frame"
"""The key of an encoded frame, in an event for `send`."""
SEND_TIMEOUT = "penstock.timeout"
"""Beside it: how many seconds the frame may wait. Then it is not sent, and TimeoutError, which ASGI takes for the end
of the connection."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""Clients send short frames; the longest are lists of settled ranges."""
MAX_FRAGMENTS = 1024
"""Empty fragments are not counted by the limit on bytes."""
PONG_BACKLOG_BYTES = 64 * 1024
PING_SECONDS = 20.0
END_SECONDS = 5.0

log = logging.getLogger("penstock.web.websocket_protocol")
log.setLevel(logging.WARNING)  # uvicorn tells of every connection that is accepted

SETTINGS: dict[str, Any] = {
    "ws_max_size": MAX_MESSAGE_BYTES,
    "ws_ping_interval": PING_SECONDS,
    "ws_ping_timeout": PING_SECONDS,
    "ws_per_message_deflate": False,
}
"""Settings for uvicorn's config."""


class BoundedSocket(WebSocketsSansIOProtocol):
    """A WebSocket with limits."""

    def __init__(self, *args: Any, events: EventSink, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._events = events
        self._told = ""
        """The event that the status log has of it: none, opened or refused."""
        self.logger = self.conn.logger = log
        self._ending: asyncio.TimerHandle | None = None

    async def send(self, message: Any) -> None:
        frame = message.get(READY)
        if frame is None:
            await super().send(message)
            self._tell_beginning(message)
            if self.initial_response is not None and self.close_sent:
                self.handshake_complete = (
                    True  # by a refusal, which uvicorn would take for an error of the application
                )
            return
        if not self.writable.is_set():
            async with asyncio.timeout(message.get(SEND_TIMEOUT)):
                await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frame)

    def _tell_beginning(self, message: Any) -> None:
        """Tells whether the upgrade was accepted; later events are about the open WebSocket."""
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
            self.conn.data_to_send()  # dropped: the next ping is answered

    # --- closing

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
        """A client that does not read would keep a closing transport open, which waits for unsent bytes."""
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
    """Reports a connection as the Kafka port does: opened, closed or refused."""
    peer = f"{client[0]}:{client[1]}" if client else "?"
    if reason is None:
        events.tell(f"connection.{what}", client=peer, protocol=protocol)
    else:
        events.tell(f"connection.{what}", client=peer, protocol=protocol, reason=reason)


def text_frame(text: bytes) -> bytes:
    """A text message as bytes for a client's socket."""
    return Frame(Opcode.TEXT, text).serialize(mask=False)


def binary_frame(data: bytes) -> bytes:
    return Frame(Opcode.BINARY, data).serialize(mask=False)
