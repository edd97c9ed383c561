"""The meaning of a broker's answer to a batch, and the errors for a batch that cannot be delivered."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from penstock.client.errors import ClientError, Refused
from penstock.client.retriable_codes import RETRIABLE_CODES, code_of
from penstock.client.wire.partition_queue import Batch, PartitionQueue
from penstock.errors import ErrorCode
from penstock.types import TopicPartition


class BatchOutcome(Enum):
    """The producer's next step for a batch after its answer."""

    WRITTEN = "it is in the log"
    AGAIN = "it is sent again, with the same sequence number"
    AGAIN_AFTER_OTHERS = "it failed only because an earlier batch failed: it is sent again after that one"
    SMALLER = "it is sent again in two halves"
    RESTART = "the broker has lost the producer's state: it is sent again under a new producer id"
    FATAL = "the broker will never accept it"


LOST_STATE: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

ADVICE: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.MESSAGE_TOO_LARGE: "one record is larger than the topic takes: raise the topic's "
        "max.message.bytes or make the record smaller",
        ErrorCode.RECORD_LIST_TOO_LARGE: "one record is larger than a segment of the topic: raise the topic's "
        "segment.bytes or make the record smaller",
        ErrorCode.INVALID_RECORD: "the topic does not take such records; one that is compacted wants a key in each",
        ErrorCode.INVALID_TIMESTAMP: "check the records' times against the topic's message.timestamp.* settings",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not know this codec: choose another "
        "compression.type",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user has no WRITE permission on the topic",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ask for the right of idempotent writing (IDEMPOTENT_WRITE)",
        ErrorCode.INVALID_REQUIRED_ACKS: "this broker does not take acks=all",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the broker has lost records that it had acknowledged, again after "
        "a new start: check its log",
        ErrorCode.INVALID_PRODUCER_EPOCH: "another client uses this transactional id, or the transaction took longer "
        "than its timeout",
        ErrorCode.PRODUCER_FENCED: "another client uses this transactional id",
        ErrorCode.UNKNOWN_PRODUCER_ID: "the broker forgets its producers: check its log and the topic's retention",
    }
)
NO_ADVICE: Final = "the broker's log may say more"


class DeliveryTimedOut(ClientError):
    """A batch was refused, or no broker could be reached, until its delivery timed out."""

    def __init__(self, tp: TopicPartition, rows: int, timeout_ms: int, problem: ClientError) -> None:
        self.topic_partition = tp
        super().__init__(
            f"{tp}: {rows} records were not acknowledged within delivery_timeout_ms={timeout_ms}; the last "
            f"problem was: {problem}. Check the brokers, or allow more time (delivery.timeout.ms)"
        )


def outcome_of(code: int, queue: PartitionQueue, batch: Batch) -> BatchOutcome:
    """The outcome of the oldest batch in flight."""
    code = code_of(code)
    if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return BatchOutcome.WRITTEN
    if code in LOST_STATE:
        if not queue.is_first():
            return BatchOutcome.AGAIN_AFTER_OTHERS
        return BatchOutcome.FATAL if queue.restarted or queue.transactional else BatchOutcome.RESTART
    if code in TOO_LARGE:
        return BatchOutcome.SMALLER if batch.rows > 1 else BatchOutcome.FATAL
    # A batch that was damaged on the way is intact here; Kafka's own client sends it again too.
    again = code == ErrorCode.CORRUPT_MESSAGE or code in RETRIABLE_CODES
    return BatchOutcome.AGAIN if again else BatchOutcome.FATAL


def refused(tp: TopicPartition, code: int, message: str | None) -> Refused:
    """The error for a batch that the broker refused, with advice."""
    advice = ADVICE.get(code_of(code), NO_ADVICE)
    detail = f"{message.rstrip('.')}: {advice}" if message else advice
    return Refused(code, f"producing to {tp}", detail)
