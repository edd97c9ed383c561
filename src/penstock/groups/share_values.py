"""Requests and results of the coordinator of share groups, and the metadata that it uses."""

from typing import Protocol
from uuid import UUID

import msgspec

from penstock.config import ShareGroupConfig
from penstock.errors import ErrorCode
from penstock.groups.states import GroupState

JOINING = 0
LEAVING = -1
"""Member epochs with a meaning; all others are above 0."""


class SharedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as members read it: all its partitions, from 0 on."""

    name: str
    topic_id: UUID
    partitions: int


Assignment = tuple[SharedTopic, ...]
"""Topics in the order of their names."""


class ClusterFacts(Protocol):
    """Topics and configs, from the cluster's metadata. After a topic has changed, the caller calls `topics_changed`."""

    def topic(self, name: str) -> SharedTopic | None:
        """None: there is no such topic."""
        ...

    def config(self, group_id: str) -> ShareGroupConfig: ...


class ShareHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A member joins, reports, or leaves: by its epoch."""

    group_id: str
    member_id: str
    """Chosen by the client before it joins for the first time."""
    member_epoch: int
    topics: tuple[str, ...] | None = None
    """The topics that it subscribes to; None: as before."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""


class ShareHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """A member's state. With an error only `message` is set."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """All topics that it reads; None: as in the answer before."""


class ShareMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member as ShareGroupDescribe shows it."""

    member_id: str
    member_epoch: int
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: Assignment


class ShareGroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group as ShareGroupDescribe shows it."""

    group_id: str
    state: GroupState
    epoch: int
    members: tuple[ShareMemberDescription, ...]
