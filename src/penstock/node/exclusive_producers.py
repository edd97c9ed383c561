"""Partitions that take records from one producer at a time (`penstock.producer.exclusive`), and who has them.

The first producer that has written has the partition until its connection ends. An idempotent producer that comes back
under its id takes its place over from the connection that it lost, which this node may not have noticed yet. Holding a
partition is nothing that outlives the leader: under the next one, in another term, the first to write has it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from penstock.errors import ErrorCode, KafkaError
from penstock.types import GroupId, Term, TopicPartition

NO_PRODUCER_ID = -1


class Line(Protocol):
    """A connection."""

    peer: str

    def when_closed(self, callback: Callable[[], None]) -> None: ...


class Writer(NamedTuple):
    """Who writes."""

    line: Line
    client_id: str
    producer_id: int


class _Holder(NamedTuple):
    writer: Writer
    term: Term
    since_ms: int


class ExclusiveProducers:
    """Who has which partition. Owned by the event loop."""

    def __init__(self) -> None:
        self._holders: dict[GroupId, _Holder] = {}
        self._held: dict[Line, dict[GroupId, None]] = {}
        """What each connection has. One that is in here will be heard of when it ends."""

    def __len__(self) -> int:
        return len(self._holders)

    def check(self, name: TopicPartition, group: GroupId, term: Term, writer: Writer) -> None:
        """KafkaError(POLICY_VIOLATION) says who else has the partition."""
        holder = self._holders.get(group)
        if holder is None or holder.term != term or _is_same(holder.writer, writer):
            return
        since = datetime.fromtimestamp(holder.since_ms / 1000, UTC).isoformat(timespec="seconds")
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{name} takes records from one producer at a time (penstock.producer.exclusive): client "
            f"{holder.writer.client_id!r} at {holder.writer.line.peer} has it since {since}; write again when that one "
            "has closed its connection",
        )

    def take(self, group: GroupId, term: Term, writer: Writer, now_ms: int) -> None:
        """It has written, after `check`."""
        holder = self._holders.get(group)
        if holder is not None and holder.term == term:
            if holder.writer == writer:
                return
            now_ms = holder.since_ms
        if holder is not None:
            self._held.get(holder.writer.line, {}).pop(group, None)
        self._holders[group] = _Holder(writer, term, now_ms)
        line = writer.line
        held = self._held.get(line)
        if held is None:
            held = self._held[line] = {}
            line.when_closed(lambda: self._ended(line))
        held[group] = None

    def _ended(self, line: Line) -> None:
        for group in self._held.pop(line, {}):
            del self._holders[group]


def _is_same(holder: Writer, writer: Writer) -> bool:
    if holder.line is writer.line:
        return True
    return writer.producer_id != NO_PRODUCER_ID and holder.producer_id == writer.producer_id
