"""The broker as a client of its own cluster: it asks the Kafka handlers, here or on another node, without a socket.

What is offered beside the Kafka port (the web API) is made of the same requests that Kafka's clients send. So there is
one implementation of what a request means, and a node that leads nothing can serve as well as one that leads all:

    here        the handler is called with the message
    there       the message goes as a request frame, as a client would have sent it, over the inter-node port
    controller  as `there`, to whoever that is now; `node.controller` knows how to find it

Each API is asked in one version, so that the nodes of a cluster understand each other while it is being updated.

Limits: a frame must fit `max_peer_frame_bytes`, both ways. At most half of `max_peer_calls` may wait for one node: the
other half belongs to the cluster itself, and long polls must not keep a controller from being asked. Every call ends:
after ANSWER_MS, or that much after the time that the request itself wants to wait.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import TypeVar, cast

from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.registry import find_api
from penstock.kafka.wire import (
    ApiKey,
    Message,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    join,
)
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.types import Caller, NodeId

M = TypeVar("M", bound=Message)

ASK = 30
"""The method between nodes; those of the controller are in `node.controller`."""
ANSWER_MS = 10_000
"""As long as the controller's questions wait."""
PATIENCE_SECONDS = 5.0
"""How long a leader or coordinator is looked for: an election with the usual settings, and then some."""
LOOK_AGAIN_SECONDS = 0.05
FRAME_OVERHEAD = 1024
"""What a frame may have beside the message: heads, tags, a seal."""
LENGTH_SIZE = 4

CLIENT_ID = "penstock-inner"
INNER_CALLER = Caller(client_id=CLIENT_ID)

VERSIONS: dict[ApiKey, int] = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 10,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.DESCRIBE_GROUPS: 6,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
}
"""Topics go by name in all of them: the newest versions that do so."""

LOOK_AGAIN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""What passes when an election is over, or when the nodes have heard of its outcome."""


class NoAnswer(PenstockError):
    """Another node was asked and said nothing. `sent`: it may have done what it was asked for."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Inside:
    """The connection of a request that came over none of a client's."""

    peer = "another node"
    client_software = ""

    def send_away(self) -> None:
        """Whoever asks is not connected here."""

    def __init__(self) -> None:
        self._when_closed: list[Callable[[], None]] = []

    def when_closed(self, callback: Callable[[], None]) -> None:
        self._when_closed.append(callback)

    def hold(self) -> Callable[[], None]:
        """Questions that are asked inside are answered in any order."""
        return lambda: None

    def close(self) -> None:
        """The one request that it was for has been answered."""
        for callback in self._when_closed:
            callback()
        self._when_closed.clear()


