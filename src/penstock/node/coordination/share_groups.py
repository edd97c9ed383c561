"""Share groups on this node: their members' heartbeats, and who they are.

Coordinators (`penstock.groups`) decide, and the group manager knows where each one is; here they are given the
cluster's metadata, and spoken to.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.cluster import ClusterState
from penstock.config import GroupConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import (
    Coordinator,
    DeleteGroupsResult,
    SharedTopic,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from penstock.node.coordination.durable_cores import DurableCores
from penstock.node.metadata.cluster_view import ClusterView
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

BEGIN = 26
"""Method of the inter-node port. The question is the group's name in UTF-8, the answer empty."""
ANSWER_MS = 5_000

Erase = Callable[[str], Awaitable[object]]
"""Deletes all that is stored of a group's progress on its partitions; KafkaError if that did not work."""


class AppliedMetadata:
    """Topics and group configs, as far as this node has applied the metadata."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def topic(self, name: str) -> SharedTopic | None:
        topic = self._state.topics.get(name)
        if topic is None:
            return None
        return SharedTopic(name=name, topic_id=topic.topic_id, partitions=topic.partitions)

    def config(self, group_id: str) -> GroupConfig:
        return self._state.group_config(group_id)


class ShareGroups:
    """Finds a share group's coordinator and speaks with it. Every method is called on the event loop."""

    def __init__(
        self,
        cores: DurableCores[Coordinator],
        *,
        node_id: NodeId,
        view: ClusterView,
        erase: Erase,
        rpc: "Rpc | None",
    ) -> None:
        self._cores = cores
        self._node_id = node_id
        self._view = view
        self._erase = erase
        self._rpc = rpc
        if rpc is not None:
            rpc.handle(BEGIN, self._serve_begin)

    async def heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        try:
            driver = await self._cores.home(request.group_id)
            return await driver.ask(
                ShareHeartbeatResult, lambda now, token: driver.core.share_heartbeat(now, token, request)
            )
        except KafkaError as refusal:
            return ShareHeartbeatResult(error=refusal.code, message=refusal.message)

    # --- groups whose consumers do not report

    async def begin(self, group_id: str) -> None:
        """The share group is there when this returns, with or without members, whichever node coordinates it.
        POLICY_VIOLATION: it cannot be, by its name or the number of groups. Other errors: nobody can be asked now."""
        await self._cores.ensure_topic()
        home = self._view.coordinator(group_id).node_id
        if home == self._node_id or self._rpc is None:
            await self._begin_here(group_id)
            return
        from penstock.node.peers import CallFailed

        try:
            await self._rpc.call(NodeId(home), BEGIN, group_id.encode(), ANSWER_MS)
        except CallFailed as failed:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failed)) from failed

    async def _begin_here(self, group_id: str) -> None:
        driver = await self._cores.home(group_id)
        result = await driver.ask(
            ShareHeartbeatResult, lambda now, token: driver.core.begin_share_group(now, token, group_id)
        )
        if result.error == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            raise KafkaError(result.error, result.message or "")
        if result.error == ErrorCode.GROUP_ID_NOT_FOUND:
            raise name_taken(group_id)
        if result.error != ErrorCode.NONE:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"queue {group_id!r}: {result.message}")

    async def _serve_begin(self, sender: NodeId, question: memoryview) -> bytes:
        await self._begin_here(bytes(question).decode())
        return b""

    # --- administration

    def describe(self, group_id: str) -> ShareGroupDescription | None:
        """None: there is no such group. KafkaError if that cannot be known."""
        driver = self._cores.find(group_id)
        return driver.core.describe_share_group(group_id) if driver is not None else None

    def is_known(self, group_id: str) -> bool:
        """Whether this node coordinates it, as a share group."""
        try:
            return self.describe(group_id) is not None
        except KafkaError:
            return False

    async def delete(self, group_id: str) -> ErrorCode:
        """First its progress, then the group: a later one of the same name must not go on where this one was."""
        try:
            driver = await self._cores.home(group_id)
            if driver.core.share_group_deletable(group_id) is ErrorCode.NONE:
                await self._erase(group_id)
            result = await driver.ask(
                DeleteGroupsResult, lambda now, token: driver.core.delete_share_group(now, token, group_id)
            )
        except KafkaError as refusal:
            return refusal.code
        return result.errors[group_id]


def name_taken(group_id: str) -> KafkaError:
    message = (
        f"{group_id!r} is a consumer group or a subscription, and a queue cannot have the same name: choose another, "
        "or delete that one first"
    )
    return KafkaError(ErrorCode.POLICY_VIOLATION, message)
