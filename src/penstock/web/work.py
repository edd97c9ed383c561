"""Queues over WebSocket: GET /v1/work, and then frames of JSON. docs/queues.md has the protocol.

A worker gets jobs of the partitions that this node leads, and the addresses of the nodes that lead the others. One task
sends, one receives; `worker` decides what is sent. Limits, beside those of every WebSocket (`websocket_protocol`):

    leased jobs                 the worker's credit
    no first frame              `websocket_frames`.FIRST_FRAME_SECONDS
    frames without a pause      FRAMES_PER_SECOND are read; TCP makes a worker wait that sends more
    settling without reading    UNANSWERED_MAX frames; then no more are read until responses have been sent
    not reading its jobs        limits.slow_drain_timeout_ms, then the connection is closed, and others get its jobs
    pages of other sites        refused, as for push
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.node import Node
from penstock.web.api.problems import Problem
from penstock.web.callers import LOGIN_EXPIRED, LOGIN_EXPIRED_CLOSE, caller_of
from penstock.web.clique_worker import CliqueConnections, Ended
from penstock.web.http_quotas import SocketQuota
from penstock.web.websocket_frames import (
    FrameReceiver,
    FrameSender,
    TooSlow,
    accept,
    check_may_read,
    has_ended,
    lost_permission,
    refuse_socket,
    until_one_ends,
    upgrade_required,
)
from penstock.web.work_frames import FRAMES, AnyFrame, CreditFrame, EpochFrame, Ping, Settle, Work
from penstock.web.worker import PATH, Worker, WorkersShare

FRAMES_PER_SECOND = 5_000
"""About a quarter of the event loop. A frame settles whole ranges, so no worker needs more."""
CLOSE_SECONDS = 2.0
CONFLICTS = ("held", "refused", "fenced", "replaced", "clique_only", "not_a_clique")
CLOSE_CODES = {"unknown_topic": 4404, LOGIN_EXPIRED: LOGIN_EXPIRED_CLOSE} | dict.fromkeys(CONFLICTS, 4409)
MISTAKE = 4400
"""All other refusals. The close frame's reason is the refusal's code."""


class WorkEndpoint:
    """Workers of one node."""

    path = PATH

    def __init__(self, node: Node) -> None:
        self._node = node
        self._share = WorkersShare()
        self._cliques = CliqueConnections()

    async def explain(self, request: Request) -> Response:
        return upgrade_required(PATH, "docs/queues.md")

    async def serve(self, socket: WebSocket) -> None:
        refusal = refuse_socket(self._node, socket)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        await accept(socket)
        with suppress(WebSocketDisconnect):
            await _Connection(self._node, socket, self._share, self._cliques).serve()


class _Connection:
    """One worker's socket, from its first frame to its end."""

    def __init__(
        self, node: Node, socket: WebSocket, share: WorkersShare, cliques: CliqueConnections
    ) -> None:
        self._node = node
        self._socket = socket
        self._share = share
        self._cliques = cliques
        self._frames: FrameReceiver[AnyFrame] = FrameReceiver(socket, FRAMES, FRAMES_PER_SECOND)
        self._sender = FrameSender(
            socket, node.config.limits.slow_drain_timeout_ms / 1000, SocketQuota(node, caller_of(socket))
        )

    async def serve(self) -> None:
        try:
            request = await self._frames.first(Work, "not_working")
            caller = check_may_read(self._node, self._socket, request.queue, request.topics)
        except Problem as problem:
            await self._end(problem.code, problem.message)
            return
        client = self._socket.client
        peer = f"{client.host}:{client.port}" if client is not None else ""
        worker = Worker(self._node, request, caller, peer, self._share)
        if worker.clique is not None:
            self._cliques.add(worker.clique)
        try:
            outcomes = await until_one_ends(
                worker.run(self._sender), self._listen(worker), self._end_without_permission(request)
            )
        finally:
            worker.leave()
            if worker.clique is not None:
                self._cliques.remove(worker.clique)
        await self._finish(outcomes)

    async def _end_without_permission(self, request: Work) -> None:
        lost = await lost_permission(self._node, self._socket, request.queue, request.topics)
        raise Ended(lost.code, lost.message)

    async def _finish(self, outcomes: Sequence[object]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Ended):
                await self._end(outcome.code, outcome.message)
                return
            if isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect | TooSlow):
                raise outcome

    async def _listen(self, worker: "Worker") -> None:
        """Receives frames until the worker disconnects, or sends a frame that is wrong."""
        try:
            while True:
                match await self._frames.next():
                    case Settle() as frame:
                        await worker.settle(frame)
                    case CreditFrame(credit=credit):
                        worker.set_credit(credit)
                    case EpochFrame(epoch=epoch):
                        worker.learn_epoch(epoch)
                    case Ping():
                        await worker.pong()
                    case Work():
                        raise Problem(
                            400, "already_working", "one connection has one queue: open another one"
                        )
        except Problem as problem:
            raise Ended(problem.code, problem.message) from None

    async def _end(self, code: str, message: str) -> None:
        """Sends the reason and closes the connection, within CLOSE_SECONDS: the client may not read."""
        if has_ended(self._socket):
            return
        with suppress(TimeoutError, WebSocketDisconnect, TooSlow):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._sender.send({"type": "error", "code": code, "message": message})
                await self._socket.close(CLOSE_CODES.get(code, MISTAKE), code)
