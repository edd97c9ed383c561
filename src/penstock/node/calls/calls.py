"""Sends requests to the node that has a role, and serves requests of other nodes.

    response = await calls.ask(CONTROLLER, CREATE_TOPIC, CreateTopic(name), caller=caller)
    calls.serve(CREATE_TOPIC, self._create_topic)       # _create_topic(caller, request) -> response, or a coroutine

`methods` lists all methods, `targets` the roles, `retry` the policy. A request to this node itself calls its handler
with the same request object, without any encoding. A node without a network has every role itself and needs no more;
in a cluster, `remote` sends requests to other nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import CorruptLog, ErrorCode, KafkaError, NotExecuted, StorageError, Unanswered
from penstock.node.calls.each_node import ask_each
from penstock.node.calls.methods import Method, Needs
from penstock.node.calls.retry import RETRY_SECONDS, CallRetry, ClusterChanges, is_retryable, may_repeat
from penstock.node.calls.targets import CONTROLLER, AtNode, Directory, Target, absent_code
from penstock.node.parts import Part, TopicChanges
from penstock.types import BROKER_PRINCIPAL, Caller, NodeId

if TYPE_CHECKING:
    from penstock.node.calls.remote import RemoteCalls

K = TypeVar("K")
Q = TypeVar("Q")
R = TypeVar("R")

Handler = Callable[[Caller, Q], R | Awaitable[R]]

NO_NODE = NodeId(-1)

BROKER = Caller(BROKER_PRINCIPAL, client_id="penstock-inner")
"""The caller of requests that a node makes for itself and not for a client."""


def allow(caller: Caller, needs: Needs, request: Any) -> None:
    """Every caller may do everything."""


def _have_all() -> None:
    """For nodes that make all their parts at the start."""


class Calls(Part):
    """Both sides of requests between nodes. One per node, on its event loop."""

    def __init__(
        self,
        node_id: NodeId,
        directory: Directory,
        changed: ClusterChanges,
        check: Callable[[Caller, Needs, Any], None] = allow,
        make_parts: Callable[[], None] = _have_all,
    ) -> None:
        """`check` raises KafkaError unless the caller has the permission that a method needs for this request.
        `make_parts` makes the parts of the node that were not needed before: each serves its methods then."""
        self._node_id = node_id
        self._check = check
        self._make_parts = make_parts
        self._directory = directory
        self._changed = changed
        self._handlers: dict[int, Handler[Any, Any]] = {}
        self._remote: RemoteCalls | None = None

    def metadata_changed(self, topics: TopicChanges) -> None:
        self._changed.fire()

    def connect(self, remote: "RemoteCalls") -> None:
        """Lets this node ask other nodes and answer them from now on."""
        self._remote = remote
        remote.answer_with(self.handle)

    def serve(self, method: Method[Q, R], handler: Handler[Q, R]) -> None:
        assert method.number not in self._handlers, f"{method.name} has a handler already"
        self._handlers[method.number] = handler

    async def ask(
        self,
        target: Target,
        method: Method[Q, R],
        request: Q,
        *,
        caller: Caller,
        allowed_ms: int = 0,
        unwanted: asyncio.Event | None = None,
        code_of: Callable[[R], int] | None = None,
    ) -> R:
        """The response of the node that has this role. A long poll (`Method.poll`) says in the request how long it
        waits. `allowed_ms` is how much longer than its method says another request may take. `unwanted` is set when a
        long poll is cancelled at its node: if it is not there, but is repeated without a wait (`remote`), that ends.
        `code_of` finds the error code in a response that carries one: a retryable one counts like an error that was
        raised.

        KafkaError: the handler refused; after 10 s of attempts its message says so. Unanswered: no response came."""
        if isinstance(target, AtNode):  # another node could not serve it
            return await self._ask_node(target.node, target, method, request, caller, allowed_ms, unwanted)
        retry = self.retry()
        while True:
            node = NO_NODE
            try:
                node = self._directory.find(target)
                response = await self._ask_node(node, target, method, request, caller, allowed_ms, unwanted)
                if code_of is None or not method.repeatable or retry.is_over:
                    return response
                if not is_retryable(code_of(response), knows_topics=target == CONTROLLER):
                    return response
            except KafkaError as problem:
                # The controller decides which topics exist, and the directory knows which were deleted.
                knows_topics = target == CONTROLLER or node == NO_NODE
                may = may_repeat(problem, repeatable=method.repeatable, knows_topics=knows_topics)
                if not may:
                    raise
                if retry.is_over:
                    raise self._given_up(target, problem) from problem
            await retry.pause(lambda asked=node: self._is_moved(target, asked))  # type: ignore[misc]

    async def ask_known(
        self,
        target: Target,
        method: Method[Q, R],
        request: Q,
        *,
        caller: Caller,
        silent: set[NodeId],
        is_refusal: Callable[[R], bool],
    ) -> R | None:
        """For a display, which shows what is known now and does not wait for an election: the response of the node
        that is known to have this role; None if there is none, or if it refuses. Another node is asked only if the role
        has moved meanwhile. A node that leaves the request unanswered becomes `silent`, and such nodes are not
        asked."""
        retry = self.retry()
        while (node := self._known(target)) != NO_NODE and node not in silent:
            try:
                response = await self.ask(AtNode(node), method, request, caller=caller)
                if not is_refusal(response):
                    return response
            except Unanswered:
                silent.add(node)
            except KafkaError:
                pass
            is_moved = partial(self._is_moved, target, node)
            await retry.pause(is_moved)
            if retry.is_over or not is_moved():
                break
        return None

    def find(self, target: Target) -> NodeId:
        """The node that has this role, as far as this node knows; KafkaError while it does not."""
        return self._directory.find(target)

    def by_node(
        self, keys: Iterable[K], target_of: Callable[[K], Target]
    ) -> tuple[dict[NodeId, list[K]], dict[K, KafkaError]]:
        """For a request to many targets: which keys to ask which node for; and the errors of keys whose node is not
        known, or whose target `target_of` refuses to tell."""
        nodes: dict[NodeId, list[K]] = {}
        unknown: dict[K, KafkaError] = {}
        for key in keys:
            try:
                nodes.setdefault(self._directory.find(target_of(key)), []).append(key)
            except KafkaError as problem:
                unknown[key] = problem
        return nodes, unknown

    async def ask_nodes(
        self, nodes: Iterable[int], method: Method[Q, R], request: Q, *, caller: Caller
    ) -> dict[int, R | KafkaError]:
        """Asks these nodes at the same time, each once."""
        return await ask_each(
            nodes, lambda node: self.ask(AtNode(NodeId(node)), method, request, caller=caller)
        )

    async def next_change(self) -> None:
        """Returns when this node has learned of a leader, or has applied metadata."""
        await self._changed.wait()

    def retry(self) -> CallRetry:
        """The policy for a request to many targets, whose parts are repeated one by one."""
        return CallRetry(self._changed)

    def handle(self, method: Method[Q, R], caller: Caller, request: Q) -> R | Awaitable[R]:
        """Has this node's own handler answer."""
        if method.number not in self._handlers:
            self._make_parts()
        handler = self._handlers.get(method.number)
        if handler is None:
            raise NotExecuted(
                ErrorCode.BROKER_NOT_AVAILABLE, f"node {self._node_id} does not serve {method.name} yet"
            )
        self._check(caller, method.needs, request)
        return handler(caller, request)

    async def _ask_node(
        self,
        node: NodeId,
        target: Target,
        method: Method[Q, R],
        request: Q,
        caller: Caller,
        allowed_ms: int,
        unwanted: asyncio.Event | None,
    ) -> R:
        if node == self._node_id:
            try:
                response = self.handle(method, caller, request)
                return await response if isinstance(response, Awaitable) else response
            except (StorageError, CorruptLog) as problem:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem)) from problem
        if self._remote is None:
            raise Unanswered(
                absent_code(target), f"this node has no connection with node {node}", may_be_done=False
            )
        code = absent_code(target)
        return await self._remote.call(node, code, method, request, caller, allowed_ms, unwanted)

    def _known(self, target: Target) -> NodeId:
        try:
            return self._directory.find(target)
        except KafkaError:
            return NO_NODE

    def _is_moved(self, target: Target, asked: NodeId) -> bool:
        try:
            return self._directory.find(target) != asked
        except NotExecuted:
            return False
        except KafkaError:
            return True

    def _given_up(self, target: Target, problem: KafkaError) -> KafkaError:
        described = self._directory.describe(target)
        waited_for = "" if described in problem.message else f" for {described}"
        message = f"{problem.message} (waited {RETRY_SECONDS:.0f} s{waited_for})"
        if isinstance(problem, Unanswered):
            return Unanswered(problem.code, message, may_be_done=problem.may_be_done)
        return type(problem)(problem.code, message)
