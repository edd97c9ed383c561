"""Which topic a name stands for: offsets are kept by name, and a name may be used again.

A group that has read 500 records of a topic must not begin at offset 500 of another topic that got the same name later:
it would skip the first 500 records without an error. So every offset is stored with the id of its topic, which is never
used again, and compared with the id that the name has in the metadata now:

- the same id: the offset counts;
- another id, or the name is not in use: the topic was deleted. The offset does not count, and its deletion is written
  later;
- stored without an id, as earlier versions did: the offset counts, as it did when it was written, and is written again
  with the id of the topic that has the name then. Otherwise every group would start over when a node is upgraded. One
  risk remains: a topic that was deleted before the upgrade, and its offsets were not.

A node's metadata may be behind. A coordinator that has not read of a new topic yet would take that topic's offsets for
old ones and delete them. So an offset is also stored with the version of the metadata by which it was accepted.
Invariants:

1. A coordinator judges by metadata that is at least as new as that of all offsets in its log: it does not start before.
   Then a topic that it does not know was deleted, and is not merely unknown.
2. An offset is accepted only for a topic that exists, and under the id that the request names, or else that the topic
   had when the request came.
3. No deletion of an old topic's offset overtakes a commit that may be for the new one: a commit that is being written
   replaces the old offset, and nothing is deleted.

Limits: a client that names topics by their names (all before OffsetCommit and OffsetFetch v10) means the topic that it
knows, and the coordinator the one that it knows. An offset that a coordinator accepts while its metadata is behind gets
the old topic's id and is dropped with it: the group reads some records twice. An offset that a client commits late,
having read from the old topic, counts for the new one; only ids in the request prevent that. Subscriptions, for which
this broker itself commits, name ids.
"""

from enum import Enum
from typing import Protocol
from uuid import UUID

from penstock.groups.values import CommittedOffset
from penstock.types import TopicPartition


class Topics(Protocol):
    """The metadata as it is applied on this node."""

    @property
    def version(self) -> int:
        """Grows with every change; nodes with the same version know the same topics."""
        ...

    def id_of(self, name: str) -> UUID | None:
        """None: no topic has that name."""
        ...


class Verdict(Enum):
    """Whether an offset still counts."""

    COUNTS = "counts"
    UNSIGNED = "unsigned"
    """It counts, but it is not known for which topic it was committed."""
    GONE = "gone"


def judge(topics: Topics, partition: TopicPartition, committed: CommittedOffset) -> Verdict:
    if committed.topic_id is None:
        return Verdict.UNSIGNED
    return Verdict.COUNTS if committed.topic_id == topics.id_of(partition.topic) else Verdict.GONE
