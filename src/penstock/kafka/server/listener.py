"""The Kafka listener: accepts connections, closes those that are idle or hold too much, dispatches requests.

A node may have several ports for Kafka clients. Their connections count together, and share the limits and the memory.
"""

import asyncio
import inspect
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING

from penstock.config import Limits, Listener, TlsSettings
from penstock.errors import ErrorCode, PenstockError, ProtocolViolation
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.registry import find_api
from penstock.kafka.handlers.rows import ELEMENTS_ON_LOOP, decode_off_loop, encode_off_loop
from penstock.kafka.server.connection import TOKEN, Connection
from penstock.kafka.server.throttle import Throttle
from penstock.kafka.wire import (
    ApiKey,
    Message,
    RequestHeader,
    TooManyElements,
    decode_request,
    encode_response,
)
from penstock.node import Node
from penstock.node.calls import CONTROLLER, methods
from penstock.node.frames import SCRATCH_SIZE
from penstock.node.limits import descriptors
from penstock.node.limits.limited_log import LimitedLog
from penstock.node.limits.memory import Reservation, Turn
from penstock.types import Caller

if TYPE_CHECKING:
    from penstock.node.tls import TlsPort

log = logging.getLogger("penstock.kafka")

SWEEP_SECONDS = 0.5
MOVING_BYTES_MIN = 64 * 1024
"""A client that sends and reads fewer bytes between two sweeps may be closed, if others wait for its memory."""
BACKLOG = 1024
STOP_SECONDS = 2.0
"""How long clients may take to read their last responses when the broker stops."""

Buffers = list[bytes | bytearray | memoryview]


