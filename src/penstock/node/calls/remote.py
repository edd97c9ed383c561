"""Requests to other nodes as bytes, over `peers.Rpc`.

The body of a call:

    u16 length of the caller, 0 for the anonymous one    the caller, MessagePack    the request

Requests and responses are MessagePack (`methods` names their types), or bytes as they are: a method whose type is
`memoryview` carries a Kafka frame, and a `WireMessage` knows its own encoding.

Limits: a body must fit `max_peer_frame_bytes`, both ways. At most half of `max_peer_calls` may be waiting calls for
clients (`Method.for_clients`): otherwise they could keep a node from asking the controller. A quarter may be long polls
(`Method.poll`), which leaves the other quarter to short calls for clients. A poll beyond that is not refused: until one
of the others ends, it asks for what there is now, once in POLL_PAUSE_SECONDS and when its time is over. So for its
caller it waits all the same. Only a few calls of a method are sent in place of long polls at the same time
(SUBSTITUTES_PART): thousands of polls must not take the calls of others.

A call counts until it has ended (`Rpc`), also if its caller was cancelled meanwhile. A long poll of such a caller is
cancelled at the other node.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from penstock.config import Limits
from penstock.errors import (
    CorruptLog,
    ErrorCode,
    KafkaError,
    NotExecuted,
    ProtocolViolation,
    StorageError,
    Unanswered,
)
from penstock.node.calls.methods import METHODS, Method
from penstock.node.calls.polls import Poll
from penstock.node.calls.retry import POLL_PAUSE_SECONDS
from penstock.node.calls.wire_message import WireMessage
from penstock.node.peers import Buffer, CallProblem, PeerCallFailed, Rpc
from penstock.types import ANONYMOUS, Caller, NodeId

Q = TypeVar("Q")
R = TypeVar("R")

FRAME_OVERHEAD = 1024
"""Bytes of a frame beside the message: its head, a seal."""
CLIENTS_PART = 2
POLLS_PART = 4
SUBSTITUTES_PART = 32
"""The parts of `max_peer_calls` for clients, for those of them that are long polls, and for those of each method that
are sent in place of a long poll."""

_CALLER = Struct(">H")
_UNREADABLE = (ProtocolViolation, msgspec.MsgspecError, UnicodeDecodeError)
_NOT_SENT = frozenset({CallProblem.NOT_CONNECTED, CallProblem.TOO_MANY_CALLS, CallProblem.UNKNOWN_METHOD})

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_callers = msgspec.msgpack.Decoder(Caller)
_decoders: dict[Any, Callable[[memoryview], Any]] = {}

Answer = Callable[[Method[Any, Any], Caller, Any], Any]


class _Recipient(NamedTuple, Generic[Q, R]):
    """Whom to ask for what, on behalf of whom."""

    node: NodeId
    absent: ErrorCode
    method: Method[Q, R]
    caller: Caller


class _Share:
    """The calls for clients to one node that have not ended."""

    def __init__(self, max_calls: int) -> None:
        self.most = max(1, max_calls // CLIENTS_PART)
        self.most_polls = max_calls // POLLS_PART
        self.calls = 0
        self.polls = 0
        """Those of them that wait there for something to happen."""
        most = max(1, max_calls // SUBSTITUTES_PART)
        self.substitutes: dict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(most))
        """By method: taken by those of them that are sent in place of a long poll."""

    def begin(self, *, is_poll: bool) -> None:
        self.calls += 1
        self.polls += is_poll

    def end(self, *, is_poll: bool) -> None:
        self.calls -= 1
        self.polls -= is_poll


class RemoteCalls:
    """Asks other nodes, and answers them with what `answer_with` was given."""

    def __init__(self, rpc: Rpc, limits: Limits) -> None:
        self._rpc = rpc
        self._max_bytes = limits.max_peer_frame_bytes - FRAME_OVERHEAD
        self._max_calls = limits.max_peer_calls
        self._shares: dict[NodeId, _Share] = {}

    async def call(
        self,
        node: NodeId,
        absent: ErrorCode,
        method: Method[Q, R],
        request: Q,
        caller: Caller,
        allowed_ms: int = 0,
        unwanted: asyncio.Event | None = None,
    ) -> R:
        """`absent` is the code of the error if the node does not answer; the rest as in `Calls.ask`."""
        to = _Recipient(node, absent, method, caller)
        if method.poll is not None and (wait_ms := method.poll.wait_ms(request)) > 0:
            return await self._poll(to, method.poll, request, wait_ms, unwanted or asyncio.Event())
        return await self._send(to, request, method.answer_ms + allowed_ms)

    async def _poll(
        self, to: "_Recipient[Q, R]", poll: Poll[Q, R], request: Q, wait_ms: int, unwanted: asyncio.Event
    ) -> R:
        loop, share = asyncio.get_running_loop(), self._share(to.node)
        substitutes = share.substitutes[to.method.number]
        deadline = loop.time() + wait_ms / 1000
        empty: list[R] = []
        while share.polls >= share.most_polls:
            if not await _acquired(substitutes, min(wait_ms, to.method.answer_ms)):
                if empty:
                    return empty[0]
                message = f"node {to.node} does not answer the requests of clients that wait for it"
                raise Unanswered(to.absent, message, may_be_done=False)
            if unwanted.is_set():
                substitutes.release()
                raise Unanswered(to.absent, "the request is no longer wanted", may_be_done=False)
            at_once = poll.with_wait(request, 0)
            response = await self._send(to, at_once, to.method.answer_ms, when_ended=substitutes.release)
            if wait_ms == 0 or unwanted.is_set() or not poll.is_empty(request, response):
                return response
            with suppress(TimeoutError):
                async with asyncio.timeout(min(deadline - loop.time(), POLL_PAUSE_SECONDS)):
                    await unwanted.wait()
                    return response
            if not poll.is_repeated:
                return response
            empty = [response]
            wait_ms = max(0, int((deadline - loop.time()) * 1000))
        time_ms = to.method.answer_ms + wait_ms
        return await self._send(to, poll.with_wait(request, wait_ms), time_ms, is_poll=True)

    async def _send(
        self,
        to: "_Recipient[Q, R]",
        request: Q,
        time_ms: int,
        *,
        is_poll: bool = False,
        when_ended: Callable[[], None] = lambda: None,
    ) -> R:
        """`when_ended` is called when the call ends, which may be later than this, or if it does not begin."""
        try:
            answer = self._start(to, request, time_ms, is_poll, when_ended)
        except Exception:
            when_ended()
            raise
        try:
            body = await answer
        except PeerCallFailed as failed:
            raise _unanswered(failed, to.absent) from failed
        try:
            return decode(to.method.response, body)
        except _UNREADABLE as wrong:
            message = f"node {to.node} answered {to.method.name} with bytes that cannot be read: {wrong}"
            raise Unanswered(ErrorCode.UNKNOWN_SERVER_ERROR, message, may_be_done=True) from wrong

    def _start(
        self, to: "_Recipient[Q, R]", request: Q, time_ms: int, is_poll: bool, when_ended: Callable[[], None]
    ) -> "asyncio.Future[memoryview]":
        node, absent, method, caller = to
        self._check_version(node, method)
        head, body = _pack_caller(caller), encode(request)
        self._check_size(len(head) + len(body), "a request")
        share = self._share(node) if method.for_clients else None
        if share is not None and share.calls >= share.most:
            message = f"{share.calls} requests of clients already wait for node {node}"
            raise Unanswered(absent, message, may_be_done=False)

        def ended() -> None:
            if share is not None:
                share.end(is_poll=is_poll)
            when_ended()

        try:
            answer = self._rpc.start(node, method.number, [head, body], time_ms, ended, may_cancel=is_poll)
        except PeerCallFailed as failed:
            raise _unanswered(failed, absent) from failed
        if share is not None:
            share.begin(is_poll=is_poll)
        return answer

    def _share(self, node: NodeId) -> _Share:
        share = self._shares.get(node)
        if share is None:
            share = self._shares[node] = _Share(self._max_calls)
        return share

    def answer_with(self, answer: Answer) -> None:
        for method in METHODS.values():
            self._rpc.handle(method.number, self._handler(method, answer))

    def _handler(
        self, method: Method[Any, Any], answer: Answer
    ) -> Callable[[NodeId, memoryview], Buffer | Awaitable[Buffer]]:
        def handle(sender: NodeId, body: memoryview) -> Buffer | Awaitable[Buffer]:
            caller, packed = _unpack_caller(body)
            try:
                request = decode(method.request, packed)
            except _UNREADABLE as wrong:
                raise NotExecuted(
                    ErrorCode.INVALID_REQUEST, f"{method.name} from node {sender}: {wrong}"
                ) from wrong
            try:
                response = answer(method, caller, request)
            except (StorageError, CorruptLog) as problem:
                raise _storage_error(problem) from problem
            return (
                self._encoded_later(response) if isinstance(response, Awaitable) else self._encoded(response)
            )

        return handle

    async def _encoded_later(self, response: Awaitable[object]) -> Buffer:
        try:
            return self._encoded(await response)
        except (StorageError, CorruptLog) as problem:
            raise _storage_error(problem) from problem

    def _encoded(self, response: object) -> Buffer:
        body = encode(response)
        self._check_size(len(body), "a response")
        return body

    def _check_version(self, node: NodeId, method: Method[Any, Any]) -> None:
        version = self._rpc.version_of(node)
        if 0 < version < method.since:
            message = (
                f"node {node} speaks version {version} of the inter-node protocol, and {method.name} came with "
                f"version {method.since}: update Penstock on that node"
            )
            raise Unanswered(ErrorCode.UNSUPPORTED_VERSION, message, may_be_done=False)

    def _check_size(self, size: int, what: str) -> None:
        if size > self._max_bytes:
            message = (
                f"{what} of {size} bytes does not fit between nodes: limits.max_peer_frame_bytes "
                f"allows {self._max_bytes}"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)


async def _acquired(semaphore: asyncio.Semaphore, wait_ms: int) -> bool:
    try:
        async with asyncio.timeout(wait_ms / 1000):
            await semaphore.acquire()
    except TimeoutError:
        return False
    return True


def encode(message: object) -> Buffer:
    if isinstance(message, WireMessage):
        return message.to_wire()
    if isinstance(message, bytes | bytearray | memoryview):
        return message
    return _encoder.encode(message)


def decode(kind: type[R], body: memoryview) -> R:
    """Raises ProtocolViolation or msgspec.MsgspecError."""
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = _decoder(kind)
    result: R = found(body)
    return result


def _decoder(kind: Any) -> Callable[[memoryview], Any]:
    if kind is memoryview:
        return memoryview
    if isinstance(kind, type) and issubclass(kind, WireMessage):
        return kind.from_wire
    return msgspec.msgpack.Decoder(kind).decode


def _storage_error(problem: StorageError | CorruptLog) -> KafkaError:
    """The caller hears of a full or failing disk here what it would hear of its own."""
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))


def _pack_caller(caller: Caller) -> bytes:
    packed = b"" if caller == ANONYMOUS else _encoder.encode(caller)
    return _CALLER.pack(len(packed)) + packed


def _unpack_caller(body: memoryview) -> tuple[Caller, memoryview]:
    if len(body) < _CALLER.size:
        raise ProtocolViolation(f"a call of {len(body)} bytes has no caller")
    start = _CALLER.size
    (length,) = _CALLER.unpack_from(body)
    if length == 0:
        return ANONYMOUS, body[start:]
    try:
        return _callers.decode(body[start : start + length]), body[start + length :]
    except _UNREADABLE as wrong:
        raise ProtocolViolation(f"a caller that cannot be read: {wrong}") from wrong


def _unanswered(failed: PeerCallFailed, absent: ErrorCode) -> KafkaError:
    match failed.problem:
        case CallProblem.HANDLER_FAILED:
            return Unanswered(ErrorCode.UNKNOWN_SERVER_ERROR, str(failed), may_be_done=True)
        case CallProblem.UNKNOWN_METHOD:
            return Unanswered(ErrorCode.UNSUPPORTED_VERSION, str(failed), may_be_done=False)
        case problem:
            return Unanswered(absent, str(failed), may_be_done=problem not in _NOT_SENT)
