"""What a broker's answer to a batch means, and the words for a batch that cannot be delivered."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from penstock.client.errors import ClientError, Refused
from penstock.client.retriable_codes import RETRIABLE_CODES, code_of
from penstock.client.wire.partition_queue import Batch, PartitionQueue
from penstock.errors import ErrorCode
from penstock.types import TopicPartition


class Verdict(Enum):
    """What becomes of a batch."""

    WRITTEN = "it is in the log"
    AGAIN = "it goes again, with the same sequence number"
    AGAIN_AFTER_OTHERS = "a batch before it came back, so this one had to: no trouble of its own"
    SMALLER = "it goes again in two halves"
    RESTART = "the broker has lost track of the producer: it goes again under a new id"
    FATAL = "it will never be taken"


LOST_TRACK: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
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
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask for the right to write to this topic",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ask for the right of idempotent writing (IDEMPOTENT_WRITE)",
        ErrorCode.INVALID_REQUIRED_ACKS: "this broker does not take acks=all",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the broker has lost records that it had acknowledged, again after "
        "a new start: check its log",
        ErrorCode.UNKNOWN_PRODUCER_ID: "the broker forgets its producers: check its log and the topic's retention",
    }
)
NO_ADVICE: Final = "the broker's log may say more"


class DeliveryTimedOut(ClientError):
    """A batch was refused, or found nobody to take it, until its time was up."""

    def __init__(self, place: TopicPartition, rows: int, timeout_ms: int, problem: ClientError) -> None:
        self.place = place
        super().__init__(
            f"{place}: {rows} records were not acknowledged within delivery_timeout_ms={timeout_ms}; the last "
            f"problem was: {problem}. See that the brokers are well, or allow more time (delivery.timeout.ms)"
        )


def judge(code: int, queue: PartitionQueue, batch: Batch) -> Verdict:
    """What the answer to the oldest batch in flight means."""
    code = code_of(code)
    if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return Verdict.WRITTEN
    if code in LOST_TRACK:
        if not queue.is_first():
            return Verdict.AGAIN_AFTER_OTHERS
        return Verdict.FATAL if queue.restarted else Verdict.RESTART
    if code in TOO_LARGE:
        return Verdict.SMALLER if batch.rows > 1 else Verdict.FATAL
    # A batch that was damaged on its way is whole here; Kafka's client sends it again too.
    again = code == ErrorCode.CORRUPT_MESSAGE or code in RETRIABLE_CODES
    return Verdict.AGAIN if again else Verdict.FATAL


def refusal(place: TopicPartition, code: int, message: str | None) -> Refused:
    """The broker's refusal of a batch, in words."""
    advice = ADVICE.get(code_of(code), NO_ADVICE)
    detail = f"{message.rstrip('.')}: {advice}" if message else advice
    return Refused(code, f"producing to {place}", detail)
