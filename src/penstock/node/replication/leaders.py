"""The leaders of partitions, as far as this node has heard.

Every group elects its own leader, and clients may ask any node for it, also one that holds no replica. So a leader
announces itself to all nodes when it is elected and when its in-sync set changes, and announces everything again to a
node that has just connected. The table may be out of date: a node that is asked by mistake refuses, and the client asks
again. Of two announcements the one with the higher term counts, in whatever order they arrive.
"""

from collections.abc import Callable, Collection, Container, Iterator
from uuid import UUID

import msgspec

from penstock.types import NO_TERM, GroupId, NodeId, Term

NO_LEADER = NodeId(-1)
MAX_ROWS = 100_000
"""The most rows in one frame: as many as a cluster may have partitions."""


class Leadership(msgspec.Struct, frozen=True, array_like=True):
    """One group's leader. `in_sync` are the nodes that have kept up with it."""

    leader: int
    term: int
    in_sync: tuple[int, ...]


UNKNOWN = Leadership(NO_LEADER, NO_TERM, ())


class LeaderRow(msgspec.Struct, frozen=True, array_like=True):
    """One leader, as nodes announce it to each other."""

    topic_id: bytes
    partition: int
    leadership: Leadership


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[LeaderRow])


class LeaderTable:
    """The newest announcement of each group."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of a group's leader."""
        self._rows: dict[GroupId, Leadership] = {}
        self._changed = changed

    def get(self, group: GroupId) -> Leadership:
        return self._rows.get(group, UNKNOWN)

    def copy(self) -> "LeaderTable":
        """The table as it is now, for a thread."""
        copy = LeaderTable()
        copy._rows = dict(self._rows)
        return copy

    def learn(self, group: GroupId, heard: Leadership) -> bool:
        """Whether the announcement is new. Only one leader announces itself in a term, so a later one is newer."""
        known = self._rows.get(group)
        if known is not None and (heard.term < known.term or heard == known):
            return False
        self._rows[group] = heard
        self._changed()
        return True

    def lost(self, group: GroupId, term: Term, me: NodeId) -> None:
        """This node is in `term` of the group and knows no leader: leaders of earlier terms do not lead any more, and
        this node does not either. Another node may lead this term without this replica having heard from it."""
        known = self._rows.get(group)
        if known is not None and (known.term < term or known.leader == me):
            self._rows[group] = Leadership(NO_LEADER, known.term, ())

    def forget(self, topic_ids: Container[UUID | None]) -> None:
        """Forgets the groups of these topics, which were deleted."""
        self._rows = {group: row for group, row in self._rows.items() if group.topic_id not in topic_ids}

    def led_by(self, node: NodeId) -> Iterator[tuple[GroupId, Leadership]]:
        return ((group, row) for group, row in self._rows.items() if row.leader == node)


def encode_rows(rows: Collection[tuple[GroupId, Leadership]]) -> bytes:
    return _ENCODER.encode([LeaderRow(group.topic_id.bytes, group.partition, row) for group, row in rows])


def decode_rows(data: bytes | memoryview) -> list[LeaderRow]:
    """Raises msgspec.DecodeError, or ValueError for more than MAX_ROWS."""
    rows = _DECODER.decode(data)
    if len(rows) > MAX_ROWS:
        raise ValueError(f"{len(rows)} leaders in one frame: expected {MAX_ROWS} at most")
    return rows
