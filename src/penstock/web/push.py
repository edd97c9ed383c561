"""Push over WebSocket: GET /v1/push, and then frames of JSON. docs/push.md has the protocol.

For each subscriber one task sends and one receives. Limits, beside those of every WebSocket (`websocket_protocol`):

    no first frame              `websocket_frames`.FIRST_FRAME_SECONDS
    frames without a pause      FRAMES_PER_SECOND are read; TCP makes a subscriber wait that sends more
    not reading messages        only the subscriber's own pages and its socket's buffer fill up; after
                                limits.slow_drain_timeout_ms without any progress the connection is closed
    unacked messages            limits.max_credit, however much it asks for
    pages of other sites        a browser names the page's site in Origin: only this site's own may open a WebSocket
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.errors import KafkaError, PenstockError
from penstock.node import Node
from penstock.node.subscriptions import (
    ControlFrame,
    EndReason,
    Redirect,
    SubscribeRefused,
    SubscriberSession,
    position_json,
)
from penstock.queue.subscription import Ack
from penstock.types import Operation, ResourceType, TopicPartition
from penstock.web.api.problems import Problem, as_problem, refused
from penstock.web.callers import LOGIN_EXPIRED, LOGIN_EXPIRED_CLOSE, caller_of
from penstock.web.http_quotas import SocketQuota
from penstock.web.push_frames import FRAMES, AckFrame, AnyFrame, CreditFrame, Ping, Subscribe, Unsubscribe
from penstock.web.websocket_frames import (
    FrameReceiver,
    FrameSender,
    TooSlow,
    accept,
    check_may_read,
    endpoint_url,
    has_ended,
    lost_permission,
    refuse_socket,
    upgrade_required,
)

PATH = "/v1/push"
FRAMES_PER_SECOND = 2_000
"""About a tenth of the event loop. An ack is for all messages before it, so no subscriber needs more."""
CLOSE_SECONDS = 2.0

CLOSE_CODES = {
    "closed": 1000,
    "unsubscribed": 1000,
    "internal_error": 1011,
    "unavailable": 1013,
    "elsewhere": 4421,
    LOGIN_EXPIRED: LOGIN_EXPIRED_CLOSE,
    "inactive": 4408,
    "already_active": 4409,
    "taken_over": 4409,
    "group_in_use": 4409,
    "unknown_topic": 4404,
}
UNSAID = ("closed", "too_slow")
"""A client that has disconnected, or does not read, gets no reason."""
MISTAKE = 4400
"""All other refusals. The close frame's reason is the refusal's code."""


class PushEndpoint:
    """Subscribers of one node."""

    path = PATH

    def __init__(self, node: Node) -> None:
        self._node = node

    async def explain(self, request: Request) -> Response:
        return upgrade_required(PATH, "docs/push.md")

    async def serve(self, socket: WebSocket) -> None:
        refusal = self._refusal(socket)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        await accept(socket)
        with suppress(WebSocketDisconnect):
            await _Connection(self._node, socket).serve()

    def _refusal(self, socket: WebSocket) -> Response | None:
        """The response instead of the upgrade, if it is refused or redirected to the coordinator's node."""
        refusal = refuse_socket(self._node, socket)
        if refusal is not None:
            return refusal
        name = socket.query_params.get("subscription")
        coordinator = self._coordinator(name) if name else None
        if coordinator is None or coordinator == self._node.node_id or name is None:
            return None
        url = endpoint_url(self._node, coordinator, PATH)
        return None if url is None else Response(status_code=307, headers={"location": _named(url, name)})

    def _coordinator(self, name: str) -> int | None:
        try:
            return self._node.view.coordinator(name).node_id
        except KafkaError:
            return None  # the cluster has no group yet, or an election is under way: attaching will find out