class KafkaListener:
    """Owns the ports for Kafka clients and their connections."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.limits: Limits = node.config.limits
        self.metrics = node.metrics
        self._quotas = node.quotas
        self._throttle = Throttle(node.quotas)
        self.memory = node.client_memory
        self.max_request_bytes = min(self.limits.max_request_bytes, self.memory.large_max)
        self.is_full = False
        """Whether no socket is read, because clients hold all memory that they may."""
        self._reading_again = self.memory.reserve()
        self.max_connections = min(self.limits.max_connections, descriptors.for_kafka())
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()
        self.warnings = LimitedLog(log, self.loop.time)
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self._connections: dict[Connection, None] = {}
        self._servers: list[asyncio.Server] = []
        self._tls_ports: dict[str, TlsPort] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._waiting: dict[Turn, dict[Connection, int]] = {}
        """The clients that were first in line for memory at the last sweep, and the bytes that each connection had
        moved by then."""
        self._all_gone: asyncio.Future[None] | None = None
        self._unwatch: Callable[[], None] = lambda: None

    async def start(self, ports: list[tuple[Listener, socket.socket]]) -> None:
        """Serves the given sockets until `stop`."""
        for settings, listening in ports:
            new: Callable[[], asyncio.BaseProtocol] = partial(Connection, self, settings)
            if settings.tls is not None:
                new = self._tls_port(settings, settings.tls).wrap(partial(Connection, self, settings))
            self._servers.append(await self.loop.create_server(new, sock=listening, backlog=BACKLOG))
        self._unwatch = self.node.access.watch(self._close_deleted_users)
        self._sweep()

    def _tls_port(self, settings: Listener, tls: TlsSettings) -> "TlsPort":
        from penstock.node.tls import client_port  # most nodes in tests and on laptops have no TLS

        name, field = f"Kafka port {settings.bind}", f"tls of listener {settings.name}"
        port = client_port(name, field, tls, self.limits, room=lambda: self._room_beside(settings.name))
        self._tls_ports[settings.name] = port
        return port

    def _room_beside(self, listener: str) -> int:
        """How many handshakes that listener may have: each is as good as a connection."""
        others = sum(port.handshakes for name, port in self._tls_ports.items() if name != listener)
        return self.max_connections - len(self._connections) - others

    async def stop(self) -> None:
        self._unwatch()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        for port in self._tls_ports.values():
            port.stop()
        for connection in list(self._connections):
            connection.shut_down()
        await self._wait_until_closed()
        for server in self._servers:
            await server.wait_closed()

    async def _wait_until_closed(self) -> None:
        """Sends the responses that are ready, unless their clients do not read them in time."""
        if not self._connections:
            return
        self._all_gone = self.loop.create_future()
        await asyncio.wait([self._all_gone], timeout=STOP_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    # --- connections

    def admit(self, connection: Connection) -> bool:
        if len(self._connections) >= self.max_connections:
            why = "too many connections"
            self.node.events.tell("connection.refused", client=connection.peer, protocol="kafka", reason=why)
            return False
        self._connections[connection] = None
        self.metrics.connections = len(self._connections)
        self.metrics.connections_total += 1
        self.node.events.tell("connection.opened", client=connection.peer, protocol="kafka")
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            facts = {"client": connection.peer, "protocol": "kafka", "reason": connection.why_closed}
            self.node.events.tell("connection.closed", **facts)
        self.metrics.connections = len(self._connections)
        if not self._connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    def _sweep(self) -> None:
        """Twice a second: closes connections that are idle or do not read their responses."""
        self.now = self.loop.time()
        idle_before = self.now - self.limits.idle_timeout_ms / 1000
        stuck_before = self.now - self.limits.slow_drain_timeout_ms / 1000
        login_before = self.now - self.limits.login_timeout_ms / 1000
        for connection in list(self._connections):
            if connection.last_active < idle_before and not connection.busy:
                connection.close(f"idle for limits.idle_timeout_ms={self.limits.idle_timeout_ms}")
            elif 0 < connection.stuck_since < stuck_before:
                connection.reset(f"has not read its responses for {self.limits.slow_drain_timeout_ms} ms")
            elif connection.opened_at < login_before and connection.waits_for_login:
                connection.close(f"no login within limits.login_timeout_ms={self.limits.login_timeout_ms}")
            elif connection.session_ends < self.now:
                connection.restrict()
        self._shed()
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _close_deleted_users(self) -> None:
        """Access rules or users have changed. Each request checks permissions by itself, but connections of deleted
        users must be closed."""
        for connection in list(self._connections):
            if connection.login is not None and connection.login.is_deleted:
                connection.close(f"{connection.login.principal} was deleted")

    # --- memory

    def stop_reading(self) -> None:
        """Clients hold more than they may together: no more is read until they hold less."""
        if not self.is_full:
            self.is_full = True
            for connection in self._connections:
                connection.set_reading()
            self._reading_again.line_up(0, self._read_again)

    def _read_again(self) -> None:
        self.is_full = False
        for connection in self._connections:
            connection.set_reading()

    def _shed(self) -> None:
        """If the client that is first in line for memory was so at the last sweep too, closes connections that have
        moved hardly a byte since then, those that hold the most first, until there is enough for all in the line."""
        waiting: dict[Turn, dict[Connection, int]] = {}
        for turn in self.memory.first_turns:
            before = self._waiting.get(turn)
            if before is not None:
                self._make_room(self.memory.missing_for(turn), before)
            waiting[turn] = {connection: connection.moved_bytes for connection in self._connections}
        self._waiting = waiting

    def _make_room(self, wanted: int, moved_before: dict[Connection, int]) -> None:
        """Spares clients that hold little, such as those that wait for records: half of the memory is free if all
        connections hold no more than that."""
        little = self.memory.max_bytes // (2 * self.max_connections)
        slow = [
            (connection.held_bytes, connection)
            for connection, before in moved_before.items()
            if not connection.closed and connection.moved_bytes - before < MOVING_BYTES_MIN
        ]
        for held, connection in sorted(slow, key=lambda pair: pair[0], reverse=True):
            if wanted <= 0 or held <= little:
                return
            connection.reset(
                f"holds {held} of {self.memory.used} bytes while others wait for some: {self.memory.name}"
            )
            wanted -= held

    # --- requests

    def dispatch(
        self,
        connection: Connection,
        caller: Caller,
        header: RequestHeader,
        frame: memoryview,
        memory: Reservation,
    ) -> Buffers | Coroutine[None, None, Message | Buffers | None] | None:
        """Decodes and handles one request. Returns the encoded response, None if the client wants none, or a coroutine
        for the response (to be encoded then) if it has to wait for something."""
        if header is TOKEN:
            assert connection.login is not None
            return connection.login.take_token(bytes(frame))
        api = find_api(header.api_key)
        version = header.api_version
        if api is None or not api.min_version <= version <= api.max_version:
            if header.api_key == ApiKey.API_VERSIONS:
                return self._unsupported_api_versions(header)
            raise ProtocolViolation(
                f"API {header.api_key} version {version}: expected one that ApiVersions lists"
            )
        if not self.node.ready and not self.node.is_alone and header.api_key != ApiKey.API_VERSIONS:
            # This node has not read its metadata: clients would believe that there are no topics. Other nodes may know.
            connection.send_away()
            return None
        context = RequestContext(
            node=self.node,
            connection=connection,
            caller=caller,
            api=api,
            api_version=version,
            memory=memory,
        )
        if api.controller and not self.node.is_alone and not self.node.metadata.is_controller:
            return self._forward(connection, context, header, frame)
        if api.large:
            return self._answer_large(connection, context, header, frame)
        try:
            request = decode_request(header, frame, ELEMENTS_ON_LOOP)
        except TooManyElements:
            return self._answer_many(connection, context, header, frame, connection.hold())
        response = self._handle(connection, header, context, request, len(frame))
        if isinstance(response, Message):
            return encode_response(header.api_key, version, header.correlation_id, response)
        return response

    def _handle(
        self,
        connection: Connection,
        header: RequestHeader,
        context: RequestContext,
        request: Message,
        size: int,
    ) -> Message | Coroutine[None, None, Message | None] | None:
        if self._quotas.in_force:
            return self._throttle.handle(connection, header, context, request, size)
        response: Message | Coroutine[None, None, Message | None] | None
        response = context.api.handler(context, request)
        return response

    async def _answer_large(
        self, connection: Connection, context: RequestContext, header: RequestHeader, frame: memoryview
    ) -> Message | Buffers | None:
        request = await decode_off_loop(header, frame, context.api.names)
        response = self._handle(connection, header, context, request, len(frame))
        answer = await response if inspect.isawaitable(response) else response
        assert answer is not None
        return await encode_off_loop(header, answer)

    async def _answer_many(
        self,
        connection: Connection,
        context: RequestContext,
        header: RequestHeader,
        frame: memoryview,
        let_go: Callable[[], None],
    ) -> Message | Buffers | None:
        """A request of very many elements. No later one of the same client is handled before it."""
        try:
            request = await decode_off_loop(header, frame, context.api.names)
            response = self._handle(connection, header, context, request, len(frame))
        finally:
            let_go()
        answer = await response if inspect.isawaitable(response) else response
        return await encode_off_loop(header, answer) if isinstance(answer, Message) else answer

    async def _forward(
        self, connection: Connection, context: RequestContext, header: RequestHeader, frame: memoryview
    ) -> Message | Buffers | None:
        """Asks the controller. Without one this node answers, with NOT_CONTROLLER."""
        try:
            response = await self.node.calls.ask(CONTROLLER, methods.FORWARD, frame, caller=context.caller)
            if self._quotas.in_force:
                self._throttle.forwarded(connection, header, response)
            return [response]
        except PenstockError as trouble:
            message = f"API {header.api_key} of {context.connection.peer} was not forwarded: {trouble}"
            self.warnings.warn("not forwarded", message)
        request = await decode_off_loop(header, frame, context.api.names)
        response = context.api.handler(context, request)
        answer: Message | None = await response if inspect.isawaitable(response) else response
        return answer

    def _unsupported_api_versions(self, header: RequestHeader) -> Buffers:
        """A newer client asks in a version that is unknown here: a response of version 0 tells it the known ones."""
        # As for all handlers: imported when the first client needs it.
        from penstock.kafka.handlers.api_versions import unsupported_version

        response = unsupported_version(ErrorCode.UNSUPPORTED_VERSION)
        return encode_response(header.api_key, 0, header.correlation_id, response)
