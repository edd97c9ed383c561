"""Consumer groups (Kafka's classic protocol and that of KIP-848), their committed offsets, and the members of share
groups, as a state machine. Sans-I/O."""

from penstock.groups.consumer_assignors import compute as compute_assignment
from penstock.groups.consumer_values import (
    AssignmentJob,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerMemberDescription,
)
from penstock.groups.coordinator import Coordinator
from penstock.groups.share_values import (
    SharedTopic,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareMemberDescription,
)
from penstock.groups.states import GroupState
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
    "AssignmentJob",
    "CommitRequest",
    "CommitResult",
    "CommittedOffset",
    "ConsumerGroupDescription",
    "ConsumerHeartbeat",
    "ConsumerHeartbeatResult",
    "ConsumerMemberDescription",
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
    "compute_assignment",
]
