"""The Kafka listener: accepts connections, closes those that are idle or hold too much, dispatches requests."""

import asyncio
import inspect
import logging
import resource
import socket
import sys
from collections.abc import Coroutine

from penstock.config import Limits
from penstock.errors import ErrorCode, PenstockError, ProtocolViolation
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.registry import find_api
from penstock.kafka.handlers.rows import encode_off_loop
from penstock.kafka.server.connection import Connection
from penstock.kafka.wire import ApiKey, Message, RequestHeader, decode_request, encode_response
from penstock.node import Node
from penstock.node.calls import CONTROLLER, methods
from penstock.node.frames import SCRATCH_SIZE
from penstock.node.limited_log import LimitedLog
from penstock.types import Caller

log = logging.getLogger("penstock.kafka")

SWEEP_SECONDS = 0.5
BACKLOG = 1024
FILES_KEPT_FOR_LOGS = 512
STOP_SECONDS = 2.0
"""How long clients may take to read their last responses when the broker stops."""

Buffers = list[bytes | bytearray | memoryview]


class KafkaListener:
    """Owns the server socket and its connections."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.limits: Limits = node.config.limits
        self.metrics = node.metrics
        self.max_connections = min(self.limits.max_connections, _files_for_connections())
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()
        self.warnings = LimitedLog(log, self.loop.time)
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self._connections: dict[Connection, None] = {}
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serves the given socket until `stop`."""
        self._server = await self.loop.create_server(
            lambda: Connection(self), sock=listening, backlog=BACKLOG
        )
        self._sweep()

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.shut_down()
        await self._wait_until_closed()
        if self._server is not None:
            await self._server.wait_closed()

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
        """Twice a second: closes connections that are idle or do not read their responses and, when all together hold
        too much memory, those that hold the most."""
        self.now = self.loop.time()
        idle_before = self.now - self.limits.idle_timeout_ms / 1000
        stuck_before = self.now - self.limits.slow_drain_timeout_ms / 1000
        holding: list[tuple[int, Connection]] = []
        for connection in list(self._connections):
            if connection.last_active < idle_before and not connection.busy:
                connection.close(f"idle for limits.idle_timeout_ms={self.limits.idle_timeout_ms}")
            elif 0 < connection.stuck_since < stuck_before:
                connection.reset(f"has not read its responses for {self.limits.slow_drain_timeout_ms} ms")
            elif held := connection.held_bytes:
                holding.append((held, connection))
        self._shed(holding)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _shed(self, holding: list[tuple[int, Connection]]) -> None:
        total = sum(held for held, _ in holding)
        if total <= self.limits.max_client_memory_bytes:
            return
        for held, connection in sorted(holding, key=lambda pair: pair[0], reverse=True):
            connection.reset(f"holds {held} of {total} bytes, over limits.max_client_memory_bytes")
            total -= held
            if total <= self.limits.max_client_memory_bytes:
                return

    # --- requests

    def dispatch(
        self, connection: Connection, caller: Caller, header: RequestHeader, frame: memoryview
    ) -> Buffers | Coroutine[None, None, Message | Buffers | None] | None:
        """Decodes and handles one request. Returns the encoded response, None if the client wants none, or a coroutine
        for the response (to be encoded then) if it has to wait for something."""
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
            node=self.node, connection=connection, caller=caller, api=api, api_version=version
        )
        if api.controller and not self.node.is_alone and not self.node.metadata.is_controller:
            return self._forward(context, header, frame)
        if api.large:
            return self._answer_large(context, header, frame)
        response: Message | Coroutine[None, None, Message | Buffers | None] | None
        response = api.handler(context, decode_request(header, frame))
        if isinstance(response, Message):
            return encode_response(header.api_key, version, header.correlation_id, response)
        return response

    async def _answer_large(
        self, context: RequestContext, header: RequestHeader, frame: memoryview
    ) -> Message | Buffers | None:
        response = context.api.handler(context, decode_request(header, frame))
        answer: Message = await response if inspect.isawaitable(response) else response
        return await encode_off_loop(header, answer)

    async def _forward(
        self, context: RequestContext, header: RequestHeader, frame: memoryview
    ) -> Message | Buffers | None:
        """Asks the controller. Without one this node answers, with NOT_CONTROLLER."""
        try:
            response = await self.node.calls.ask(CONTROLLER, methods.FORWARD, frame, caller=context.caller)
            return [response]
        except PenstockError as trouble:
            log.info("API %s of %s was not forwarded: %s", header.api_key, context.connection.peer, trouble)
        response = context.api.handler(context, decode_request(header, frame))
        answer: Message | None = await response if inspect.isawaitable(response) else response
        return answer

    def _unsupported_api_versions(self, header: RequestHeader) -> Buffers:
        """A newer client asks in a version that is unknown here: a response of version 0 tells it the known ones."""
        # As for all handlers: imported when the first client needs it.
        from penstock.kafka.handlers.api_versions import unsupported_version

        response = unsupported_version(ErrorCode.UNSUPPORTED_VERSION)
        return encode_response(header.api_key, 0, header.correlation_id, response)


def _files_for_connections() -> int:
    """How many of the process' file descriptors connections may take: logs need some, or nothing could be flushed."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - max(soft // 4, min(FILES_KEPT_FOR_LOGS, soft // 2))
