"""Requests and results of the coordinator, in its own types: it sees no wire message."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from penstock.errors import ErrorCode
from penstock.groups.consumer_values import ConsumerHeartbeatResult
from penstock.groups.share_values import ShareHeartbeatResult
from penstock.groups.states import GroupState
from penstock.types import Producer, TopicPartition

NO_GENERATION = -1
NO_VERSION = -1
NO_MEMBER = ""
"""The member id of a client that has none yet, or that commits without being a member."""


class Protocol(msgspec.Struct, frozen=True):
    """An assignment protocol that a member offers, and the member's metadata for it."""

    name: str
    metadata: bytes


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A member asks to be part of the next generation."""

    group_id: str
    member_id: str
    new_member_id: str
    """The id that a new member gets. Chosen by the caller, because a core has no randomness."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    """-1, from clients that do not send it: the session timeout."""
    requires_known_member_id: bool = False
    """JoinGroup v4 and later: a new member first receives its id and joins with it, so that a retry whose answer was
    lost does not leave a second member behind."""
    supports_skip_assignment: bool = False
    """JoinGroup v9 and later: the leader can be told that there is nothing to assign."""


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True, kw_only=True):
    """The generation that a member is part of. Only the leader learns of the other members."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A member asks for its assignment; the leader brings everybody's."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = {}


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """A member's assignment."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member that leaves, or is removed: by member id, or by instance id alone."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None


class LeftMember(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one leaving member."""

    member_id: str
    instance_id: str | None
    error: ErrorCode


class LeaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is about the group; with NONE there is one entry per member, in the order asked."""

    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group continues reading one partition. The metadata is stored as the client sent it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """When it expires, if the client said so (OffsetCommit v2 to v4 can); -1: the retention of the group decides."""
    topic_id: UUID | None = None
    """The topic that it was committed for. None: stored by a version that did not keep the id."""
    topics_version: int = NO_VERSION
    """The version of the metadata by which it was accepted; see `topics.py`."""


class OffsetToCommit(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's offset, as a client commits it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: UUID | None = None
    """The topic that it was read from, if the committing client knows that, else the topic that had the name when the
    request came. None: the topic that has the name when the commit is decided."""


class CommitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets to commit: by a member in its generation, or (generation -1, no member) while there are no members."""

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1
    producer: Producer | None = None
    """The offsets are part of this producer's open transaction, and count when it is committed."""


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """One error code per partition that was sent."""

    errors: Mapping[TopicPartition, ErrorCode]


class DeleteOffsetsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is about the group; with NONE there is one code per partition."""

    error: ErrorCode = ErrorCode.NONE
    errors: Mapping[TopicPartition, ErrorCode] = {}


class DeleteGroupsResult(msgspec.Struct, frozen=True, kw_only=True):
    """One error code per group."""

    errors: Mapping[str, ErrorCode]


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member as DescribeGroups shows it; metadata and assignment only while the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group as DescribeGroups shows it, with more for our own tools."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    generation: int
    leader: str | None
    members: tuple[MemberDescription, ...]


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    """A group as ListGroups shows it."""

    group_id: str
    state: GroupState
    protocol_type: str
    group_type: str = "classic"


Result = (
    JoinResult
    | SyncResult
    | LeaveResult
    | CommitResult
    | DeleteOffsetsResult
    | DeleteGroupsResult
    | ShareHeartbeatResult
    | ConsumerHeartbeatResult
)