class _Connection:
    """One subscriber, from its first frame to its end."""

    def __init__(self, node: Node, socket: WebSocket) -> None:
        assert node.subscriptions.live is not None
        self._node = node
        self._subscriptions = node.subscriptions.live
        self._socket = socket
        self._frames: FrameReceiver[AnyFrame] = FrameReceiver(socket, FRAMES, FRAMES_PER_SECOND)
        self._sender = FrameSender(
            socket, node.config.limits.slow_drain_timeout_ms / 1000, SocketQuota(node, caller_of(socket))
        )
        self._max_credit = node.config.limits.max_credit
        self._has_created = False
        """Whether there was no subscription of this name when this subscriber attached."""

    async def serve(self) -> None:
        try:
            request = (await self._first_frame()).request
            check_may_read(self._node, self._socket, request.name, request.topics)
            session, resumed = await self._subscriptions.attach(
                request, lambda topics: self._check_stored(request.name, topics)
            )
        except Problem as problem:
            await self._end(problem.code, problem.message)
        except SubscribeRefused as refusal:
            await self._end(refusal.code, refusal.message)
        except Redirect as elsewhere:
            await self._send_to(elsewhere.node_id, request.name)
        else:
            await self._serve(session, resumed)

    def _check_stored(self, name: str, topics: Collection[str]) -> None:
        """A subscriber needs READ on all topics of its subscription, not only on those that it names. It could
        otherwise disconnect or delete a subscription to topics that it may not read. The refusal does not name them."""
        self._has_created = not topics
        caller, resources = caller_of(self._socket), self._node.resources
        try:
            for topic in sorted(topics):
                resources.check(caller, Operation.READ, ResourceType.TOPIC, topic)
        except KafkaError as refusal:
            message = f"{caller.principal} has no READ permission on a topic that subscription {name!r} has"
            raise refused(refusal.code, message) from None

    def _check_may_delete(self, name: str) -> None:
        """A subscriber may delete the subscription that it has created itself; all others need DELETE on the group."""
        if self._has_created:
            return
        try:
            self._node.resources.check_group(caller_of(self._socket), name, Operation.DELETE)
        except KafkaError as refusal:
            raise as_problem(refusal) from None

    async def _first_frame(self) -> Subscribe:
        frame = await self._frames.first(Subscribe, "not_subscribed")
        named = self._socket.query_params.get("subscription")
        if named and named != frame.subscription:
            message = f"subscription: the address says {named!r}, and the frame {frame.subscription!r}"
            raise Problem(400, "invalid_field", message, "subscription")
        return frame

    async def _serve(self, session: SubscriberSession, resumed: bool) -> None:
        session.tell(
            {
                "type": "subscribed",
                "subscription": session.request.name,
                "resumed": resumed,
                "positions": [position_json(position) for position in session.core.positions()],
            }
        )
        session.set_credit(min(session.request.settings.credit, self._max_credit))
        sending = asyncio.ensure_future(session.run(self._sender))
        receiving = asyncio.ensure_future(self._listen(session))
        told = asyncio.ensure_future(session.told_to_end())
        losing = asyncio.ensure_future(self._end_without_permission(session))
        tasks = (sending, receiving, told, losing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._finish(session, *tasks)

    async def _end_without_permission(self, session: SubscriberSession) -> None:
        request = session.request
        lost = await lost_permission(self._node, self._socket, request.name, request.topics)
        session.end(EndReason(lost.code, lost.message))

    async def _finish(
        self, session: SubscriberSession, *tasks: "asyncio.Task[object] | asyncio.Future[object]"
    ) -> None:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if any(isinstance(outcome, TooSlow) for outcome in outcomes):
            session.end(EndReason("too_slow", f"it read nothing for {self._sender.slow_seconds:g} seconds"))
        ending = await self._detach(session)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect | TooSlow):
                raise outcome
        if ending is not None and ending.code not in UNSAID:
            await self._end(ending.code, ending.message)

    async def _detach(self, session: SubscriberSession) -> EndReason | None:
        """Why the subscription ended; None if only the connection did."""
        ending = session.ending
        if ending is None or ending.code != "unsubscribed":
            await self._subscriptions.detach(session)
            return ending
        try:
            await self._subscriptions.forget(session)
        except PenstockError as trouble:
            return EndReason("unavailable", f"{trouble}: it may not be forgotten")
        return ending

    # --- frames of the subscriber

    async def _listen(self, session: SubscriberSession) -> None:
        """Returns when the subscriber has disconnected, or must be disconnected."""
        try:
            while session.ending is None:
                self._handle(session, await self._frames.next())
        except Problem as problem:
            session.end(EndReason(problem.code, problem.message))
        except WebSocketDisconnect:
            session.end(EndReason("closed", "the connection has ended"))

    def _handle(self, session: SubscriberSession, frame: AnyFrame) -> None:
        match frame:
            case AckFrame(topic=topic, partition=partition, offset=offset):
                if session.ack(TopicPartition(topic, partition), offset) is Ack.NOT_SENT:
                    message = f"offset {offset} of {topic}-{partition} was not sent, so it cannot be acked"
                    raise Problem(400, "not_sent", message, "offset")
            case CreditFrame(credit=credit):
                session.set_credit(min(credit, self._max_credit))
            case Ping():
                session.pong()
            case Unsubscribe():
                self._check_may_delete(session.request.name)
                session.end(EndReason("unsubscribed", "the subscription was ended", may_save=False))
            case Subscribe():
                raise Problem(
                    400, "already_subscribed", "one connection has one subscription: open another one"
                )

    # --- frames to the subscriber

    async def _send_to(self, node_id: int, name: str) -> None:
        url = endpoint_url(self._node, node_id, PATH)
        if url is None:
            message = f"node {node_id} coordinates this subscription, and has no HTTP port (serve --http)"
            await self._end("unavailable", message)
        else:
            notice: ControlFrame = {"type": "elsewhere", "url": _named(url, name), "node_id": node_id}
            await self._end("elsewhere", "", notice)

    async def _end(self, code: str, message: str, notice: ControlFrame | None = None) -> None:
        """Sends the reason and closes the connection, within CLOSE_SECONDS: the client may not read."""
        if has_ended(self._socket):
            return
        if notice is None and code == "inactive":
            notice = {"type": "inactive", "reason": "ack_timeout", "message": message}
        elif notice is None and code == "unsubscribed":
            notice = {"type": "unsubscribed"}
        with suppress(TimeoutError, WebSocketDisconnect, TooSlow):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._sender.send(notice or {"type": "error", "code": code, "message": message})
                await self._socket.close(CLOSE_CODES.get(code, MISTAKE), code)


def _named(url: str, name: str) -> str:
    return f"{url}?subscription={quote(name, safe='')}"
