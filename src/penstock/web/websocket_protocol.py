"""One WebSocket connection of the HTTP port: uvicorn's, with less overhead and with limits and timeouts.

    a message without an end    MAX_MESSAGE_BYTES, all of its fragments together, and MAX_FRAGMENTS of them
    frames without a pause      SLICE_BYTES are parsed in one turn of the event loop, and more when the messages in them
                                have been handled; until then the socket is not read
    pings without a pause       answered only while PONG_BACKLOG_BYTES or less are unsent: the last one counts
    no message and no pong      PING_SECONDS, then as much again, then the connection is closed
    a close that never ends     END_SECONDS, then unsent bytes are dropped

Messages are not compressed: deflating costs more than sending, once for each subscriber, and a quarter of a megabyte
for each connection.

A message for many subscribers is encoded once (`text_frame`) and sent as bytes: an ASGI event of type websocket.send
with READY instead of text or bytes. `send` waits while the transport's buffer is full, which bounds the unsent bytes
of a connection."""

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from penstock.types import EventSink

READY = "penstock.frame"
"""The key of an encoded frame, in an event for `send`."""
PROTOCOL = "penstock.protocol"
"""The key of this object, in the scope of its connection."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""Clients send short frames; the longest are lists of settled ranges."""
MAX_FRAGMENTS = 1024
"""Empty fragments are not counted by the limit on bytes."""
SLICE_BYTES = 4 * 1024
"""A frame may have no more than 6 bytes, and each takes 30 µs: those of one read of the socket would take seconds."""
UNSENT_BYTES = 16 * 1024
"""Bytes that may wait beside the last frame: a client that does not read should hold little."""
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
        self._unparsed = bytearray()
        self._is_parsing_soon = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated or (not self._unparsed and len(data) <= SLICE_BYTES):
            super().data_received(data)
            return
        self._unparsed += data
        self._parse_soon()

    def _parse_soon(self) -> None:
        """Unless messages wait to be handled: `receive` goes on when none is left."""
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()
            if not self.read_paused and not self._is_parsing_soon:
                self._is_parsing_soon = True
                self.loop.call_soon(self._parse)

    def _parse(self) -> None:
        self._is_parsing_soon = False
        if self.transport.is_closing():
            return
        data = bytes(self._unparsed[:SLICE_BYTES])
        del self._unparsed[:SLICE_BYTES]
        super().data_received(data)
        if self._unparsed:
            self._parse_soon()
        elif not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()
        self._parse_soon()
        return message

    async def has_room(self, seconds: float) -> bool:
        """Whether the next frame would be written at once, now or within so many seconds; also if the connection has
        ended, which `send` finds out."""
        if not self.writable.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.writable.wait()
        return self.writable.is_set()

    async def send(self, message: Any) -> None:
        frame = message.get(READY)
        if frame is None:
            await super().send(message)
            self._parse_soon()  # a close may have been sent: the client's answer may be among the rest
            self._tell_beginning(message)
            if self.initial_response is not None and self.close_sent:
                self.handshake_complete = (
                    True  # by a refusal, which uvicorn would take for an error of the application
                )
            return
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

    def send_receive_event_to_app(self) -> None:
        """Uvicorn logs a traceback for text that is not UTF-8, which is the client's mistake."""
        is_text = self.curr_msg_data_type == "text" and not self.close_sent
        if is_text and not _is_utf8(b"".join(self.frames)):
            self.frames = []
            self.conn.fail(1007, "text that is not UTF-8")
            self.handle_parser_exception()
            self._end_soon()
            return
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() <= PONG_BACKLOG_BYTES:
            super().handle_ping()
        else:
            self.conn.data_to_send()  # dropped: the next ping is answered

    # --- closing

    async def run_asgi(self) -> None:
        self.scope[PROTOCOL] = self  # type: ignore[literal-required]
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


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_frame(text: bytes) -> bytes:
    """A text message as bytes for a client's socket."""
    return Frame(Opcode.TEXT, text).serialize(mask=False)


def binary_frame(data: bytes) -> bytes:
    return Frame(Opcode.BINARY, data).serialize(mask=False)