class InnerClient:
    """Asks on behalf of one node. Lives on its event loop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._most = max(1, node.config.limits.max_peer_calls // 2)
        self._waiting: dict[int, int] = {}
        """Questions that each other node has not answered."""

    async def ask(
        self, key: ApiKey, request: Message, kind: type[M], *, to: int | None = None, wait_ms: int = 0
    ) -> M:
        """The answer of `to`, by default of this node; requests for the controller find it themselves. `wait_ms` is how
        long the request itself may wait for something. NoAnswer and KafkaError say why there is none."""
        api = find_api(key)
        assert api is not None
        version = VERSIONS[key]
        if api.controller and not self.node.is_alone and not self.node.metadata.is_controller:
            frame = _request_frame(key, version, request)
            check_size(self.node, len(frame), "a request")
            answer = _decoded(key, version, await self._ask_controller(frame))
        elif api.controller or to is None or to == self.node.node_id:
            answer = await answer_here(self.node, key, version, request)
        else:
            frame = _request_frame(key, version, request)
            answer = _decoded(key, version, await self._ask_node(to, frame, ANSWER_MS + wait_ms))
        assert isinstance(answer, kind)
        return answer

    async def ask_home(
        self,
        find: Callable[[], int],
        key: ApiKey,
        request: Message,
        kind: type[M],
        code: Callable[[M], int],
        *,
        wait_ms: int = 0,
    ) -> M:
        """Asks the node that `find` names, and again when it turns out to be another one by now, or nobody yet. `code`
        finds the error in an answer. Only for what may be asked twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            late = loop.time() > deadline
            try:
                answer = await self.ask(key, request, kind, to=find(), wait_ms=wait_ms)
                if late or not is_passing(code(answer)):
                    return answer
            except KafkaError as refused:
                if late or refused.code not in LOOK_AGAIN:
                    raise
            except NoAnswer:
                if late:
                    raise
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    # --- who is who

    def topic_of(self, topic: str, partition: int) -> Topic:
        """The topic, if it has such a partition."""
        known = self.node.metadata.state.topics.get(topic)
        if known is None or not 0 <= partition < known.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}"
            )
        return known

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition, as far as this one has heard."""
        known = self.topic_of(topic, partition)
        leader = self.node.view.partition(known, partition).leader
        if leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads {topic}-{partition} now")
        return leader

    def coordinator_of(self, group_id: str) -> int:
        return self.node.view.coordinator(group_id).node_id

    # --- other nodes

    async def _ask_controller(self, frame: memoryview) -> memoryview:
        try:
            return await self.node.controller.forward(frame, caller=BROKER)
        except KafkaError:
            raise
        except PenstockError as failed:
            raise NoAnswer(f"the controller did not answer: {failed}", sent=True) from failed

    async def _ask_node(self, to: int, frame: memoryview, timeout_ms: int) -> memoryview:
        from penstock.node.peers import CallFailed, CallProblem

        links = self.node.links
        assert links is not None
        check_size(self.node, len(frame), "a request")
        waiting = self._waiting.get(to, 0)
        if waiting >= self._most:
            raise NoAnswer(f"{waiting} questions already wait for node {to}", sent=False)
        self._waiting[to] = waiting + 1
        try:
            return await links.rpc.call(NodeId(to), ASK, frame, timeout_ms)
        except CallFailed as failed:
            maybe = failed.problem in (
                CallProblem.PEER_LOST,
                CallProblem.TIMED_OUT,
                CallProblem.HANDLER_FAILED,
            )
            raise NoAnswer(str(failed), sent=maybe) from failed
        finally:
            self._waiting[to] -= 1


def is_passing(code: int) -> bool:
    """Whether asking again a moment later may help. An unknown topic is one that this node knows and another does not
    yet: whoever is asked was found by it."""
    return code in LOOK_AGAIN or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def check_size(node: Node, size: int, what: str) -> None:
    most = node.config.limits.max_peer_frame_bytes - FRAME_OVERHEAD
    if size > most:
        message = (
            f"{what} of {size} bytes does not fit between nodes: limits.max_peer_frame_bytes allows {most}"
        )
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)


async def answer_here(
    node: Node, key: int, version: int, request: Message, caller: Caller = INNER_CALLER
) -> Message:
    """What this node's handler says."""
    api = find_api(key)
    if api is None or not api.min_version <= version <= api.max_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"API {key} v{version}")
    connection = Inside()
    context = RequestContext(node=node, connection=connection, caller=caller, api=api, api_version=version)
    try:
        response = api.handler(context, request)
        return cast(Message, await response if inspect.isawaitable(response) else response)
    finally:
        connection.close()


def serve_others(node: Node) -> None:
    """From now on this node answers what the others ask."""
    if node.links is None:
        return

    async def answer(sender: NodeId, frame: memoryview) -> bytes:
        if not node.ready:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node.node_id} is starting or stopping")
        return await answer_frame(node, frame, BROKER)

    node.links.rpc.handle(ASK, answer)


async def answer_frame(node: Node, frame: memoryview, caller: Caller) -> bytes:
    """A request that another node sends, its own or a client's; the answer as a frame with its length."""
    header = decode_request_header(frame)
    if find_api(header.api_key) is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"API {header.api_key} is not offered")
    request = decode_request(header, frame)
    answer = await answer_here(node, header.api_key, header.api_version, request, caller)
    encoded = join(encode_response(header.api_key, header.api_version, header.correlation_id, answer))
    check_size(node, len(encoded), "an answer")
    return encoded


def _request_frame(key: ApiKey, version: int, request: Message) -> memoryview:
    return memoryview(join(encode_request(key, version, 0, CLIENT_ID, request)))[LENGTH_SIZE:]


def _decoded(key: ApiKey, version: int, answer: memoryview) -> Message:
    return decode_response(key, version, answer[LENGTH_SIZE:])[1]
