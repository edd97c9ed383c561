"""Which error codes of a broker are worth another try.

A code that is not in the table is final: another try would get the same answer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.errors import ErrorCode

RETRIABLE_CODES: Final = frozenset(
    {
        # The leader, controller or broker has changed: refresh the metadata before the next try.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        # The coordinator has moved or is loading: find the coordinator before the next try.
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # The same broker may answer differently a little later.
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)

UNKNOWN_TOPIC_RETRY_MS: Final = 2_000
"""How long a client retries a topic that a broker does not know. News of a new topic reaches all brokers in well under
a second; a longer retry would only delay the error about a mistyped name."""

_RETRY_FOR_MS: Mapping[ErrorCode, int] = MappingProxyType(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN_TOPIC_RETRY_MS,
        ErrorCode.UNKNOWN_TOPIC_ID: UNKNOWN_TOPIC_RETRY_MS,
    }
)


def retry_for_ms(code: ErrorCode) -> int | None:
    """The longest time for which this code is retried; None: as long as the settings say."""
    return _RETRY_FOR_MS.get(code)


def code_of(number: int) -> ErrorCode:
    """The code with this number; a number that this client does not know counts as UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
