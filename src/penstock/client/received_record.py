"""A record as a queue's consumer or a subscriber gets it, and the batches that it comes in."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from penstock.batch import Record, iter_headers, read_records
from penstock.types import TopicPartition

OffsetRanges = list[tuple[int, int]]
"""First and last offsets, ascending."""


class ReceivedRecord:
    """Common to messages and jobs, which add what can be done with them."""

    __slots__ = ("_record", "connection_id", "deliveries", "order", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        record: Record,
        *,
        connection_id: int,
        order: int,
        deliveries: int = 1,
    ) -> None:
        self.topic_partition = topic_partition
        self._record = record
        self.connection_id = connection_id
        """The connection that it came over. Acks go back over the same one."""
        self.order = order
        """Counts the records of a session, over all connections."""
        self.deliveries = deliveries
        """How often it has been delivered, this time included. Subscriptions do not count: always 1."""

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        """Its partition of the topic, from 0."""
        return self.topic_partition.partition

    @property
    def offset(self) -> int:
        """Its offset in the partition, from 0."""
        return self._record.offset

    @property
    def key(self) -> bytes | None:
        """The key that it was published with, or None."""
        return self._record.key

    @property
    def value(self) -> bytes | None:
        """The value that was published; `text()` and `json()` decode it."""
        return self._record.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in the order in which they were published; a name may come more than once."""
        return tuple(self._record.headers)

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970: when it was published or stored, by the topic's message.timestamp.type."""
        return self._record.timestamp

    @property
    def time(self) -> datetime:
        """`timestamp_ms` as a datetime in UTC."""
        return datetime.fromtimestamp(self._record.timestamp / 1000, UTC)

    def header(self, name: str) -> bytes | None:
        """The last header of this name, or None."""
        return dict(self._record.headers).get(name)

    def text(self) -> str:
        """The value decoded as UTF-8; "" if there is no value."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value parsed as JSON; None if there is no value. Raises ValueError if it is not JSON."""
        return json.loads(self.value or b"null")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic_partition} at {self.offset}>"


def records_within(data: bytes, ranges: OffsetRanges) -> Iterator[tuple[int, Record]]:
    """The records of stored batches whose offsets are in one of the ranges, with the range's index.

    The broker sends whole batches: the records between the ranges belong to other consumers.
    """
    which = 0
    for position, header in iter_headers(data):
        if header.control:
            continue
        for record in read_records(data, position):
            while which < len(ranges) and ranges[which][1] < record.offset:
                which += 1
            if which == len(ranges):
                return
            if ranges[which][0] <= record.offset:
                yield which, record


def ranges_of(offsets: list[int]) -> OffsetRanges:
    """Ascending offsets as ranges."""
    ranges: OffsetRanges = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))
    return ranges
