"""The words that every room uses, as types."""

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""A record's place in its partition, as Kafka clients count it: from 0, consecutive."""

Term = NewType("Term", int)
"""A leader's reign. Raft's term and Kafka's leader epoch are the same number."""

Index = NewType("Index", int)
"""A place between two entries of a partition's log, counted in Raft's way: a batch is as wide as its offsets, a control
entry is one wide. The end of a log of n such units is n."""

NodeId = NewType("NodeId", int)
TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since 1970 by the wall clock, as records carry them."""

NO_TIMESTAMP = TimestampMs(-1)
NO_TERM = Term(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class GroupId(NamedTuple):
    """One Raft group: the replicas of one partition. A topic of the same name that comes later is another group."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class Replica(NamedTuple):
    """One member of a Raft group. The incarnation is made with the data folder: a node that lost its folder comes back
    as another replica, because it no longer knows what it voted and acknowledged."""

    node: NodeId
    incarnation: int

    def __str__(self) -> str:
        return str(self.node)
