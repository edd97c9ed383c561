"""Share groups on this node: their members' heartbeats, and who they are.

Coordinators (`penstock.groups`) decide, and the group manager knows where each one is; here they are given the
cluster's metadata, and spoken to.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from penstock.cluster import ClusterState
from penstock.config import GroupConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import (
    DeleteGroupsResult,
    SharedTopic,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from penstock.node.coordinating import CoordinatorDriver

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


class Homes(Protocol):
    """Who knows where each group is coordinated: the group manager."""

    async def home(self, group_id: str) -> CoordinatorDriver: ...

    def known_home(self, group_id: str) -> CoordinatorDriver | None: ...


class ShareGroups:
    """Finds a share group's coordinator and speaks with it. Every method is called on the event loop."""

    def __init__(self, groups: Homes, *, erase: Erase) -> None:
        self._groups = groups
        self._erase = erase

    async def heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        try:
            driver = await self._groups.home(request.group_id)
            return await driver.ask(
                ShareHeartbeatResult, lambda now, token: driver.core.share_heartbeat(now, token, request)
            )
        except KafkaError as refusal:
            return ShareHeartbeatResult(error=refusal.code, message=refusal.message)

    def describe(self, group_id: str) -> ShareGroupDescription | None:
        """None: there is no such group. KafkaError if that cannot be known."""
        driver = self._groups.known_home(group_id)
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
            driver = await self._groups.home(group_id)
            if driver.core.share_group_deletable(group_id) is ErrorCode.NONE:
                await self._erase(group_id)
            result = await driver.ask(
                DeleteGroupsResult, lambda now, token: driver.core.delete_share_group(now, token, group_id)
            )
        except KafkaError as refusal:
            return refusal.code
        return result.errors[group_id]
