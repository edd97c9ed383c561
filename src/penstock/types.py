"""The words that every room uses, as types."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's place in its partition, as Kafka clients count it: from 0, consecutive."""

Term = NewType("Term", int)
"""A leader's reign. Raft's term and Kafka's leader epoch are the same number."""

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
