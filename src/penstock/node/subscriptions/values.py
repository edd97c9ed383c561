"""Inputs and outputs of subscriptions, and the protocols of their reader and encoders."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from penstock.batch import Record
from penstock.errors import PenstockError
from penstock.queue.subscription import SubscriberSettings
from penstock.types import Isolation, TopicPartition


class SubscribeRefused(PenstockError):
    """A subscriber cannot be served, on this node or on any. `code` is for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Redirect(PenstockError):
    """Another node serves the subscription."""

    def __init__(self, node_id: int) -> None:
        super().__init__(f"node {node_id} serves this subscription")
        self.node_id = node_id


class EndReason(NamedTuple):
    """Why a subscriber is disconnected."""

    code: str
    message: str
    may_save: bool = True
    """Whether this node may still commit the subscriber's positions."""


class Bounds(NamedTuple):
    """Where a partition starts, and the offset that the next record will have. For a reader of committed records it
    ends where the first open transaction begins."""

    start: int
    end: int


class BatchesRead(NamedTuple):
    """Stored batches, and the producer id and first offset of each transaction among them that was aborted."""

    data: bytes
    aborted: Sequence[tuple[int, int]] = ()


class PartitionReader(Protocol):
    """Reads partitions on whichever nodes lead them. PenstockError says why it cannot."""

    async def read(
        self, key: TopicPartition, offset: int, *, max_bytes: int, wait_ms: int, isolation: Isolation
    ) -> BatchesRead:
        """Stored batches from the one that holds `offset`, at least one; none if there is nothing after `wait_ms`."""
        ...

    async def bounds(
        self, topic: str, partitions: Sequence[int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Mapping[int, Bounds]: ...

    async def ends_of_terms(self, topic: str, terms: Mapping[int, int]) -> Mapping[int, int]:
        """The start offset of the first term after the given one, by partition; -1 if there is no later term."""
        ...


class RecordEncoder(Protocol):
    """Encodes records for subscribers."""

    keeps_batches: bool
    """Whether frames are made of stored batches, and not of bodies."""

    def body(self, key: TopicPartition, record: Record) -> bytes:
        """One message."""
        ...

    def frame(self, page: "Rows", rows: Sequence[int]) -> bytes:
        """Some messages, ready to be sent."""
        ...


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of a subscriber."""

    name: str
    topics: tuple[str, ...]
    read_old: bool = False
    """Where it begins in a topic that it has not read before: at the start of the log if true, otherwise at its end."""
    take_over: bool = False
    encoder: RecordEncoder
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    ttl_ms: int = 604_800_000
    settings: SubscriberSettings = SubscriberSettings()


class Rows(Protocol):
    """The contents of a frame."""

    key: TopicPartition
    offsets: list[int]
    bodies: list[bytes]
    data: bytes


class ReadOutcome(NamedTuple):
    """Why there is no page: the log starts later, a part of it cannot be read, or the topic was deleted."""

    start: int | None = None
    unreadable_to: int | None = None
    reason: str = ""


GONE = ReadOutcome(reason="the topic was deleted")
FAILED = ReadOutcome(reason="reading it failed because of a bug: the log of the node has the traceback")

ControlFrame = dict[str, object]
"""A frame to the subscriber that is not made of messages; encoded as JSON."""


class FrameSink(Protocol):
    """The connection of a subscriber."""

    async def send(self, what: bytes | ControlFrame) -> None: ...

    async def has_room(self, seconds: float) -> bool:
        """Whether it takes a frame now, or within so many seconds, because the subscriber reads."""
        ...

    async def wait_for_room(self) -> None:
        """Returns when it takes a frame; raises if the subscriber reads nothing for long."""
        ...
