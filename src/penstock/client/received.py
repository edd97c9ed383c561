"""A record as it was handed to a consumer of a queue or to a subscriber, and the batches it came in."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.batch import Record, iter_headers, read_records

Runs = list[tuple[int, int]]
"""First and last offsets, rising."""


class Place(NamedTuple):
    """One partition."""

    topic: str
    partition: int


class Received:
    """What every message and every job has. Jobs and messages add what can be done with them."""

    __slots__ = ("_record", "deliveries", "link", "order", "place")

    def __init__(self, place: Place, record: Record, *, link: int, order: int, deliveries: int = 1) -> None:
        self.place = place
        self._record = record
        self.link = link
        """The connection that it came over: what is said of it goes back there, or nowhere."""
        self.order = order
        """Counts what came over all connections of a session."""
        self.deliveries = deliveries
        """How often it has been handed out, this time included. Subscriptions do not count: always 1."""

    @property
    def topic(self) -> str:
        """Where it was published."""
        return self.place.topic

    @property
    def partition(self) -> int:
        """Its partition of the topic, from 0."""
        return self.place.partition

    @property
    def offset(self) -> int:
        """Its place in the partition, from 0."""
        return self._record.offset

    @property
    def key(self) -> bytes | None:
        """As it was published, or None."""
        return self._record.key

    @property
    def value(self) -> bytes | None:
        """What was published; `text()` and `json()` read it."""
        return self._record.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """In the order in which they were published; a name may come more than once."""
        return tuple(self._record.headers)

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970: when it was published, or stored, as the topic's message.timestamp.type says."""
        return self._record.timestamp

    @property
    def time(self) -> datetime:
        """`timestamp_ms` as a time in UTC."""
        return datetime.fromtimestamp(self._record.timestamp / 1000, UTC)

    def header(self, name: str) -> bytes | None:
        """The last header of this name, or None."""
        return dict(self._record.headers).get(name)

    def text(self) -> str:
        """The value as UTF-8; no value is an empty text."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value as JSON; no value is None. ValueError for what is no JSON."""
        return json.loads(self.value or b"null")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}-{self.partition} at {self.offset}>"


def records_within(data: bytes, runs: Runs) -> Iterator[tuple[int, Record]]:
    """The records of stored batches whose offsets are in one of the runs, with the run's number.

    Batches are sent whole: what lies between the runs is somebody else's.
    """
    which = 0
    for position, header in iter_headers(data):
        if header.control:
            continue
        for record in read_records(data, position):
            while which < len(runs) and runs[which][1] < record.offset:
                which += 1
            if which == len(runs):
                return
            if runs[which][0] <= record.offset:
                yield which, record


def runs_of(offsets: list[int]) -> Runs:
    """Rising offsets as runs."""
    runs: Runs = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = runs[-1][0], offset
        else:
            runs.append((offset, offset))
    return runs
