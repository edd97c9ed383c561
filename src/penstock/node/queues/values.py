"""What is said between a queue's driver and those who ask it."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.queue import Acquired


class Acknowledgement(NamedTuple):
    """What a consumer says of a range: one kind for all of it, or one for each offset. A release may come with the
    time after which it is to be tried again."""

    first: int
    last: int
    kinds: bytes
    delay_ms: int | None = None


class NotLeased(KafkaError):
    """Ranges that are not, or no more, in the hands of whoever spoke of them. All others were taken, and are durable
    when this is raised."""

    def __init__(self, code: ErrorCode, message: str, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(code, message)
        self.ranges = list(ranges)


class Delivery(NamedTuple):
    """Stored batches, and which of their records this consumer has got, with the number of deliveries."""

    records: bytes
    acquired: list[Acquired]


NOTHING = Delivery(b"", [])


class Consumer(asyncio.Event):
    """A request for records that waits until there may be some."""


def unknown_queue(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no queue {group_id!r} here, or no more")


def not_leased(refused: Sequence[tuple[ErrorCode, Acknowledgement]]) -> NotLeased:
    code, first = refused[-1]
    if code == ErrorCode.INVALID_REQUEST:
        message = (
            f"{first.first} to {first.last}: expected a range, and for it one kind of 0 to 4 or one for each"
        )
    else:
        message = f"{first.first} to {first.last} are not, or no more, leased to this consumer"
    return NotLeased(code, message, [(batch.first, batch.last) for _, batch in refused])


def as_kafka_error(trouble: PenstockError) -> KafkaError:
    if isinstance(trouble, KafkaError):
        return trouble
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble))
