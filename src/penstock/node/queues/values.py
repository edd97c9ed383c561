"""Inputs and outputs of a queue's driver."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.queue.values import Acknowledgement, Acquired

FENCED = ErrorCode.FENCED_MEMBER_EPOCH
"""The consumer was a slot's owner, and is not any more."""


class NotLeased(KafkaError):
    """Ranges that the consumer does not hold (any more). All others were accepted, and are durable when this is
    raised."""

    def __init__(self, code: ErrorCode, message: str, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(code, message)
        self.ranges = list(ranges)


class ProducerTransaction(NamedTuple):
    """The transaction of a producer, as the producer names it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class LeasedBatches(NamedTuple):
    """Stored batches, and which of their records were leased to this consumer, with the number of the delivery."""

    records: bytes
    acquired: list[Acquired]


NOTHING = LeasedBatches(b"", [])


class Consumer(asyncio.Event):
    """A request that waits for records."""

    def __init__(self) -> None:
        super().__init__()
        self.woken_by: dict[object, None] = {}
        """The drivers that may have records for it."""

    def wake(self, driver: object) -> None:
        self.woken_by[driver] = None
        self.set()

    def clear(self) -> None:
        super().clear()
        self.woken_by.clear()


def unknown_queue(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no queue {group_id!r} here (any more)")


def not_leased(errors: Sequence[ErrorCode], acknowledgements: Sequence[Acknowledgement]) -> NotLeased:
    """The refusal of those that have an error, of which there is at least one."""
    refused = [(error, one) for error, one in zip(errors, acknowledgements, strict=True) if error]
    by_code = dict(reversed(refused))
    code = FENCED if FENCED in by_code else refused[-1][0]
    first = by_code[code]
    if code == FENCED:
        message = (
            f"{first.first} to {first.last}: the slot of a message has another owner now, or had one since the epoch "
            "of the settlement"
        )
    elif code == ErrorCode.INVALID_REQUEST:
        message = (
            f"{first.first} to {first.last}: expected a range with one kind of 0 to 4, or one per offset"
        )
    else:
        message = f"{first.first} to {first.last} are not (any more) leased to this consumer"
    return NotLeased(code, message, [(batch.first, batch.last) for _, batch in refused])


def as_kafka_error(trouble: PenstockError) -> KafkaError:
    if isinstance(trouble, KafkaError):
        return trouble
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble))
