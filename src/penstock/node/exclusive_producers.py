"""Partitions that take records from one producer at a time (`penstock.producer.exclusive`), and their holders.

The first producer that writes holds the partition until its connection ends. An idempotent producer that reconnects
under its producer id takes over from its lost connection, whose end this node may not have noticed yet. A holder does
not survive the leader: in the next term the first producer that writes holds the partition.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from penstock.errors import ErrorCode, KafkaError
from penstock.types import GroupId, Term, TopicPartition

NO_PRODUCER_ID = -1


class Connection(Protocol):
    """A client's connection."""

    peer: str

    def when_closed(self, callback: Callable[[], None]) -> None: ...


class Writer(NamedTuple):
    """A producer on its connection."""

    connection: Connection
    client_id: str
    producer_id: int


class _Holder(NamedTuple):
    writer: Writer
    term: Term
    since_ms: int


class ExclusiveProducers:
    """The holder of each partition. Owned by the event loop."""

    def __init__(self) -> None:
        self._holders: dict[GroupId, _Holder] = {}
        self._held: dict[Connection, dict[GroupId, None]] = {}
        """The partitions that each connection holds. `when_closed` was called for each connection in here."""

    def __len__(self) -> int:
        return len(self._holders)

    def check(self, name: TopicPartition, group: GroupId, term: Term, writer: Writer) -> None:
        """KafkaError(POLICY_VIOLATION) names the producer that holds the partition."""
        holder = self._holders.get(group)
        if holder is None or holder.term != term or _is_same(holder.writer, writer):
            return
        since = datetime.fromtimestamp(holder.since_ms / 1000, UTC).isoformat(timespec="seconds")
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{name} takes records from one producer at a time (penstock.producer.exclusive): client "
            f"{holder.writer.client_id!r} at {holder.writer.connection.peer} has held it since {since}; write again "
            "when that client has closed its connection",
        )

    def take(self, group: GroupId, term: Term, writer: Writer, now_ms: int) -> None:
        """The producer has written, after `check`."""
        holder = self._holders.get(group)
        if holder is not None and holder.term == term:
            if holder.writer == writer:
                return
            now_ms = holder.since_ms
        if holder is not None:
            self._held.get(holder.writer.connection, {}).pop(group, None)
        self._holders[group] = _Holder(writer, term, now_ms)
        connection = writer.connection
        held = self._held.get(connection)
        if held is None:
            held = self._held[connection] = {}
            connection.when_closed(lambda: self._ended(connection))
        held[group] = None

    def _ended(self, connection: Connection) -> None:
        for group in self._held.pop(connection, {}):
            del self._holders[group]


def _is_same(holder: Writer, writer: Writer) -> bool:
    if holder.connection is writer.connection:
        return True
    return writer.producer_id != NO_PRODUCER_ID and holder.producer_id == writer.producer_id
