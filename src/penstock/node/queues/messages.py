"""What is asked and answered at the desk (`desk`), here and between nodes."""

from uuid import UUID

import msgspec


class At(msgspec.Struct, frozen=True, array_like=True):
    """A partition."""

    topic_id: bytes
    partition: int

    @classmethod
    def of(cls, topic_id: UUID, partition: int) -> "At":
        return cls(topic_id.bytes, partition)


class Wish(msgspec.Struct, frozen=True, array_like=True):
    """Messages for a consumer. `standby`: it is content to wait for the seat of an exclusive queue."""

    group_id: str
    consumer: str
    who: str
    places: list[At]
    max_records: int
    max_bytes: int
    wait_ms: int
    standby: bool
    ticket: int


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """Stored batches of one partition, and what of them was handed out: first, last, deliveries. `life` is that of the
    driver which did (`QueueDriver.life`)."""

    place: At
    records: bytes
    acquired: list[tuple[int, int, int]]
    lease_ms: int
    life: bytes = b""

    @property
    def count(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.acquired)


class Returned(msgspec.Struct, frozen=True, array_like=True):
    group_id: str
    consumer: str
    place: At
    ranges: list[tuple[int, int]]


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What a consumer says of a message: a kind of `queue.AckKind`, and the delay of a release."""

    offset: int
    kind: int
    delay_ms: int | None = None


class HandedOut(msgspec.Struct, frozen=True, array_like=True):
    """One delivery of a message: the how manieth it was in the life of a driver."""

    life: bytes
    deliveries: int


class Verdicts(msgspec.Struct, frozen=True, array_like=True):
    """`by`: the delivery that is spoken of. None: whatever the consumer holds now."""

    group_id: str
    consumer: str
    place: At
    rows: list[Verdict]
    by: HandedOut | None = None


class Look(msgspec.Struct, frozen=True, array_like=True):
    """Asks for what is not done from an offset on. `is_new`: nothing is stored of this queue, so all is undone."""

    group_id: str
    place: At
    first: int
    max_records: int
    is_new: bool


class SeenRun(msgspec.Struct, frozen=True, array_like=True):
    first: int
    last: int
    state: str
    deliveries: int
    consumer: str | None
    until_ms: int | None


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What is not done, and the stored batches that hold it; `next_offset` is where to look on, -1 at the end."""

    runs: list[SeenRun]
    records: bytes
    next_offset: int


class Ahead(msgspec.Struct, frozen=True, array_like=True):
    """Asks for what is deferred."""

    group_id: str
    place: At
    max_records: int


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """How many messages are deferred, and the next of them as (due_ms, offset). Of those that lie `unread` behind what
    the queue has read of its log nobody knows."""

    deferred: int
    unread: int
    coming: list[tuple[int, int]]


class One(msgspec.Struct, frozen=True, array_like=True):
    group_id: str
    place: At
    offset: int
