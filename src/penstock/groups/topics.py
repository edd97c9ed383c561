"""Which topic a name stands for: offsets are kept by name, and a name may be used again.

A group that has read 500 records of a topic must not begin at offset 500 of another topic that was given the same name
later: it would skip the first 500 records of it, and nobody would notice. So every offset is stored with the id of its
topic, which is never used again, and compared with the id that the name has in the metadata by now:

- the same: it is what the group committed;
- another one, or the name is not in use: the topic was deleted. The offset is not there for anybody, and a deletion is
  written for it when there is time;
- stored without an id, as earlier versions did: nothing can be told. It counts, as it did when it was written, and is
  written again with the id of the topic that has its name then. Taking it for old would make every group start over
  when a node is upgraded. What is left of the danger is a topic that was deleted, and its offsets not, before that.

A node's metadata may be behind. One that has not read of a new topic yet would take that topic's offsets for old ones
and delete them. So an offset is stored with the version of the metadata, too, by which it was taken in. Invariants:

1. A coordinator judges by metadata that is at least as new as that of all offsets in its log: it does not begin before.
   Then a topic that it does not know was deleted, and is not merely unknown.
2. An offset is taken in only for a topic that is in use, and under the id that the request names, or else that the
   topic had when the request came.
3. No deletion of an old topic's offset overtakes a commit that may be for the new one: where a commit is being written,
   it replaces what was there, and nothing is deleted.

What remains: a client that names topics by their names (all before OffsetCommit and OffsetFetch v10) means the topic
that it knows, and the coordinator the one that it knows. An offset that a coordinator takes in while its metadata is
behind gets the old topic's id and is dropped with it: the group reads some records twice. One that a client commits
late, having read from the old topic, counts for the new one; ids in the request are the only help against that.
Subscriptions, which this broker itself commits for, name them.
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
        """Grows with every change; whoever has the same version knows the same topics."""
        ...

    def id_of(self, name: str) -> UUID | None:
        """None: no topic has that name."""
        ...


class Verdict(Enum):
    """What an offset is worth by now."""

    COUNTS = "counts"
    UNSIGNED = "unsigned"
    """It counts, but nothing says for which topic it was committed."""
    GONE = "gone"


def judge(topics: Topics, partition: TopicPartition, committed: CommittedOffset) -> Verdict:
    if committed.topic_id is None:
        return Verdict.UNSIGNED
    return Verdict.COUNTS if committed.topic_id == topics.id_of(partition.topic) else Verdict.GONE
