"""Which records everybody has acked, so that they may go (`cleanup.policy=acked`).

*Holders* keep records alive: a queue, by where its stored state begins; a consumer group or a subscription, by its
committed offsets. A *keeper* is whoever knows some of them: a partition of the topic where groups commit, or of the one
where queues are stored, in the term of its leader. Whoever leads a partition with this policy asks all keepers of the
cluster at once (a `Poll`), counts what they say, and deletes what is before the lowest place of all holders.

Invariants:
 1. Never on partial knowledge. A poll counts only if every keeper has answered it, each from the node and in the term
    that the asker took for its leader's before it asked, and still does after. A holder that was not counted could lose
    what it has not read; a poll that fails costs a few seconds. So a failover of a keeper begins the count anew.
 2. A keeper tells what is durable, and only while it is sure that nobody else keeps the same holders by now.
 3. A group that is on a topic has acked nothing in those of its partitions where it has committed nothing. It is on
    what its members read, also while they rebalance, and on what it has committed in.
 4. A topic without any holder keeps everything: that nobody has come yet does not mean that nobody will.
 5. A queue that is on a topic, by state stored for any of its partitions, has done nothing in those where it has not
    begun: a partition that the topic got later is read from its beginning. What a queue has stored of its partitions is
    with different keepers, so that only the asker, who hears all of them, can tell where it has not begun.
 6. Queues at work on the asking leader are asked directly too, at the moment of deletion: one that has just begun is
    not missed because its keeper answered a moment before.

What is left open is the time that a poll takes: a consumer group that commits for the first time, or goes back, while
the answers are under way is as one that came a moment later, when the records were gone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.types import GroupId

NOTHING = 0
"""An offset before which nothing is."""


class Keeper(NamedTuple):
    """A partition of an internal topic."""

    topic: str
    partition: int


class Reign(NamedTuple):
    """Who leads a keeper's partition, and in which term."""

    node: int
    term: int


class Line(NamedTuple):
    """How many holders there are on a partition, and the offset before which all of them have acked everything."""

    holders: int
    offset: int


class QueueStats:
    """What the keepers of one node know of some partitions."""

    def __init__(self, wanted: Iterable[GroupId]) -> None:
        self._partitions: dict[UUID, list[int]] = {}
        for topic_id, index in wanted:
            self._partitions.setdefault(topic_id, []).append(index)
        self.lines: dict[GroupId, Line] = {}
        """Of those partitions that somebody has a place in."""
        self.begun: dict[UUID, dict[str, set[int]]] = {}
        """By topic and queue: the partitions that something is stored of, whether they were asked for or not."""

    def group(self, topic_id: UUID, offsets: Mapping[int, int]) -> None:
        """A group is on this topic, and has acked everything before these offsets, by partition (3)."""
        for index in self._partitions.get(topic_id, ()):
            self.count(GroupId(topic_id, index), Line(1, offsets.get(index, NOTHING)))

    def queue(self, name: str, topic_id: UUID, index: int, start_offset: int) -> None:
        """A queue has done everything before this offset of a partition."""
        if topic_id in self._partitions:
            self.begins(topic_id, name, (index,))
        if index in self._partitions.get(topic_id, ()):
            self.count(GroupId(topic_id, index), Line(1, start_offset))

    def begins(self, topic_id: UUID, name: str, indexes: Collection[int]) -> None:
        """A queue is on this topic, and has begun on these partitions."""
        self.begun.setdefault(topic_id, {}).setdefault(name, set()).update(indexes)

    def count(self, place: GroupId, line: Line) -> None:
        """Adds holders that somebody else has counted."""
        known = self.lines.get(place)
        if known is not None:
            line = Line(known.holders + line.holders, min(known.offset, line.offset))
        self.lines[place] = line

    def line(self, place: GroupId) -> Line | None:
        """Of everybody who is on it, those included who have not begun (5). None: nobody is."""
        queues = self.begun.get(place.topic_id, {}).values()
        waiting = sum(place.partition not in indexes for indexes in queues)
        known = self.lines.get(place)
        if not waiting:
            return known
        return Line(waiting + (known.holders if known is not None else 0), NOTHING)


class Poll:
    """One question to all keepers, and their answers."""

    def __init__(self, keepers: Mapping[Keeper, Reign], places: Iterable[GroupId]) -> None:
        self.keepers = dict(keepers)
        self._missing = dict(self.keepers)
        self._tally = QueueStats(places)

    @property
    def nodes(self) -> list[int]:
        """Who has to be asked."""
        return sorted({reign.node for reign in self.keepers.values()})

    def heard(
        self,
        node: int,
        told: Mapping[Keeper, int],
        lines: Mapping[GroupId, Line],
        begun: Mapping[UUID, Mapping[str, Collection[int]]],
    ) -> None:
        """A node's answer, once: which keepers it has counted, in which terms, and what came of it."""
        for keeper, term in told.items():
            if self._missing.get(keeper) == Reign(node, term):
                del self._missing[keeper]
        for place, line in lines.items():
            self._tally.count(place, line)
        for topic_id, queues in begun.items():
            for name, indexes in queues.items():
                self._tally.begins(topic_id, name, indexes)

    def counts(self, keepers: Mapping[Keeper, Reign]) -> bool:
        """Whether all have answered, and are now what they were when they were asked (1)."""
        return not self._missing and self.keepers == keepers

    @property
    def missing(self) -> list[Keeper]:
        """Who has not answered so far."""
        return list(self._missing)

    def line(self, place: GroupId) -> Line | None:
        """None: nobody is on it, or not everybody has answered."""
        return None if self._missing else self._tally.line(place)


def acked_before(line: Line | None, queues: Sequence[int | None]) -> int:
    """The offset before which everything has been acked by all. `queues` are those at work on the partition's leader:
    where each begins by what is stored, None while nothing is (4, 6)."""
    if line is None or not line.holders:
        return NOTHING
    starts = [NOTHING if start is None else start for start in queues]
    return max(NOTHING, min([line.offset, *starts]))
