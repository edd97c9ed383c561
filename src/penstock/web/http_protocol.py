"""One HTTP connection of the HTTP port: uvicorn's on llhttp (httptools), with limits and timeouts.

    headers that do not end     MAX_HEADER_BYTES and two slices; the same for trailers and the extensions of a chunk
    many headers                MAX_HEADERS
    requests in advance         SLICE_BYTES are parsed at a time, and no more before the requests in them are answered;
                                until then the socket is not read
    bytes behind a handshake    a client of a WebSocket waits for the response, so its request is refused
    a body in small chunks      limits.max_http_body_chunks, then the request is refused and the connection closed, also
                                if the operation takes no body
    an idle connection          limits.http_idle_timeout_ms, also if it sends bytes and never completes a request
    a response that is not read the client must read DRAIN_BYTES_MIN in the idle timeout, or the connection is aborted,
                                also if it is being closed

A request that is not HTTP, or exceeds a limit, is refused in the order of the requests: its response must not be taken
for that of one before it. llhttp refuses everything about which two programs may disagree where a request ends (two
lengths, spaces before a colon, lines that end without a carriage return): a proxy in front of the node could believe
the other, and take the rest for a second request (request smuggling). Trailers are read and dropped: a proxy may have
checked the headers alone.

The status log gets an event for each connection, as for those of the Kafka port. One that becomes a WebSocket ends as
an HTTP connection; `websocket_protocol` reports on the WebSocket."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock.types import EventSink
from penstock.web import websocket_protocol
from penstock.web.api.problems import Error, Problem
from penstock.web.exchanges import EXCHANGE, json_head

MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 200
"""A browser behind two proxies sends about 40. A header of 4 bytes takes 200 as Python objects, so the limit on bytes
alone would allow a megabyte."""
SLICE_BYTES = 4 * 1024
"""The shortest request has about 30 bytes, and takes some 2 KB while it waits for the one before it."""
DRAIN_BYTES_MIN = 64 * 1024
"""Bytes that a client must read of its response within the idle timeout: a slower one takes memory from others."""
TLS_RECORD = b"\x16\x03"
"""The first bytes of a client that speaks TLS."""
NOTHING = memoryview(b"")
CONTINUE = b"HTTP/1.1 100"

_arrivals = itertools.count()
"""Numbers connections in their order; the event loop's clock is too coarse for that."""


