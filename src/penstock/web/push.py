"""Push over WebSocket: GET /v1/push, and then frames of JSON. docs/push.md has the protocol.

One task sends and one listens, for each subscriber. Limits, beside those of every WebSocket (`sockets`):

    no first frame              FIRST_FRAME_SECONDS
    frames without a pause      FRAMES_PER_SECOND are read; a subscriber that sends more waits, as TCP makes it wait
    not reading what is pushed  the subscriber's own pages and the socket's buffer fill up, nothing else; after
                                limits.slow_drain_timeout_ms without any progress it is sent away
    holding a great deal        limits.max_credit, however much it asks for
    a page of somebody else     a browser that opens a socket says which site the page is from: only this one's own
"""

import asyncio
from contextlib import suppress
from urllib.parse import quote, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.config import Address
from penstock.errors import KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.node.subscriptions import (
    Attachment,
    Elsewhere,
    Ending,
    Notice,
    Refused,
    Subscriptions,
    place_told,
)
from penstock.queue.subscription import Ack
from penstock.types import TopicPartition
from penstock.web.api.problems import Problem
from penstock.web.push_frames import (
    ENCODERS,
    AckFrame,
    CreditFrame,
    Ping,
    Subscribe,
    Unsubscribe,
    decode_frame,
)
from penstock.web.push_reader import InnerReader
from penstock.web.sockets import PATIENCE, READY, text_frame

PATH = "/v1/push"
FIRST_FRAME_SECONDS = 10.0
FRAMES_PER_SECOND = 2_000
"""Some tenth of the event loop. An ack is for all that was pushed before it, so nobody needs as many."""
FAREWELL_SECONDS = 2.0

WILDCARDS = ("", "0.0.0.0", "::")

CLOSE_CODES = {
    "closed": 1000,
    "unsubscribed": 1000,
    "internal_error": 1011,
    "unavailable": 1013,
    "elsewhere": 4421,
    "inactive": 4408,
    "already_active": 4409,
    "taken_over": 4409,
    "group_in_use": 4409,
    "unknown_topic": 4404,
}
UNSAID = ("closed", "too_slow")
"""Whoever has gone, or does not read, is not told why."""
MISTAKE = 4400
"""All other refusals. The close frame's reason is the refusal's code."""


def push_routes(node: Node) -> list[BaseRoute]:
    endpoint = PushEndpoint(node)
    return [WebSocketRoute(PATH, endpoint.serve), Route(PATH, endpoint.explain)]


