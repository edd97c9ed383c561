"""Share groups: heartbeats of their members, and their administration.

Coordinators (`penstock.groups`) decide. `DurableCores` has those of this node; this module gives them the cluster's
metadata and passes requests to them.
"""

from typing import Protocol

from penstock.errors import ErrorCode, KafkaError
from penstock.groups import (
    Coordinator,
    DeleteGroupsResult,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from penstock.node.calls import Calls, CoordinatorOf, methods
from penstock.node.calls.messages.groups import BeginShareGroup
from penstock.node.coordination.durable_cores import DurableCores
from penstock.types import Caller


class Erase(Protocol):
    """Deletes a group's stored progress on all its partitions; KafkaError if that failed."""

    async def __call__(self, group_id: str, *, caller: Caller) -> object: ...


class ShareGroups:
    """Finds a share group's coordinator and asks it. Every method is called on the event loop."""

    def __init__(self, cores: DurableCores[Coordinator], *, erase: Erase, calls: Calls) -> None:
        self._cores = cores
        self._erase = erase
        self._calls = calls
        calls.serve(methods.BEGIN_SHARE_GROUP, self._begin)

    async def heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        try:
            driver = await self._cores.host_of(request.group_id)
            return await driver.ask(
                ShareHeartbeatResult, lambda now, token: driver.core.share_heartbeat(now, token, request)
            )
        except KafkaError as refusal:
            return ShareHeartbeatResult(error=refusal.code, message=refusal.message)

    # --- groups whose consumers send no heartbeats

    async def begin(self, group_id: str, *, caller: Caller) -> None:
        """The share group exists when this returns, with or without members, whichever node coordinates it.
        POLICY_VIOLATION: it cannot be created, because of its name or the number of groups."""
        await self._cores.ensure_topic()
        request = BeginShareGroup(group_id)
        await self._calls.ask(CoordinatorOf(group_id), methods.BEGIN_SHARE_GROUP, request, caller=caller)

    async def create(self, group_id: str) -> None:
        """As `begin`, at the group's coordinator, with Kafka's errors: GROUP_ID_NOT_FOUND if the name belongs to
        another kind of group."""
        result = await self._create(group_id)
        if result.error != ErrorCode.NONE:
            raise KafkaError(result.error, result.message or "")

    async def _create(self, group_id: str) -> ShareHeartbeatResult:
        driver = await self._cores.host_of(group_id)
        return await driver.ask(
            ShareHeartbeatResult, lambda now, token: driver.core.begin_share_group(now, token, group_id)
        )

    async def _begin(self, caller: Caller, request: BeginShareGroup) -> None:
        group_id = request.group_id
        result = await self._create(group_id)
        if result.error == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            raise KafkaError(result.error, result.message or "")
        if result.error == ErrorCode.GROUP_ID_NOT_FOUND:
            raise name_taken(group_id)
        if result.error != ErrorCode.NONE:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"queue {group_id!r}: {result.message}")

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

    async def delete(self, group_id: str, *, caller: Caller) -> ErrorCode:
        """Deletes the group's progress first, then the group: a later group of the same name must not begin with this
        progress."""
        try:
            driver = await self._cores.host_of(group_id)
            if driver.core.share_group_deletable(group_id) is ErrorCode.NONE:
                await self._erase(group_id, caller=caller)
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
