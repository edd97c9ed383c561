"""Inputs and outputs of a queue's driver."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.queue import Acquired


class Acknowledgement(NamedTuple):
    """A consumer's decision about a range: one kind for all of it, or one for each offset. `delay_ms` is the retry
    delay of a release."""

    first: int
    last: int
    kinds: bytes
    delay_ms: int | None = None


class NotLeased(KafkaError):
    """Ranges that the consumer does not hold (any more). All others were accepted, and are durable when this is
    raised."""

    def __init__(self, code: ErrorCode, message: str, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(code, message)
        self.ranges = list(ranges)


class Delivery(NamedTuple):
    """Stored batches, and which of their records were leased to this consumer, with the number of the delivery."""

    records: bytes
    acquired: list[Acquired]


NOTHING = Delivery(b"", [])


class Consumer(asyncio.Event):
    """A request that waits for records."""


def unknown_queue(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no queue {group_id!r} here (any more)")


def not_leased(refused: Sequence[tuple[ErrorCode, Acknowledgement]]) -> NotLeased:
    code, first = refused[-1]
    if code == ErrorCode.INVALID_REQUEST:
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
