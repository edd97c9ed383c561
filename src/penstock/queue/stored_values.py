"""What nodes tell each other about a queue: its key, the right to write its state, parts of that, and its counts."""

from typing import NamedTuple
from uuid import UUID


class QueueKey(NamedTuple):
    """A queue on one partition."""

    group_id: str
    topic_id: UUID
    partition: int


class Fence(NamedTuple):
    """The right to write a queue's state: held by the leader of the data in this term, since the claim with this
    number."""

    term: int
    number: int


NO_FENCE = Fence(-1, 0)

StatePart = tuple[bytes, bytes | None]
"""The key suffix of a part of a queue's state, and its bytes; None deletes it."""


class Claimed(NamedTuple):
    """The fence of a claim, and all stored parts."""

    fence: Fence
    parts: list[tuple[bytes, bytes]]
    open_settlements: list[tuple[bytes, bytes]]
    """The settlements of transactions that have not ended."""


Outcomes = list[tuple[bytes, bool]]
"""Suffixes of settlements whose transactions have ended, and whether they committed."""


class Backlog(NamedTuple):
    """Messages that are not done, by what they wait for."""

    available: int = 0
    leased: int = 0
    deferred: int = 0
    waiting: int = 0
    dying: int = 0

    @property
    def undone(self) -> int:
        return sum(self)

    def plus(self, other: "Backlog") -> "Backlog":
        return Backlog(*map(sum, zip(self, other, strict=True)))
