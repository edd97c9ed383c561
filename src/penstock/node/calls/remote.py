"""Requests to other nodes as bytes, over `peers.Rpc`.

The body of a call:

    u16 length of the caller, 0 for the anonymous one    the caller, MessagePack    the request

Requests and responses are MessagePack (`methods` names their types), or bytes as they are: a method whose type is
`memoryview` carries a Kafka frame, and a `WireMessage` knows its own encoding.

Limits: a body must fit `max_peer_frame_bytes`, both ways. At most half of `max_peer_calls` may be waiting calls for
clients (`Method.for_clients`): otherwise long polls could keep a node from asking the controller. A quarter may be such
polls, which leaves the other quarter to short calls for clients. A poll beyond that is not refused: who polls asks
first whether it `may_wait`, and otherwise asks for what there is now, once in POLL_PAUSE_SECONDS.
"""

from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, TypeVar

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
from penstock.node.calls.wire_message import WireMessage
from penstock.node.peers import Buffer, CallProblem, PeerCallFailed, Rpc
from penstock.types import ANONYMOUS, Caller, NodeId

Q = TypeVar("Q")
R = TypeVar("R")

FRAME_OVERHEAD = 1024
"""Bytes of a frame beside the message: its head, a seal."""
CLIENTS_PART = 2
POLLS_PART = 4
"""The parts of `max_peer_calls` for clients, and for those of them that are long polls."""

_CALLER = Struct(">H")
_UNREADABLE = (ProtocolViolation, msgspec.MsgspecError, UnicodeDecodeError)
_NOT_SENT = frozenset({CallProblem.NOT_CONNECTED, CallProblem.TOO_MANY_CALLS, CallProblem.UNKNOWN_METHOD})

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_callers = msgspec.msgpack.Decoder(Caller)
_decoders: dict[Any, Callable[[memoryview], Any]] = {}

Answer = Callable[[Method[Any, Any], Caller, Any], Any]


class RemoteCalls:
    """Asks other nodes, and answers them with what `answer_with` was given."""

    def __init__(self, rpc: Rpc, limits: Limits) -> None:
        self._rpc = rpc
        self._max_bytes = limits.max_peer_frame_bytes - FRAME_OVERHEAD
        self._max_for_clients = max(1, limits.max_peer_calls // CLIENTS_PART)
        self._max_polls = limits.max_peer_calls // POLLS_PART
        self._for_clients: dict[NodeId, int] = {}
        """Calls for clients that each node has not answered yet."""
        self._polls: dict[NodeId, int] = {}
        """Those of them whose requests wait there for something to happen."""

    async def call(
        self, node: NodeId, absent: ErrorCode, method: Method[Q, R], request: Q, caller: Caller, wait_ms: int
    ) -> R:
        """`absent` is the code of the error if the node does not answer."""
        self._check_version(node, method)
        head, body = _pack_caller(caller), encode(request)
        self._check_size(len(head) + len(body), "a request")
        if method.for_clients:
            self._begin_for_client(node, absent, is_poll=wait_ms > 0)
        try:
            answer = await self._rpc.call(node, method.number, [head, body], method.answer_ms + wait_ms)
        except PeerCallFailed as failed:
            raise _unanswered(failed, absent) from failed
        finally:
            if method.for_clients:
                self._for_clients[node] -= 1
                self._polls[node] -= wait_ms > 0
        try:
            return decode(method.response, answer)
        except _UNREADABLE as wrong:
            message = f"node {node} answered {method.name} with bytes that cannot be read: {wrong}"
            raise Unanswered(ErrorCode.UNKNOWN_SERVER_ERROR, message, may_be_done=True) from wrong

    def may_wait(self, node: NodeId) -> bool:
        """Whether another long poll leaves enough calls to this node for other requests of clients."""
        return self._polls.get(node, 0) < self._max_polls

    def answer_with(self, answer: Answer) -> None:
        for method in METHODS.values():
            self._rpc.handle(method.number, self._handler(method, answer))

    def _begin_for_client(self, node: NodeId, absent: ErrorCode, *, is_poll: bool) -> None:
        waiting = self._for_clients.get(node, 0)
        if waiting >= self._max_for_clients:
            raise Unanswered(
                absent, f"{waiting} requests of clients already wait for node {node}", may_be_done=False
            )
        self._for_clients[node] = waiting + 1
        self._polls[node] = self._polls.get(node, 0) + is_poll

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
            response = answer(method, caller, request)
            return (
                self._encoded_later(response) if isinstance(response, Awaitable) else self._encoded(response)
            )

        return handle

    async def _encoded_later(self, response: Awaitable[object]) -> Buffer:
        try:
            return self._encoded(await response)
        except (StorageError, CorruptLog) as problem:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem)) from problem

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
