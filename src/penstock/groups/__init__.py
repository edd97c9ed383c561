"""Consumer groups (Kafka's classic protocol), their committed offsets, and the members of share groups, as a state
machine. Sans-I/O."""

from penstock.groups.coordinator import Coordinator
from penstock.groups.share_values import (
    SharedTopic,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareMemberDescription,
)
from penstock.groups.states import GroupState
from penstock.groups.storage import offsets_partition
from penstock.groups.values import (
    NO_GENERATION,
    NO_MEMBER,
    CommitRequest,
    CommitResult,
    CommittedOffset,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    Result,
    SyncRequest,
    SyncResult,
)

__all__ = [
    "NO_GENERATION",
    "NO_MEMBER",
    "CommitRequest",
    "CommitResult",
    "CommittedOffset",
    "Coordinator",
    "DeleteGroupsResult",
    "DeleteOffsetsResult",
    "GroupDescription",
    "GroupListing",
    "GroupState",
    "JoinRequest",
    "JoinResult",
    "LeaveResult",
    "LeavingMember",
    "OffsetToCommit",
    "Protocol",
    "Result",
    "ShareGroupDescription",
    "ShareHeartbeat",
    "ShareHeartbeatResult",
    "ShareMemberDescription",
    "SharedTopic",
    "SyncRequest",
    "SyncResult",
    "offsets_partition",
]
