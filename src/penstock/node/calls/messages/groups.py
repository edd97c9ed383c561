"""Requests to coordinators of groups, and to all nodes that keep the progress of groups and queues."""

from uuid import UUID

import msgspec


class BeginShareGroup(msgspec.Struct, frozen=True, array_like=True):
    group_id: str


class ListAckedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """How far have all groups and queues come in these partitions?"""

    partitions: list[tuple[UUID, list[int]]]
    queues_only: bool = False
    """Groups do not count. A node of an older version counts them all the same: then more is kept than necessary."""


class AckedOffsets(msgspec.Struct, frozen=True, array_like=True):
    partition_counts: list[int]
    """How many partitions each of the sources' topics has, 0 for one that does not exist, as the answering node knows
    them. If it knows of more than the asking node does, other nodes must be asked too."""
    sources: list[tuple[int, int, int]]
    """Topic (its number in SOURCE_TOPICS), partition and term of each source that was counted."""
    progress: list[tuple[int, int, int, int]]
    """Topic (its number in the request), partition, holders, offset."""
    started: list[tuple[int, str, list[int]]]
    """Topic (its number in the request), queue, and all partitions of the topic for which this node stores state."""
    slowest: list[tuple[int, int, str]] = []
    """Topic (its number in the request), partition, and the queue there that has come least far."""
