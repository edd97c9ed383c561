"""Requests to the leader of a partition of the queues' state topic (`node.queues.state_log`)."""

from typing import NamedTuple
from uuid import UUID

import msgspec

from penstock.types import NO_TERM


class QueueKey(NamedTuple):
    """A queue on one partition."""

    group_id: str
    topic_id: UUID
    partition: int


class Fence(NamedTuple):
    """The right to write a queue's state: of the leader of the data in this term, since this claim."""

    term: int
    turn: int


NO_FENCE = Fence(-1, 0)

Part = tuple[bytes, bytes | None]
"""Which part of a queue's state, and its bytes; None deletes it."""


class ClaimState(msgspec.Struct, frozen=True, array_like=True):
    queue: QueueKey
    term: int


class ClaimedState(msgspec.Struct, frozen=True, array_like=True):
    fence: Fence
    parts: list[tuple[bytes, bytes]]


class SaveState(msgspec.Struct, frozen=True, array_like=True):
    queue: QueueKey
    fence: Fence
    number: int
    parts: list[Part]


class ResetState(msgspec.Struct, frozen=True, array_like=True):
    """`term`: of the leader in whose log the offset is."""

    queue: QueueKey
    start_offset: int
    term: int = NO_TERM


class ListStartOffsets(msgspec.Struct, frozen=True, array_like=True):
    """Of the queues in one partition of the state topic: of one group, or of all if it is null."""

    partition: int
    group_id: str | None


class StartOffsets(msgspec.Struct, frozen=True, array_like=True):
    rows: list[tuple[QueueKey, int]]