class JoinedWrites:
    """The transport of one response. Its headers leave with the first bytes of its body: the system call is a good part
    of what a small response costs."""

    __slots__ = ("_held", "_is_begun", "_on_continue", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, on_continue: Callable[[], None] | None = None) -> None:
        self._transport = transport
        self._on_continue = on_continue
        self._held = b""
        self._is_begun = False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._is_begun:
            self._transport.write(self._held + data if self._held else data)
            self._held = b""
        elif data.startswith(CONTINUE):
            self._transport.write(data)
            if self._on_continue is not None:
                self._on_continue()
        else:
            self._held, self._is_begun = data, True

    def flush(self) -> None:
        """For a response without a body."""
        if self._held:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class BoundedReading(FlowControl):
    """Keeps the socket unread while requests in advance wait. A request that waits for its caller to disconnect asks to
    read on: each of many would admit another read."""

    def __init__(self, transport: asyncio.Transport, has_waiting: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._has_waiting = has_waiting

    def resume_reading(self) -> None:
        if not self._has_waiting():
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
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
        self.logger = logger
        self.access_log = False
        self._max_connections = max_connections
        self._max_chunks = max_chunks
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
        self._is_in_head = False
        """Whether the headers of a request have begun and not ended."""
        self._is_quiet = True
        """Whether the slice that is being parsed has neither begun nor ended anything, and has no body."""
        self._quiet_bytes = 0
        self._chunks = 0
        self._is_new_chunk = False
        self._unparsed = NOTHING
        """Waits until the requests before it are answered."""
        self._active: RequestResponseCycle | None = None
        """The last request that the application got. Others wait in `pipeline`; `cycle` is the newest of them."""
        self._refusal: Problem | None = None
        """For the request behind those that have come. Nothing is parsed any more."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = BoundedReading(transport, self._has_waiting)
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
        if self._active is not None and not self._active.response_complete:
            _disconnect(self._active)  # uvicorn tells only the last of several requests
        if self._is_told:
            self._tell("closed", self._why_closed)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    # --- parsing

    def data_received(self, data: bytes) -> None:
        if self.cycle is None and data[:2] == TLS_RECORD and not self._is_in_head:
            self.logger.warning(
                "a client speaks TLS to the HTTP port, which has none: use http://, or set tls_cert"
            )
            self._why_closed = "it speaks TLS"
            self.transport.abort()
        elif self._refusal is not None:
            self.flow.pause_reading()
        elif self._has_waiting():
            self._unparsed = memoryview(bytes(self._unparsed) + data)
            self.flow.pause_reading()
        elif len(data) <= SLICE_BYTES:
            self._feed(data)
        else:
            self._unparsed = memoryview(data)
            self._parse()

    def _has_waiting(self) -> bool:
        """Whether something waits for the response to a request before it."""
        return bool(self._unparsed or self.pipeline)

    def _parse(self) -> None:
        """Parses until a request has to wait for the one before it."""
        while self._unparsed and not self.pipeline and not self.transport.is_closing():
            piece, self._unparsed = self._unparsed[:SLICE_BYTES], self._unparsed[SLICE_BYTES:]
            self._feed(piece)
        if self._has_waiting():
            self.flow.pause_reading()

    def _feed(self, data: bytes | memoryview) -> None:
        self._is_quiet = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(bytes(data[upgrade.args[0] :]))
            return
        except httptools.HttpParserError as mistake:
            limit = mistake.__context__
            self._refuse(limit if isinstance(limit, Problem) else _invalid(str(mistake)))
            return
        self._quiet_bytes = self._quiet_bytes + len(data) if self._is_quiet else 0
        if self._quiet_bytes > MAX_HEADER_BYTES:
            self._refuse(_invalid(f"headers of more than {MAX_HEADER_BYTES} bytes"))

    def on_message_begin(self) -> None:
        self._is_quiet, self._is_in_head = False, True
        self._chunks = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:  # a trailer
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if len(self.headers) >= MAX_HEADERS:
            raise _invalid(f"more than {MAX_HEADERS} headers")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._is_quiet = False
        hosts = sum([name == b"host" for name, _ in self.headers])
        if hosts != 1 and (hosts > 1 or self.parser.get_http_version() == "1.1"):
            raise _invalid(f"{hosts} Host headers: expected one")
        if self.parser.should_upgrade():  # feed_data raises HttpParserUpgrade then
            self.scope["method"] = self.parser.get_method().decode()
            self.scope["http_version"] = self.parser.get_http_version()
            return
        super().on_headers_complete()
        self._is_in_head = False

    def on_chunk_header(self) -> None:
        self._is_quiet, self._is_new_chunk = False, True

    def on_body(self, body: bytes) -> None:
        self._is_quiet = False
        if self._is_new_chunk:
            self._is_new_chunk = False
            self._chunks += 1
            if self._chunks > self._max_chunks:
                message = f"a body of more than limits.max_http_body_chunks={self._max_chunks} chunks"
                raise Problem(413, "body_too_large", message)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            cycle.message_event.set()
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._is_quiet = False
        if not self._is_in_head and not self.cycle.response_complete:  # in a head: an upgrade
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        on_continue = None
        if cycle.waiting_for_100_continue and cycle.keep_alive:
            # Without a 100, a response may leave the client to send the body or not: the next bytes could be either
            # the body or another request.
            cycle.keep_alive = False
            on_continue = partial(setattr, cycle, "keep_alive", True)
        cycle.transport = cast(Any, JoinedWrites(self.transport, on_continue))
        cycle.scope[EXCHANGE] = cycle  # type: ignore[literal-required]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer after each response: `_check_idle` ends idle connections."""
        assert self._active is not None
        cast(JoinedWrites, self._active.transport).flush()
        self._active.scope.pop(EXCHANGE, None)  # type: ignore[misc]
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self._unparsed:
            self._parse()
        elif self._refusal is not None and not self.answering:
            self._send_refusal(self._refusal)
        if not self.transport.is_closing():
            self.flow.resume_reading()

    # --- upgrades

    def _upgrade(self, rest: bytes) -> None:
        """The parser takes everything behind such headers for another protocol."""
        if self.scope["method"] == "CONNECT":
            self._refuse(_invalid("CONNECT: this is no proxy"))
        elif not self._should_upgrade():
            self._parse_without_upgrade(rest)
        elif self.answering:
            self._refuse(_invalid("a WebSocket before the response to another request"))
        elif rest or self._unparsed:
            self._refuse(_invalid("bytes behind the handshake of a WebSocket, before its response"))
        else:
            self.handle_websocket_upgrade()

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Serves a request that offers another protocol, as Java's client offers HTTP/2, in HTTP/1.1."""
        version = self.scope["http_version"].encode()
        lines = [b"%s %s HTTP/%s" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%s: %s" % pair for pair in self.headers if pair[0] != b"upgrade"]
        self._is_in_head = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"\r\n".join([*lines, b"", rest]))

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection belongs to the WebSocket protocol, which has its own timeouts."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._tell("closed", "it becomes a WebSocket")
        super().handle_websocket_upgrade()

    # --- refusals

    def _refuse(self, problem: Problem) -> None:
        """Refuses the request that is being parsed, when those before it are answered."""
        self.logger.warning("Invalid HTTP request received: %s", problem.message)
        self._why_closed = "an invalid request"
        self._refusal, self._unparsed = problem, NOTHING
        self.flow.pause_reading()
        active = self._active
        if not self._is_in_head and self.cycle is active and active is not None:
            if active.response_complete:
                self.transport.close()  # when the client has read the response
                return
            if active.response_started:
                self.transport.abort()
                return
            _disconnect(active)  # the application may have begun with it: it must neither wait nor answer
        elif not self._is_in_head and self.pipeline:
            self.pipeline.popleft()  # the newest one, whose body is wrong
            self.cycle = self.pipeline[0][0] if self.pipeline else active  # type: ignore[assignment]
        if active is None or active.response_complete or active.disconnected:
            self._send_refusal(problem)

    def _send_refusal(self, problem: Problem) -> None:
        body = msgspec.json.encode(Error(error=problem.facts))
        self.transport.write(json_head(problem.status, len(body), keep_alive=False) + body)
        self.transport.close()

    # --- idle connections

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drained = True

    def _start_idle_timer(self) -> None:
        self._requests_seen = self.cycle
        self._unsent_seen = self.transport.get_write_buffer_size()
        self._drained = False
        self._idle_timer = self.loop.call_later(self._idle_seconds, self._check_idle)

    def _check_idle(self) -> None:
        """Closes the connection unless a request came since the last check, or a response is being sent and read. A
        closed one lasts until its unsent bytes are read, so that it is checked as well."""
        if self._is_stuck():
            self._why_closed = "the client does not read its response"
            self.transport.abort()
        elif self.answering or self.cycle is not self._requests_seen:
            self._start_idle_timer()
        else:
            self._why_closed = self._why_closed or "idle"
            self.transport.close()
            self._start_idle_timer()

    def _is_stuck(self) -> bool:
        """Whether the client has read too little since the last check. A response in pieces refills the buffer: it is
        enough that the buffer ran low in between."""
        unsent = self.transport.get_write_buffer_size()
        taken = self._unsent_seen - unsent
        return self._unsent_seen > 0 and unsent > 0 and taken < DRAIN_BYTES_MIN and not self._drained


def _invalid(reason: str) -> Problem:
    return Problem(400, "invalid_request", reason)


def _disconnect(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()
