"""The broker as a client of its own cluster: it asks the Kafka handlers, here or on another node, without a socket.

The web API is made of the same requests that Kafka's clients send. So there is one implementation of each request, and
a node that leads nothing can serve as well as one that leads everything. `node.calls` finds the node to ask: on this
node the handler is called with the message; another node gets the message as a Kafka frame over the inter-node port,
with the caller on whose behalf it is sent.

Each API is asked in one version, so that the nodes of a cluster understand each other while it is being updated.
"""

import inspect
from collections.abc import Callable
from typing import TypeVar, cast

from penstock.config import DEFAULT_LISTENER
from penstock.errors import ErrorCode, NotExecuted
from penstock.kafka.handlers.context import Api, RequestContext
from penstock.kafka.handlers.login import Login
from penstock.kafka.handlers.registry import find_api
from penstock.kafka.handlers.rows import decode_off_loop, encode_off_loop
from penstock.kafka.wire import ApiKey, Message, decode_request_header, join
from penstock.node import Node
from penstock.node.calls import CONTROLLER, AtNode, CoordinatorOf, LeaderOf, Target, methods
from penstock.node.calls.messages.kafka import KafkaRequest, KafkaResponse
from penstock.node.limits.memory import UNLIMITED_BYTES, MemoryBudget, Reservation
from penstock.types import Caller, GroupId, NodeId, Operation

M = TypeVar("M", bound=Message)

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
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 2,
    ApiKey.DESCRIBE_ACLS: 3,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
}
"""Topics go by name in all of them: the newest versions that do so."""


def _row(key: ApiKey) -> Api:
    api = find_api(key)
    assert api is not None
    return api


class Inside:
    """The connection of a request that did not come over a client's connection."""

    peer = "another node"
    client_software = ""
    login: Login | None = None
    listener_name = DEFAULT_LISTENER
    is_inner = True

    def __init__(self, *, is_audited: bool = False) -> None:
        self.is_audited = is_audited
        self._when_closed: list[Callable[[], None]] = []

    def send_away(self) -> None:
        """The caller is not connected here."""

    def when_closed(self, callback: Callable[[], None]) -> None:
        self._when_closed.append(callback)

    def hold(self) -> Callable[[], None]:
        """Requests that come this way are answered in any order."""
        return lambda: None

    def close(self) -> None:
        """The only request has been answered."""
        for callback in self._when_closed:
            callback()
        self._when_closed.clear()


class InnerClient:
    """Asks on behalf of one caller. Lives on the node's event loop."""

    def __init__(self, node: Node, caller: Caller, memory: Reservation | None = None) -> None:
        """`memory` is where records are reserved that this node reads for a response."""
        self.node = node
        self.caller = caller
        self._memory = memory

    async def ask(
        self,
        key: ApiKey,
        request: Message,
        kind: type[M],
        *,
        to: int | None = None,
        allowed_ms: int = 0,
    ) -> M:
        """The response of node `to`, by default of this node; the controller's APIs are asked of the controller.
        `allowed_ms` is how much longer than other requests it may take. KafkaError says why there is no response."""
        node = self.node.node_id if to is None else NodeId(to)
        target = CONTROLLER if _row(key).controller else AtNode(node)
        return await self._ask(target, key, request, kind, None, allowed_ms)

    async def ask_role(
        self,
        target: Target,
        key: ApiKey,
        request: Message,
        kind: type[M],
        code_of: Callable[[M], int],
    ) -> M:
        """The response of the node that has this role. `code_of` finds the error in a response: a retryable one leads
        to another attempt if the API may be repeated."""
        return await self._ask(target, key, request, kind, code_of)

    async def _ask(
        self,
        target: Target,
        key: ApiKey,
        request: Message,
        kind: type[M],
        code_of: Callable[[M], int] | None,
        allowed_ms: int = 0,
    ) -> M:
        response = await self.node.calls.ask(
            target,
            methods.KAFKA_QUERY if _row(key).repeatable else methods.KAFKA_REQUEST,
            KafkaRequest(key, VERSIONS[key], request, self._memory if key == ApiKey.FETCH else None),
            caller=self.caller,
            allowed_ms=allowed_ms,
            code_of=None if code_of is None else lambda response: code_of(cast(M, response.body)),
        )
        assert isinstance(response.body, kind)
        return response.body

    # --- roles

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition, as far as this one knows."""
        return self.node.calls.find(self.leader_role(topic, partition))

    def leader_role(self, topic: str, partition: int) -> LeaderOf:
        known = self.node.resources.topic_of(self.caller, topic, partition, Operation.DESCRIBE)
        return LeaderOf(GroupId(known.topic_id, partition))

    def coordinator_of(self, group_id: str) -> int:
        return self.node.calls.find(CoordinatorOf(group_id))


class KafkaCalls:
    """Answers Kafka requests that this and other nodes send."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._unlimited = MemoryBudget("", UNLIMITED_BYTES)
        """For requests whose memory is bounded in another way: by the limits of the port on which they came."""
        node.calls.serve(methods.FORWARD, self._forwarded)
        node.calls.serve(methods.KAFKA_REQUEST, self._answer)
        node.calls.serve(methods.KAFKA_QUERY, self._answer)

    async def _forwarded(self, caller: Caller, frame: memoryview) -> memoryview:
        """A client's request for the controller, as it came to another node; the response is a frame for the client."""
        header = decode_request_header(frame)
        api = self._api(header.api_key, header.api_version)
        if not api.controller:
            message = f"API {header.api_key} is forwarded, but is not one that only the controller serves"
            raise NotExecuted(ErrorCode.UNSUPPORTED_VERSION, message)
        request = await decode_off_loop(header, frame, api.names)
        response = await self._run(api, header.api_version, request, caller, is_audited=True)
        return memoryview(join(await encode_off_loop(header, response)))

    async def _answer(self, caller: Caller, request: KafkaRequest) -> KafkaResponse:
        api = self._api(request.api_key, request.version)
        response = await self._run(api, request.version, request.body, caller, request.memory)
        return KafkaResponse(request.api_key, request.version, response)

    def _api(self, key: int, version: int) -> Api:
        api = find_api(key)
        if api is None or not api.min_version <= version <= api.max_version:
            raise NotExecuted(ErrorCode.UNSUPPORTED_VERSION, f"API {key} version {version} is not offered")
        return api

    async def _run(
        self,
        api: Api,
        version: int,
        request: Message,
        caller: Caller,
        memory: Reservation | None = None,
        *,
        is_audited: bool = False,
    ) -> Message:
        node = self._node
        if not node.ready:
            message = f"node {node.node_id} is starting or stopping"
            raise NotExecuted(ErrorCode.BROKER_NOT_AVAILABLE, message)
        if api.controller:
            node.metadata.check_controller()
        connection = Inside(is_audited=is_audited)
        context = RequestContext(
            node=node,
            connection=connection,
            caller=caller,
            api=api,
            api_version=version,
            is_checked=False,
            memory=memory if memory is not None else self._unlimited.reserve(),
        )
        try:
            response = api.handler(context, request)
            return cast(Message, await response if inspect.isawaitable(response) else response)
        finally:
            connection.close()
