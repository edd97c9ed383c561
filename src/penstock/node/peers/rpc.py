"""Calls between nodes as frames, over any Transport. `node.calls` says which methods there are.

    CALL      u32 number of the call, u16 method, then the request
    ANSWER    u32 number, then the response
    FAILURE   u32 number, i16 code, u8 1 if nothing was done, then a sentence in UTF-8
    CANCEL    u32 number: nothing waits for the answer. An earlier version drops this frame

One of Kafka's codes is raised as KafkaError where the call was made, as if the handler had been there, or as its
subclass NotExecuted if nothing was done; codes from 1000 on are this file's own and are raised as PeerCallFailed. The
calling node numbers its calls; the numbers wrap round after 2^32 calls.

A call ends in one of four ways: a response, a failure, its time is over, or the connection has ended (at once, not
after the timeout). In the last two cases the handler may have run: only repeat what may be done twice.

A call whose caller is cancelled counts towards the limit of calls until it ends in one of these ways, as it does at the
called node. Otherwise clients that disconnect could fill the calls of that node with requests that nothing waits for.
If the call may be cancelled there, its node is told, cancels the handler and answers with CANCELLED.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError, NotExecuted, PenstockError, ProtocolViolation
from penstock.node.frame_kinds import ANSWER, CALL, CANCEL, FAILURE
from penstock.node.peers.dispatcher import FrameDispatcher
from penstock.node.peers.transport import Body, Buffer, Transport
from penstock.types import NodeId

log = logging.getLogger("penstock.peers")

_CALL = Struct(">IH")
_NUMBER = Struct(">I")
_FAILURE = Struct(">IhB")

Handler = Callable[[NodeId, memoryview], Buffer | Awaitable[Buffer]]
"""Gets the calling node and the request; a coroutine function may wait."""


class CallProblem(IntEnum):
    """Why there is no response. Those above 1000 are sent by the called node."""

    NOT_CONNECTED = 1
    PEER_LOST = 2
    TIMED_OUT = 3
    TOO_MANY_CALLS = 1000
    UNKNOWN_METHOD = 1001
    HANDLER_FAILED = 1002
    """A bug in the called node: its log has the traceback."""
    CANCELLED = 1003


class PeerCallFailed(PenstockError):
    """A call between nodes without a response."""

    def __init__(self, problem: CallProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class _Call(NamedTuple):
    node: NodeId
    answer: "asyncio.Future[memoryview]"
    """Cancelled if its caller no longer waits for it."""
    timer: asyncio.TimerHandle
    when_ended: Callable[[], None]
    may_cancel: bool


class Rpc:
    """Both sides of calls. One per node, on its event loop."""

    def __init__(self, transport: Transport, dispatcher: FrameDispatcher, *, max_calls_per_peer: int) -> None:
        self._transport = transport
        self._most = max_calls_per_peer
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[int, Handler] = {}
        self._calls: dict[int, _Call] = {}
        self._asked: dict[NodeId, int] = {}
        """How many calls to each node have not ended yet."""
        self._last_number = 0
        self._running: dict[NodeId, dict[int, asyncio.Future[Buffer]]] = {}
        dispatcher.take(CALL, self._on_call)
        dispatcher.take(ANSWER, self._on_answer)
        dispatcher.take(FAILURE, self._on_failure)
        dispatcher.take(CANCEL, self._on_cancel)
        dispatcher.watch(down=self._on_down)

    def handle(self, method: int, handler: Handler) -> None:
        assert method not in self._handlers, f"method {method} is taken"
        self._handlers[method] = handler

    async def call(self, node: NodeId, method: int, request: Body, timeout_ms: int) -> memoryview:
        """The response. PeerCallFailed: there is none; KafkaError: the handler raised it."""
        return await self.start(node, method, request, timeout_ms)

    def start(
        self,
        node: NodeId,
        method: int,
        request: Body,
        timeout_ms: int,
        when_ended: Callable[[], None] = lambda: None,
        *,
        may_cancel: bool = False,
    ) -> "asyncio.Future[memoryview]":
        """The response to come, or an error as of `call`. PeerCallFailed: the call has not begun. `when_ended` is
        called when it ends, also if the future was cancelled before. `may_cancel`: the handler is cancelled if this
        future is, or if its time is over."""
        asked = self._asked.get(node, 0)
        if asked >= self._most:
            raise PeerCallFailed(
                CallProblem.TOO_MANY_CALLS, f"{asked} calls to node {node} have no response yet"
            )
        number = self._next_number()
        body = request if isinstance(request, list) else [request]
        if not self._transport.send(node, CALL, [_CALL.pack(number, method), *body]):
            raise PeerCallFailed(CallProblem.NOT_CONNECTED, f"node {node} cannot be reached now")
        timer = self._loop.call_later(timeout_ms / 1000, self._time_out, number, timeout_ms)
        call = self._calls[number] = _Call(node, self._loop.create_future(), timer, when_ended, may_cancel)
        self._asked[node] = asked + 1
        if may_cancel:
            call.answer.add_done_callback(lambda answer: self._cancel(number, answer))
        return call.answer

    def version_of(self, node: NodeId) -> int:
        """The version of the protocol that a connected node speaks; 0 if it is not connected."""
        return self._transport.version_of(node)

    def stop(self) -> None:
        """Ends all calls, both ways."""
        for node in {*self._running, *(call.node for call in self._calls.values())}:
            self._on_down(node)

    # --- the calling side

    def _next_number(self) -> int:
        while True:
            self._last_number = (self._last_number + 1) % 2**32
            if self._last_number not in self._calls:
                return self._last_number

    def _end(self, number: int) -> "asyncio.Future[memoryview] | None":
        """Ends a call. The future gets the result; None if it was cancelled."""
        call = self._calls.pop(number)
        call.timer.cancel()
        left = self._asked[call.node] - 1
        if left:
            self._asked[call.node] = left
        else:
            del self._asked[call.node]
        call.when_ended()
        return None if call.answer.done() else call.answer

    def _cancel(self, number: int, answer: "asyncio.Future[memoryview]") -> None:
        call = self._calls.get(number)
        if answer.cancelled() and call is not None and call.answer is answer:
            self._transport.send(call.node, CANCEL, _NUMBER.pack(number))

    def _fail_call(self, number: int, problem: Exception) -> None:
        answer = self._end(number)
        if answer is not None:
            answer.set_exception(problem)

    def _time_out(self, number: int, timeout_ms: int) -> None:
        call = self._calls[number]
        if call.may_cancel:
            self._transport.send(call.node, CANCEL, _NUMBER.pack(number))
        message = f"node {call.node} did not answer within {timeout_ms} ms"
        self._fail_call(number, PeerCallFailed(CallProblem.TIMED_OUT, message))

    def _on_answer(self, sender: NodeId, body: memoryview) -> None:
        (number,) = _unpacked(_NUMBER, body)
        if not self._is_open(sender, number):
            return
        answer = self._end(number)
        if answer is not None:
            answer.set_result(body[_NUMBER.size :])

    def _on_failure(self, sender: NodeId, body: memoryview) -> None:
        number, code, is_undone = _unpacked(_FAILURE, body)
        if self._is_open(sender, number):
            message = bytes(body[_FAILURE.size :]).decode("utf-8", "replace")
            self._fail_call(number, _as_error(sender, code, message, is_undone=bool(is_undone)))

    def _is_open(self, sender: NodeId, number: int) -> bool:
        """False for a call that has ended already, or that another node was to answer."""
        call = self._calls.get(number)
        return call is not None and call.node == sender

    # --- the called side

    def _on_call(self, sender: NodeId, body: memoryview) -> None:
        number, method = _unpacked(_CALL, body)
        handler = self._handlers.get(method)
        if handler is None:
            self._fail(sender, number, CallProblem.UNKNOWN_METHOD, f"there is no method {method}")
            return
        running = self._running.get(sender, {})
        if number in running:
            raise ProtocolViolation(f"call {number} begins again, and has no answer yet")
        if len(running) >= self._most:
            self._fail(sender, number, CallProblem.TOO_MANY_CALLS, f"{self._most} calls are being handled")
            return
        try:
            answer = handler(sender, body[_CALL.size :])
        except Exception as problem:  # noqa: BLE001 - sorted out in there
            self._handler_failed(sender, number, method, problem)
            return
        if isinstance(answer, Awaitable):
            self._run(sender, number, method, answer)
        else:
            self._answer(sender, number, answer)

    def _run(self, sender: NodeId, number: int, method: int, answer: Awaitable[Buffer]) -> None:
        task = asyncio.ensure_future(answer)
        self._running.setdefault(sender, {})[number] = task
        task.add_done_callback(lambda done: self._handled(sender, number, method, done))

    def _handled(self, sender: NodeId, number: int, method: int, task: "asyncio.Future[Buffer]") -> None:
        running = self._running.get(sender, {})
        is_awaited = running.get(number) is task  # or else it was cancelled, or the connection has ended
        if is_awaited:
            del running[number]
        if task.cancelled():
            return
        problem = task.exception()
        if not is_awaited:
            if problem is not None and not isinstance(problem, PenstockError):
                log.error("a bug in answering method %d of node %d", method, sender, exc_info=problem)
        elif problem is None:
            self._answer(sender, number, task.result())
        elif isinstance(problem, Exception):
            self._handler_failed(sender, number, method, problem)

    def _on_cancel(self, sender: NodeId, body: memoryview) -> None:
        (number,) = _unpacked(_NUMBER, body)
        task = self._running.get(sender, {}).pop(number, None)
        if task is not None:  # otherwise the answer is on its way
            task.cancel()
            self._fail(sender, number, CallProblem.CANCELLED, "the call was cancelled")

    def _answer(self, to: NodeId, number: int, answer: Buffer) -> None:
        # Dropped when the connection has ended or its queue is full: the calling node's timeout covers that.
        self._transport.send(to, ANSWER, [_NUMBER.pack(number), answer])

    def _handler_failed(self, to: NodeId, number: int, method: int, problem: Exception) -> None:
        if isinstance(problem, KafkaError):
            is_undone = isinstance(problem, NotExecuted)
            self._fail(to, number, problem.code, problem.message, is_undone=is_undone)
        elif isinstance(problem, ProtocolViolation):
            self._fail(to, number, ErrorCode.INVALID_REQUEST, str(problem))
        elif isinstance(problem, PenstockError):
            # A known problem, such as a full disk, which this node has logged already.
            self._fail(to, number, CallProblem.HANDLER_FAILED, str(problem))
        else:
            log.error("a bug in answering method %d of node %d", method, to, exc_info=problem)
            self._fail(to, number, CallProblem.HANDLER_FAILED, f"method {method} failed: {problem!r}")

    def _fail(self, to: NodeId, number: int, code: int, message: str, *, is_undone: bool = False) -> None:
        self._transport.send(to, FAILURE, [_FAILURE.pack(number, code, is_undone), message.encode()])

    # --- connections that end

    def _on_down(self, node: NodeId) -> None:
        for number in [number for number, call in self._calls.items() if call.node == node]:
            message = f"the connection with node {node} ended"
            self._fail_call(number, PeerCallFailed(CallProblem.PEER_LOST, message))
        for task in self._running.pop(node, {}).values():
            task.cancel()


def _unpacked(layout: Struct, body: memoryview) -> tuple[int, ...]:
    if len(body) < layout.size:
        raise ProtocolViolation(f"a call of {len(body)} bytes: expected at least {layout.size}")
    return layout.unpack_from(body)


def _as_error(node: NodeId, code: int, message: str, *, is_undone: bool) -> Exception:
    if code in ErrorCode.__members__.values():
        return (NotExecuted if is_undone else KafkaError)(ErrorCode(code), message)
    if code in CallProblem.__members__.values():
        return PeerCallFailed(CallProblem(code), f"node {node}: {message}")
    return PeerCallFailed(
        CallProblem.HANDLER_FAILED, f"node {node} answered with the unknown error {code}: {message}"
    )