class PushEndpoint:
    """Subscribers of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._subscriptions: Subscriptions | None = None

    @property
    def subscriptions(self) -> Subscriptions:
        """Made with the first subscriber: a node that is starting has nothing to read from."""
        if self._subscriptions is None:
            reader = InnerReader(InnerClient(self._node))
            self._subscriptions = Subscriptions(self._node, reader, ENCODERS)
            self._node.subscription_desk.live = self._subscriptions
        return self._subscriptions

    async def explain(self, request: Request) -> Response:
        message = f"{PATH} is for WebSockets: see docs/push.md"
        facts = {"error": {"code": "upgrade_required", "message": message, "field": None}}
        return JSONResponse(facts, 426, {"upgrade": "websocket", "connection": "upgrade"})

    async def serve(self, socket: WebSocket) -> None:
        refusal = self._refusal(socket)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        await socket.accept()
        with suppress(WebSocketDisconnect):
            await _Connection(self._node, self.subscriptions, socket).serve()

    def _refusal(self, socket: WebSocket) -> Response | None:
        """What is to be said before the upgrade: not now, not for you, or not here."""
        refusal = refuse_socket(self._node, socket)
        if refusal is not None:
            return refusal
        name = socket.query_params.get("subscription")
        home = self._home(name) if name else None
        if home is None or home == self._node.node_id or name is None:
            return None
        url = home_url(self._node, home)
        return None if url is None else Response(status_code=307, headers={"location": _named(url, name)})

    def _home(self, name: str) -> int | None:
        try:
            return self.subscriptions.home_of(name)
        except KafkaError:
            return (
                None  # nobody has subscribed so far, or an election is under way: the first frame will tell
            )


class _Connection:
    """One subscriber, from its first frame to its end."""

    def __init__(self, node: Node, subscriptions: Subscriptions, socket: WebSocket) -> None:
        self._node = node
        self._subscriptions = subscriptions
        self._socket = socket
        self._pace = Pace(FRAMES_PER_SECOND)
        self._slow_seconds = node.config.limits.slow_drain_timeout_ms / 1000
        self._max_credit = node.config.limits.max_credit

    async def serve(self) -> None:
        try:
            wish = (await self._first_frame()).wish
            attachment, resumed = await self._subscriptions.attach(wish)
        except Problem as problem:
            await self._end(problem.code, problem.message)
        except Refused as refused:
            await self._end(refused.code, refused.message)
        except Elsewhere as elsewhere:
            await self._send_to(elsewhere.node_id, wish.name)
        else:
            await self._serve(attachment, resumed)

    async def _first_frame(self) -> Subscribe:
        try:
            async with asyncio.timeout(FIRST_FRAME_SECONDS):
                frame = decode_frame(await self._receive())
        except TimeoutError:
            raise Problem(
                400, "no_frame", f"no first frame within {FIRST_FRAME_SECONDS:.0f} seconds"
            ) from None
        if not isinstance(frame, Subscribe):
            raise Problem(400, "not_subscribed", "expected a frame of type subscribe first")
        return frame

    async def _serve(self, attachment: Attachment, resumed: bool) -> None:
        attachment.tell(
            {
                "type": "subscribed",
                "subscription": attachment.wish.name,
                "resumed": resumed,
                "positions": [place_told(place) for place in attachment.core.places()],
            }
        )
        attachment.set_credit(min(attachment.wish.settings.credit, self._max_credit))
        pump = asyncio.ensure_future(attachment.run(self._send))
        ears = asyncio.ensure_future(self._listen(attachment))
        told = asyncio.ensure_future(attachment.told_to_end())
        try:
            await asyncio.wait({pump, ears, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._part(attachment, pump, ears, told)

    async def _part(
        self, attachment: Attachment, *tasks: "asyncio.Task[object] | asyncio.Future[object]"
    ) -> None:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if any(_is_too_slow(outcome) for outcome in outcomes):
            attachment.end(Ending("too_slow", f"it took nothing for {self._slow_seconds:g} seconds"))
        ending = await self._let_go(attachment)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect):
                raise outcome
        if ending is not None and ending.code not in UNSAID:
            await self._end(ending.code, ending.message)

    async def _let_go(self, attachment: Attachment) -> Ending | None:
        """Why it ended; None if the connection did."""
        ending = attachment.ending
        if ending is None or ending.code != "unsubscribed":
            await self._subscriptions.detach(attachment)
            return ending
        try:
            await self._subscriptions.forget(attachment)
        except PenstockError as trouble:
            return Ending("unavailable", f"{trouble}: it may not be forgotten")
        return ending

    # --- what it says

    async def _listen(self, attachment: Attachment) -> None:
        """Returns when the subscriber has gone, or is to go."""
        try:
            while attachment.ending is None:
                text = await self._receive()
                await self._pace.keep()
                self._hear(attachment, text)
        except Problem as problem:
            attachment.end(Ending(problem.code, problem.message))
        except WebSocketDisconnect:
            attachment.end(Ending("closed", "the connection has ended"))

    def _hear(self, attachment: Attachment, text: str | None) -> None:
        match decode_frame(text):
            case AckFrame(topic=topic, partition=partition, offset=offset):
                if attachment.ack(TopicPartition(topic, partition), offset) is Ack.NOT_SENT:
                    message = f"offset {offset} of {topic}-{partition} was not sent, so it cannot be acked"
                    raise Problem(400, "not_sent", message, "offset")
            case CreditFrame(credit=credit):
                attachment.set_credit(min(credit, self._max_credit))
            case Ping():
                attachment.tell({"type": "pong"})
            case Unsubscribe():
                attachment.end(Ending("unsubscribed", "the subscription was ended", is_home=False))
            case Subscribe():
                raise Problem(
                    400, "already_subscribed", "one connection has one subscription: open another one"
                )

    async def _receive(self) -> str | None:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | None = message.get("text")
        return text

    # --- what it is told

    async def _send(self, what: bytes | Notice) -> None:
        """WebSocketDisconnect if the subscriber has gone, or does not read."""
        frame = what if isinstance(what, bytes) else text_frame(msgspec.json.encode(what))
        await self._socket.send({"type": "websocket.send", READY: frame, PATIENCE: self._slow_seconds})

    async def _send_to(self, node_id: int, name: str) -> None:
        url = home_url(self._node, node_id)
        if url is None:
            message = f"node {node_id} is at home for this subscription, and has no HTTP port (serve --http)"
            await self._end("unavailable", message)
        else:
            notice: Notice = {"type": "elsewhere", "url": _named(url, name), "node_id": node_id}
            await self._end("elsewhere", "", notice)

    async def _end(self, code: str, message: str, notice: Notice | None = None) -> None:
        """Says why, and closes. Not waited for long: whoever does not read does not want to know."""
        if notice is None and code == "inactive":
            notice = {"type": "inactive", "reason": "ack_timeout", "message": message}
        elif notice is None and code == "unsubscribed":
            notice = {"type": "unsubscribed"}
        with suppress(TimeoutError, WebSocketDisconnect):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._send(notice or {"type": "error", "code": code, "message": message})
                await self._socket.close(CLOSE_CODES.get(code, MISTAKE), code)


class Pace:
    """Lets through so much in a second, and makes wait what comes beyond it."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time()

    async def keep(self) -> None:
        now = self._loop.time()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second) - 1
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_second)


def _is_too_slow(outcome: object) -> bool:
    """Whether sending was given up: to whom it was sent, ASGI tells like any lost connection."""
    return isinstance(outcome, WebSocketDisconnect) and isinstance(outcome.__context__, TimeoutError)


def home_url(node: Node, node_id: int) -> str | None:
    """Where another node's endpoint is, if it has an HTTP port."""
    known = node.metadata.state.nodes.get(node_id)
    if known is None or known.http is None:
        return None
    # A port that is open on all addresses is reached where clients reach the node.
    host = known.kafka.host if known.http.host in WILDCARDS else known.http.host
    return f"ws://{Address(host, known.http.port)}{PATH}"


def refuse_socket(node: Node, socket: WebSocket) -> Response | None:
    """What is to be said before the upgrade of any WebSocket: not now, or not for you."""
    if not node.ready:
        return _denied(503, "not_ready", "this node is starting or stopping; ask another one")
    origin = socket.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != socket.headers.get("host"):
        message = (
            f"a page of {origin} may not subscribe here: let it ask its own server, or put both behind one"
        )
        return _denied(403, "foreign_origin", message)
    return None


def _named(url: str, name: str) -> str:
    return f"{url}?subscription={quote(name, safe='')}"


def _denied(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message, "field": None}}, status)
