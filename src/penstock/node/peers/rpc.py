"""Questions and answers between nodes, over any Transport.

    CALL      u32 number of the call, u16 method, then the question
    ANSWER    u32 number, then the answer
    FAILURE   u32 number, i16 code, then a sentence in UTF-8

A code that is Kafka's comes out as KafkaError where the call was made, as if the handler had been here; codes from 1000
on are this file's own and come out as CallFailed. Numbers are the caller's; they wrap round after 2^32 calls.

A call ends in one of four ways: an answer, a failure, its time is over, or the peer has gone (at once, not after the
timeout). In the last two the handler may have run: only repeat what may be done twice.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError, PenstockError, ProtocolViolation
from penstock.node.peers.switchboard import Switchboard
from penstock.node.peers.transport import FIRST_FREE_KIND, Buffer, Transport
from penstock.types import NodeId

log = logging.getLogger("penstock.peers")

CALL, ANSWER, FAILURE = FIRST_FREE_KIND, FIRST_FREE_KIND + 1, FIRST_FREE_KIND + 2
FIRST_KIND_AFTER_RPC = FAILURE + 1

_CALL = Struct(">IH")
_ANSWER = Struct(">I")
_FAILURE = Struct(">Ih")

Handler = Callable[[NodeId, memoryview], Buffer | Awaitable[Buffer]]
"""Gets the asking node and the question; a coroutine function may wait."""


class CallProblem(IntEnum):
    """Why there is no answer. Those above 1000 travel."""

    NOT_CONNECTED = 1
    PEER_LOST = 2
    TIMED_OUT = 3
    TOO_MANY_CALLS = 1000
    UNKNOWN_METHOD = 1001
    HANDLER_FAILED = 1002
    """A bug over there: its log has the traceback."""


class CallFailed(PenstockError):
    """A call between nodes without an answer."""

    def __init__(self, problem: CallProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class _Call(NamedTuple):
    node: NodeId
    answer: "asyncio.Future[memoryview]"


class Rpc:
    """Both sides of calls. One per node, on its event loop."""

    def __init__(self, transport: Transport, switchboard: Switchboard, *, max_calls_per_peer: int) -> None:
        self._transport = transport
        self._most = max_calls_per_peer
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[int, Handler] = {}
        self._calls: dict[int, _Call] = {}
        self._asked: dict[NodeId, int] = {}
        """Calls to each node that wait for their end."""
        self._last_number = 0
        self._running: dict[NodeId, set[asyncio.Future[Buffer]]] = {}
        switchboard.take(CALL, self._on_call)
        switchboard.take(ANSWER, self._on_answer)
        switchboard.take(FAILURE, self._on_failure)
        switchboard.watch(down=self._on_down)

    def handle(self, method: int, handler: Handler) -> None:
        assert method not in self._handlers, f"method {method} is taken"
        self._handlers[method] = handler

    async def call(self, node: NodeId, method: int, question: Buffer, timeout_ms: int) -> memoryview:
        """The answer. CallFailed: there is none; KafkaError: the handler raised it."""
        asked = self._asked.get(node, 0)
        if asked >= self._most:
            raise CallFailed(CallProblem.TOO_MANY_CALLS, f"{asked} calls to node {node} are unanswered")
        number = self._next_number()
        if not self._transport.send(node, CALL, [_CALL.pack(number, method), question]):
            raise CallFailed(CallProblem.NOT_CONNECTED, f"node {node} cannot be reached now")
        call = _Call(node, self._loop.create_future())
        self._calls[number] = call
        self._asked[node] = asked + 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await call.answer
        except TimeoutError:
            raise CallFailed(
                CallProblem.TIMED_OUT, f"node {node} did not answer within {timeout_ms} ms"
            ) from None
        finally:
            self._calls.pop(number, None)
            self._ended(node)

    def stop(self) -> None:
        """Ends all calls, both ways."""
        for node in {*self._running, *(call.node for call in self._calls.values())}:
            self._on_down(node)

    # --- the asking side

    def _next_number(self) -> int:
        while True:
            self._last_number = (self._last_number + 1) % 2**32
            if self._last_number not in self._calls:
                return self._last_number

    def _ended(self, node: NodeId) -> None:
        left = self._asked[node] - 1
        if left:
            self._asked[node] = left
        else:
            del self._asked[node]

    def _on_answer(self, sender: NodeId, body: memoryview) -> None:
        (number,) = _unpacked(_ANSWER, body)
        call = self._awaited(sender, number)
        if call is not None:
            call.answer.set_result(body[_ANSWER.size :])

    def _on_failure(self, sender: NodeId, body: memoryview) -> None:
        number, code = _unpacked(_FAILURE, body)
        call = self._awaited(sender, number)
        if call is not None:
            message = bytes(body[_FAILURE.size :]).decode("utf-8", "replace")
            call.answer.set_exception(_as_error(sender, code, message))

    def _awaited(self, sender: NodeId, number: int) -> _Call | None:
        """None for a call that has ended already, or that was somebody else's to answer."""
        call = self._calls.get(number)
        if call is None or call.node != sender or call.answer.done():
            return None
        return call

    # --- the answering side

    def _on_call(self, sender: NodeId, body: memoryview) -> None:
        number, method = _unpacked(_CALL, body)
        handler = self._handlers.get(method)
        if handler is None:
            self._fail(sender, number, CallProblem.UNKNOWN_METHOD, f"there is no method {method}")
            return
        if len(self._running.get(sender, ())) >= self._most:
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
        self._running.setdefault(sender, set()).add(task)
        task.add_done_callback(lambda done: self._handled(sender, number, method, done))

    def _handled(self, sender: NodeId, number: int, method: int, task: "asyncio.Future[Buffer]") -> None:
        self._running.get(sender, set()).discard(task)
        if task.cancelled():
            return
        problem = task.exception()
        if problem is None:
            self._answer(sender, number, task.result())
        elif isinstance(problem, Exception):
            self._handler_failed(sender, number, method, problem)

    def _answer(self, to: NodeId, number: int, answer: Buffer) -> None:
        # Dropped when the peer has gone or takes nothing: the caller's timeout is made for that.
        self._transport.send(to, ANSWER, [_ANSWER.pack(number), answer])

    def _handler_failed(self, to: NodeId, number: int, method: int, problem: Exception) -> None:
        if isinstance(problem, KafkaError):
            self._fail(to, number, problem.code, problem.message)
        elif isinstance(problem, ProtocolViolation):
            self._fail(to, number, ErrorCode.INVALID_REQUEST, str(problem))
        elif isinstance(problem, PenstockError):
            # Known trouble, such as a full disk, and told where it happened.
            self._fail(to, number, CallProblem.HANDLER_FAILED, str(problem))
        else:
            log.error("a bug in answering method %d of node %d", method, to, exc_info=problem)
            self._fail(to, number, CallProblem.HANDLER_FAILED, f"method {method} failed: {problem!r}")

    def _fail(self, to: NodeId, number: int, code: int, message: str) -> None:
        self._transport.send(to, FAILURE, [_FAILURE.pack(number, code), message.encode()])

    # --- comings and goings

    def _on_down(self, node: NodeId) -> None:
        for call in list(self._calls.values()):
            if call.node == node and not call.answer.done():
                call.answer.set_exception(
                    CallFailed(CallProblem.PEER_LOST, f"the connection with node {node} ended")
                )
        for task in self._running.pop(node, ()):
            task.cancel()


def _unpacked(layout: Struct, body: memoryview) -> tuple[int, ...]:
    if len(body) < layout.size:
        raise ProtocolViolation(f"a call of {len(body)} bytes: expected at least {layout.size}")
    return layout.unpack_from(body)


def _as_error(node: NodeId, code: int, message: str) -> Exception:
    if code in ErrorCode.__members__.values():
        return KafkaError(ErrorCode(code), message)
    if code in CallProblem.__members__.values():
        return CallFailed(CallProblem(code), f"node {node}: {message}")
    return CallFailed(
        CallProblem.HANDLER_FAILED, f"node {node} answered with the unknown error {code}: {message}"
    )
