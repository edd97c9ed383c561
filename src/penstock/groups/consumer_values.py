"""Requests and results of the coordinator of consumer groups (KIP-848), in its own types."""

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Protocol
from uuid import UUID

import msgspec

from penstock.config import ShareGroupConfig
from penstock.errors import ErrorCode
from penstock.groups.share_values import SharedTopic
from penstock.groups.states import GroupState
from penstock.types import ANONYMOUS, Caller

JOINING = 0
LEAVING = -1
PAUSING = -2
"""Member epochs with a meaning; all others are above 0. A static member that pauses comes back soon, under another id:
its partitions wait for it until its session ends."""

TopicIdPartition = tuple[UUID, int]
Assignment = frozenset[TopicIdPartition]
NOTHING: Assignment = frozenset()


class MemberState(IntEnum):
    """How far a member is with its target assignment; the numbers are those of Kafka's records."""

    STABLE = 0
    """It has its target."""
    UNREVOKED_PARTITIONS = 1
    """It must give partitions up first, and has not confirmed that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not given up."""


class ConsumerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A member joins, reports, or leaves: by its epoch. None and -1 stand for: as before."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    """A regular expression for names of topics, beside those in `topics`. Empty: it has none any more."""
    assignor: str | None = None
    owned: Assignment | None = None
    """The partitions that it reads, or is about to."""
    caller: Caller = ANONYMOUS

    @property
    def is_complete(self) -> bool:
        """Whether it says everything. Clients send such a request when they may have missed an answer."""
        subscribes = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


class ConsumerHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """A member's state. With an error only `message` is set."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """All partitions that it may read; None: as in the answer before."""


class ConsumerMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member as ConsumerGroupDescribe shows it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    assignment: Assignment
    target: Assignment
    is_classic: bool


class ConsumerGroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group as ConsumerGroupDescribe shows it."""

    group_id: str
    state: GroupState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]


class MemberSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A member as an assignor sees it."""

    instance_id: str | None
    topics: frozenset[UUID]
    current: Assignment
    """Its target so far: an assignor changes as little as it can."""


class AssignmentJob(msgspec.Struct, frozen=True, kw_only=True):
    """A computation of a target assignment that is too large for the event loop. The host runs `compute` in a thread
    and tells the coordinator the outcome (`Coordinator.assignment_computed`)."""

    group_id: str
    epoch: int
    assignor: str
    members: Mapping[str, MemberSubscription]
    topics: Mapping[UUID, int]
    """The number of partitions of each topic."""

    @property
    def size(self) -> int:
        return len(self.members) + sum(self.topics.values())


class ConsumerCluster(Protocol):
    """The cluster's metadata. After a topic has changed, the caller calls `topics_changed`."""

    def topic(self, name: str) -> SharedTopic | None:
        """None: there is no such topic."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None: ...

    def config(self, group_id: str) -> ShareGroupConfig: ...

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """The configs that were set for a group."""
        ...

    def matching(self, pattern: str, caller: Caller, names: Collection[str] | None = None) -> frozenset[str]:
        """The topics, of these or of all, whose names match the pattern, as far as the caller may know of them.
        KafkaError(INVALID_REGULAR_EXPRESSION) if it is none."""
        ...

    def cost(self, pattern: str) -> int:
        """How many instructions the compiled pattern has. KafkaError(INVALID_REGULAR_EXPRESSION) if it is none."""
        ...


class _EmptyCluster:
    def topic(self, name: str) -> SharedTopic | None:
        return None

    def topic_name(self, topic_id: UUID) -> str | None:
        return None

    def config(self, group_id: str) -> ShareGroupConfig:
        return ShareGroupConfig()

    def overrides(self, group_id: str) -> Mapping[str, str]:
        return {}

    def matching(self, pattern: str, caller: Caller, names: Collection[str] | None = None) -> frozenset[str]:
        return frozenset()

    def cost(self, pattern: str) -> int:
        return 0


EMPTY_CLUSTER: ConsumerCluster = _EmptyCluster()
"""A cluster without topics, for coordinators that only keep offsets."""
