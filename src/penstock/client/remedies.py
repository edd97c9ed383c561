"""Which of a broker's refusals pass by themselves, and what to do before the next try.

A code that is not in the table is final: trying again would give the same answer.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from penstock.errors import ErrorCode


class Remedy(Enum):
    """What helps against a refusal."""

    REFRESH = "ask again who leads the partition, then ask that broker"
    FIND_COORDINATOR = "ask again who coordinates the group, then ask that broker"
    WAIT = "ask the same broker a little later"


REMEDIES: Mapping[ErrorCode, Remedy] = MappingProxyType(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Remedy.REFRESH,
        ErrorCode.UNKNOWN_TOPIC_ID: Remedy.REFRESH,
        ErrorCode.LEADER_NOT_AVAILABLE: Remedy.REFRESH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: Remedy.REFRESH,
        ErrorCode.BROKER_NOT_AVAILABLE: Remedy.REFRESH,
        ErrorCode.REPLICA_NOT_AVAILABLE: Remedy.REFRESH,
        ErrorCode.NETWORK_EXCEPTION: Remedy.REFRESH,
        ErrorCode.NOT_CONTROLLER: Remedy.REFRESH,
        ErrorCode.KAFKA_STORAGE_ERROR: Remedy.REFRESH,
        ErrorCode.LISTENER_NOT_FOUND: Remedy.REFRESH,
        ErrorCode.FENCED_LEADER_EPOCH: Remedy.REFRESH,
        ErrorCode.UNKNOWN_LEADER_EPOCH: Remedy.REFRESH,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Remedy.FIND_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: Remedy.FIND_COORDINATOR,
        ErrorCode.NOT_COORDINATOR: Remedy.FIND_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT: Remedy.WAIT,
        ErrorCode.NOT_ENOUGH_REPLICAS: Remedy.WAIT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Remedy.WAIT,
        ErrorCode.OFFSET_NOT_AVAILABLE: Remedy.WAIT,
        ErrorCode.CONCURRENT_TRANSACTIONS: Remedy.WAIT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT: Remedy.WAIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED: Remedy.WAIT,
    }
)

MISSING_GRACE_MS = 2_000
"""How long a topic that a broker does not know may still turn up: news of a new topic reaches the brokers one by one,
in well under a second. Longer would only delay the error about a name that was mistyped."""

_GRACE_MS: Mapping[ErrorCode, int] = MappingProxyType(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MISSING_GRACE_MS,
        ErrorCode.UNKNOWN_TOPIC_ID: MISSING_GRACE_MS,
    }
)


def remedy_for(code: ErrorCode) -> Remedy | None:
    """None: nothing helps."""
    return REMEDIES.get(code)


def grace_ms(code: ErrorCode) -> int | None:
    """How long this code is worth waiting for, where that is less than for others."""
    return _GRACE_MS.get(code)


def code_of(number: int) -> ErrorCode:
    """The code of an answer; one that is newer than this client counts as unknown."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
