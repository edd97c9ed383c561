"""Shared by push, work and browse: checks who may open a WebSocket, finds the WebSockets of other nodes, and reads
frames of JSON from clients. The first frame must come within FIRST_FRAME_SECONDS."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from penstock.config import Address
from penstock.config.address import UNREACHABLE_HOSTS
from penstock.errors import KafkaError
from penstock.node import Node
from penstock.types import Caller, Operation, ResourceType
from penstock.web.api.problems import Problem, as_field_problem, as_problem
from penstock.web.api.responses import error_response
from penstock.web.api.routing import not_ready
from penstock.web.callers import EXPIRES_MS, caller_of, check_login
from penstock.web.http_quotas import SocketQuota
from penstock.web.websocket_protocol import PROTOCOL, READY, BoundedSocket, text_frame

FIRST_FRAME_SECONDS = 10.0
SUBPROTOCOL = "penstock"
"""Names the frames of all WebSockets here; `login` says why a client may offer another one beside it."""

F = TypeVar("F")
First = TypeVar("First")


def refuse_socket(node: Node, socket: WebSocket) -> Response | None:
    """The response instead of the upgrade, if the node is not ready or the page is of another site."""
    if not node.ready:
        return error_response(not_ready())
    origin = socket.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != socket.headers.get("host"):
        message = f"a page of {origin} may not open a WebSocket here: serve both from one host"
        return error_response(Problem(403, "foreign_origin", message))
    return None


async def accept(socket: WebSocket) -> None:
    """Accepts a WebSocket. A browser that has offered subprotocols, to log in with one, insists on an answer."""
    offered = socket.scope.get("subprotocols", [])
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)


async def refuse_path(socket: WebSocket) -> None:
    """Refuses a WebSocket at any other path; Starlette's own response would be 403."""
    message = f"there is no WebSocket at {socket.url.path}: there are /v1/push, /v1/work and /v1/browse"
    await socket.send_denial_response(error_response(Problem(404, "not_found", message)))


def has_ended(socket: WebSocket) -> bool:
    """Whether a send has failed or the close was sent: Starlette takes one more send for a bug."""
    return socket.application_state is WebSocketState.DISCONNECTED


def upgrade_required(path: str, page: str) -> Response:
    """The response to a plain GET."""
    problem = Problem(426, "upgrade_required", f"{path} is for WebSockets: see {page}")
    return error_response(problem, {"upgrade": "websocket", "connection": "upgrade"})


def check_may_read(node: Node, socket: WebSocket, group: str | None, topics: Iterable[str]) -> Caller:
    """The caller of a WebSocket, which may read these topics, as this group if there is one; or a Problem."""
    caller = caller_of(socket)
    check_login(node, socket.scope)
    try:
        if group is not None:
            node.resources.check_group(caller, group, Operation.READ)
        for name in topics:
            node.resources.check(caller, Operation.READ, ResourceType.TOPIC, name)
    except KafkaError as refusal:
        raise as_problem(refusal) from None
    return caller


def _seconds_left(node: Node, socket: WebSocket) -> float | None:
    """Until the login by which a WebSocket was opened expires; None for ever."""
    expires_ms: int | None = socket.scope.get(EXPIRES_MS)
    return None if expires_ms is None else max(0.0, (expires_ms - node.clock.wall_ms()) / 1000)


async def lost_permission(node: Node, socket: WebSocket, group: str | None, topics: Iterable[str]) -> Problem:
    """Returns when the caller may not read these topics as this group any more."""
    changed = asyncio.Event()
    unwatch = node.access.watch(changed.set)
    try:
        while True:
            # First of all, because a permission may have been lost while the subscriber was attached.
            check_may_read(node, socket, group, topics)
            with suppress(TimeoutError):
                async with asyncio.timeout(_seconds_left(node, socket)):
                    await changed.wait()
            changed.clear()
    except Problem as problem:
        return problem
    finally:
        unwatch()


def endpoint_url(node: Node, node_id: int, path: str) -> str | None:
    """The address of another node's WebSocket, if it has an HTTP port."""
    known = node.metadata.state.nodes.get(node_id)
    if known is None or known.http is None:
        return None
    # A port that listens on all addresses is reached at the host of the Kafka port.
    host = known.kafka.host if known.http.host in UNREACHABLE_HOSTS else known.http.host
    return f"{'wss' if known.https else 'ws'}://{Address(host, known.http.port)}{path}"


