"""What goes into the coordinator of share groups and what comes out, and what it knows of its cluster."""

from typing import Protocol
from uuid import UUID

import msgspec

from penstock.config import ShareGroupConfig
from penstock.errors import ErrorCode
from penstock.groups.states import GroupState

JOINING = 0
LEAVING = -1
"""Member epochs that are wishes; all others are above 0."""


class SharedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as members read it: all its partitions, from 0 on."""

    name: str
    topic_id: UUID
    partitions: int


Assignment = tuple[SharedTopic, ...]
"""In the order of the names."""


class ClusterFacts(Protocol):
    """What the cluster's metadata says. Whoever changes a topic's answer calls `topics_changed` afterwards."""

    def topic(self, name: str) -> SharedTopic | None:
        """None: there is no such topic."""
        ...

    def config(self, group_id: str) -> ShareGroupConfig: ...


class _EmptyCluster:
    def topic(self, name: str) -> SharedTopic | None:
        return None

    def config(self, group_id: str) -> ShareGroupConfig:
        return ShareGroupConfig()


EMPTY_CLUSTER: ClusterFacts = _EmptyCluster()
"""A cluster without topics, for who has nothing to do with share groups."""


class ShareHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A member joins, says that it is still there, or leaves: by its epoch."""

    group_id: str
    member_id: str
    """Made by the client, before it joins for the first time."""
    member_epoch: int
    topics: tuple[str, ...] | None = None
    """What it subscribes to; None: as before."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""


class ShareHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a member stands. With an error nothing but `message` is told."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """All that it reads; None: as it was told before."""


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
