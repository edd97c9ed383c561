"""The words of this room."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from penstock.batch import Record
from penstock.errors import PenstockError
from penstock.queue.subscription import SubscriberSettings
from penstock.types import TopicPartition


class Refused(PenstockError):
    """A subscriber that cannot be served, here or at all. `code` is for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Elsewhere(PenstockError):
    """Another node is the subscription's home."""

    def __init__(self, node_id: int) -> None:
        super().__init__(f"node {node_id} is at home here")
        self.node_id = node_id


class Ending(NamedTuple):
    """Why a subscriber is sent away."""

    code: str
    message: str
    is_home: bool = True
    """Whether this node may still write down where the subscriber was."""


class Bounds(NamedTuple):
    """Where a partition begins, and the offset that the next record will have."""

    start: int
    end: int


class Reader(Protocol):
    """Reads partitions, whoever leads them. PenstockError says why it cannot."""

    async def read(self, key: TopicPartition, offset: int, *, max_bytes: int, wait_ms: int) -> bytes:
        """Stored batches from the one that holds `offset`, at least one; none if there is nothing after `wait_ms`."""
        ...

    async def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Bounds]: ...

    async def ends_of_terms(self, topic: str, terms: Mapping[int, int]) -> Mapping[int, int]:
        """Where leaders of later terms begin, by partition, in the order of the log; -1 where none does."""
        ...


class Encoder(Protocol):
    """Makes what subscribers get of records."""

    keeps_batches: bool
    """Whether frames are made of stored batches, and not of bodies."""

    def body(self, key: TopicPartition, record: Record) -> bytes:
        """One message."""
        ...

    def frame(self, page: "Rows", rows: Sequence[int]) -> bytes:
        """Some messages, ready to be sent."""
        ...


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a subscriber asks for."""

    name: str
    topics: tuple[str, ...]
    read_old: bool = False
    """Where it begins in a topic that it has not subscribed to before: at the log's beginning, or at its end."""
    take_over: bool = False
    encoder: Encoder
    ttl_ms: int = 604_800_000
    settings: SubscriberSettings = SubscriberSettings()


class Rows(Protocol):
    """What a frame is made of."""

    key: TopicPartition
    offsets: list[int]
    bodies: list[bytes]
    data: bytes


class Outcome(NamedTuple):
    """What reading came to, if it is no page: the log begins later, a part of it cannot be read, or it is gone."""

    start: int | None = None
    unreadable_to: int | None = None
    reason: str = ""


GONE = Outcome(reason="the topic was deleted")
FAILED = Outcome(reason="a bug in reading this: the node's log has the traceback")

Notice = dict[str, object]
"""Something to be told to a subscriber, as JSON has it."""
Send = Callable[[bytes | Notice], Awaitable[None]]