class RateLimit:
    """Lets so many frames through per second, and delays the others."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time()

    async def wait(self) -> None:
        now = self._loop.time()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second) - 1
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_second)


class TooSlow(Exception):
    """The client has not read its frames for long."""


class FrameSender:
    """Sends frames to one client. WebSocketDisconnect: the client has disconnected."""

    def __init__(self, socket: WebSocket, slow_seconds: float, quota: SocketQuota) -> None:
        """A client that reads nothing for so many seconds is disconnected."""
        self._socket = socket
        self._protocol: BoundedSocket = socket.scope[PROTOCOL]
        self.slow_seconds = slow_seconds
        self._quota = quota

    async def has_room(self, seconds: float) -> bool:
        """Whether the client takes a frame now, or within so many seconds."""
        if (throttled := self._quota.wait_seconds()) > 0:
            await asyncio.sleep(min(throttled, seconds))
            if throttled > seconds:
                return False
        return await self._protocol.has_room(seconds)

    async def wait_for_room(self) -> None:
        """Returns when the client takes a frame; TooSlow if it reads nothing for long."""
        while (throttled := self._quota.wait_seconds()) > 0:
            await asyncio.sleep(throttled)
        if not await self._protocol.has_room(self.slow_seconds):
            raise TooSlow

    async def send(self, what: bytes | dict[str, object]) -> None:
        """An encoded frame, or an object to be sent as JSON."""
        if not await self._protocol.has_room(self.slow_seconds):
            raise TooSlow
        frame = what if isinstance(what, bytes) else text_frame(msgspec.json.encode(what))
        if isinstance(what, bytes):
            self._quota.sent(len(frame))
        await self._socket.send({"type": "websocket.send", READY: frame})


class FrameReceiver(Generic[F]):
    """The frames of one client. Problem says what is wrong with one; WebSocketDisconnect: the client has
    disconnected."""

    def __init__(self, socket: WebSocket, frames: "Frames[F]", per_second: int) -> None:
        self._socket = socket
        self._frames = frames
        self._rate = RateLimit(per_second)

    async def first(self, kind: type[First], otherwise: str) -> First:
        """The first frame, which must be of this kind; `otherwise` is the code of the refusal if it is not."""
        try:
            async with asyncio.timeout(FIRST_FRAME_SECONDS):
                frame = self._frames.decode(await self._receive())
        except TimeoutError:
            message = f"no first frame within {FIRST_FRAME_SECONDS:g} seconds"
            raise Problem(400, "no_frame", message) from None
        if not isinstance(frame, kind):
            raise Problem(400, otherwise, f"expected a frame of type {kind.__name__.lower()} first")
        return frame

    async def next(self) -> F:
        text = await self._receive()
        await self._rate.wait()
        return self._frames.decode(text)

    async def _receive(self) -> str | None:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | None = message.get("text")
        return text


async def until_one_ends(*work: Coroutine[Any, Any, object]) -> list[object]:
    """Runs the tasks of a connection until one ends, cancels the others, and returns how each ended: its result or its
    exception."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    return outcomes


class Frames(Generic[F]):
    """Frames of some kinds, from JSON."""

    def __init__(self, kinds: Any, most_chars: int) -> None:
        """`kinds` is a union of tagged structs."""
        self._kinds = kinds
        self._most = most_chars
        self._decoder: msgspec.json.Decoder[F] = msgspec.json.Decoder(kinds)

    def decode(self, text: str | None) -> F:
        """Problem says what is wrong with it."""
        if text is None:
            raise Problem(400, "invalid_frame", "a binary frame: expected JSON as text")
        if len(text) > self._most:
            raise Problem(400, "frame_too_large", f"a frame of {len(text)} characters: at most {self._most}")
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError as trouble:
            problem = as_field_problem(trouble, self._kinds)
            code = problem.code if problem.field else "invalid_frame"
            told = f"{problem.field or 'the frame'}: {problem.message}"
            raise Problem(400, code, told, problem.field) from None
        except (msgspec.DecodeError, UnicodeError) as trouble:
            raise Problem(400, "invalid_frame", f"not JSON: {trouble}") from None
        except RecursionError:
            raise Problem(400, "invalid_frame", "nested too deeply") from None
