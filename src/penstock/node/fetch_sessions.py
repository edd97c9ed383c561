"""Fetch sessions (KIP-227): which partitions a consumer reads from this node, so that it need not name them all in
every request, and is not told of those that have not changed.

A consumer opens a session with epoch 0 and all of its partitions. Each following request (epoch 1, 2, ...) names only
partitions whose position has changed, and those to forget. It is answered with partitions that have records, an error
or another watermark.

A session costs work for partitions that change, not for all that it has: each of its rows watches its partition, and
`ready` holds the rows that the next request has to look at:

- rows that the request names,
- rows with records that the consumer has not fetched yet,
- rows whose last answer was an error,
- rows whose partition has committed something or changed its leader.

All rows are ready again after a change of access rules, and every RECHECK_SECONDS: a leader that has lost its replicas
refuses readers before anything happens to the partition.

Sessions are in memory and bounded. A session belongs to the caller that opened it: for others there is no such
session. It ends with its connection, because clients open another one when they connect again. If there are too many,
one makes room as in Kafka: the one that has not been used for IDLE_SECONDS; or the smallest one that is older than
that, if the new one is larger, because it saves less. Otherwise the new consumer gets no session, and names all
partitions each time.
"""

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.node.replication.fetch_waiter import CommitWatcher, FetchWaiter
from penstock.node.replication.partition import Partition
from penstock.types import Caller, Isolation

NO_SESSION = 0
OPENING_EPOCH = 0
FIRST_EPOCH = 1
LAST_EPOCH = 2**31 - 1
LAST_ID = 2**31 - 1

IDLE_SECONDS = 120.0
"""Kafka's."""
RECHECK_SECONDS = 5.0
"""Looking at a thousand rows takes some milliseconds."""

RowKey = tuple[str | UUID, int]
"""A topic's name or id, and a partition of it."""


class Wanted(Protocol):
    """The part of a Fetch request about one partition."""

    @property
    def partition(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int: ...
    @property
    def fetch_offset(self) -> int: ...
    @property
    def partition_max_bytes(self) -> int: ...


class Closable(Protocol):
    """A connection."""

    def when_closed(self, callback: Callable[[], None]) -> None: ...


class ReportedOffsets(NamedTuple):
    """The offsets of a partition, as the consumer was told last."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class FetchRow(CommitWatcher):
    """One partition of a session."""

    __slots__ = (
        "_session",
        "_source",
        "current_leader_epoch",
        "fetch_offset",
        "partition",
        "partition_max_bytes",
        "told",
        "topic",
        "topic_id",
    )

    def __init__(self, session: "FetchSession", topic: str, topic_id: UUID, partition: int) -> None:
        super().__init__(session.isolation)
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.current_leader_epoch = -1
        self.fetch_offset = 0
        self.partition_max_bytes = 0
        self.told: ReportedOffsets | None = None
        """None: the consumer was told nothing yet, or an error."""
        self._session = session
        self._source: Partition | None = None

    def want(self, wanted: Wanted) -> None:
        self.current_leader_epoch = wanted.current_leader_epoch
        self.fetch_offset = wanted.fetch_offset
        self.partition_max_bytes = wanted.partition_max_bytes

    def watch(self, source: Partition | None) -> None:
        """`source`: the partition, or None if it cannot be read now. A topic that was deleted and created again has
        another one."""
        if source is self._source:
            return
        if self._source is not None:
            self._source.remove_waiter(self)
        if source is not None:
            source.add_waiter(self)
        self._source = source

    def committed(self, size_bytes: int) -> None:
        self._session.changed(self)
        if self._session.waiter is not None:
            self._session.waiter.committed(size_bytes)

    def wake(self) -> None:
        self._session.changed(self)
        if self._session.waiter is not None:
            self._session.waiter.wake()


class FetchSession:
    """The partitions that one consumer reads."""

    __slots__ = (
        "changes",
        "closed",
        "connection",
        "epoch",
        "isolation",
        "opened_s",
        "owner",
        "ready",
        "recheck_s",
        "rows",
        "rules",
        "session_id",
        "used_s",
        "uses_ids",
        "waiter",
    )

    def __init__(
        self, session_id: int, owner: Caller, connection: Closable, uses_ids: bool, now_s: float
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.connection = connection
        self.uses_ids = uses_ids
        self.opened_s = self.used_s = now_s
        self.epoch = FIRST_EPOCH
        """The epoch that the next request must have."""
        self.isolation = Isolation.READ_UNCOMMITTED
        self.rows: dict[RowKey, FetchRow] = {}
        self.ready: dict[FetchRow, None] = {}
        """In the order in which they are read. A row that was answered with records goes to the end, so that no
        partition is always served before the others."""
        self.changes = 0
        """How many changes of its partitions the session was told of."""
        self.waiter: FetchWaiter | None = None
        """The request that waits for records."""
        self.rules: object = None
        """The access rules by which all rows were checked last."""
        self.recheck_s = 0.0
        self.closed = False

    def read_with(self, isolation: Isolation) -> None:
        """Rows watch for what readers of this isolation may see."""
        if isolation is self.isolation:
            return
        self.isolation = isolation
        for row in self.rows.values():
            row.watch(None)
            row.isolation = isolation
            self.ready[row] = None

    def want(self, topic: str, topic_id: UUID, wanted: Wanted) -> None:
        """Adds a partition, or changes it."""
        key = (topic_id if self.uses_ids else topic, wanted.partition)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = FetchRow(self, topic, topic_id, wanted.partition)
        row.want(wanted)
        self.ready[row] = None

    def forget(self, topic: str, topic_id: UUID, partition: int) -> None:
        row = self.rows.pop((topic_id if self.uses_ids else topic, partition), None)
        if row is not None:
            row.watch(None)
            self.ready.pop(row, None)

    def check_all(self, rules: object, now_s: float) -> None:
        """Makes all rows ready, if it is time or the rules have changed."""
        if rules is not self.rules or now_s >= self.recheck_s:
            self.rules = rules
            self.recheck_s = now_s + RECHECK_SECONDS
            self.ready.update(dict.fromkeys(self.rows.values()))

    def changed(self, row: FetchRow) -> None:
        self.ready[row] = None
        self.changes += 1

    def answered(
        self, row: FetchRow, told: ReportedOffsets | None, *, has_records: bool, is_done: bool
    ) -> None:
        """The consumer is told this now. `is_done`: there is nothing more until the partition changes."""
        row.told = told
        if is_done or has_records:
            self.ready.pop(row, None)
        if not is_done:
            self.ready[row] = None

    def interrupt(self) -> None:
        """Ends the wait of a request."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.wake()


class FetchSessions:
    """All fetch sessions of a node."""

    def __init__(self, limits: Limits, *, now: Callable[[], float], random: Random | None = None) -> None:
        self._limit = limits.max_fetch_sessions
        self._rows_limit = limits.max_fetch_session_partitions
        self._session_limit = limits.max_partitions_per_session
        self._now = now
        self._random = random or Random()
        self._sessions: dict[int, FetchSession] = {}
        """The least recently used ones first."""
        self._by_connection: dict[Closable, FetchSession | None] = {}
        """`when_closed` was called for each connection in here."""
        self.rows = 0
        """The number of partitions in all sessions."""
        self.opened = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def open(self, owner: Caller, connection: Closable, uses_ids: bool, size: int) -> FetchSession | None:
        """A new session, which will have this many rows; ends the one that the connection had. None: there is no room
        for it."""
        self._end_of(connection)
        if size > min(self._session_limit, self._rows_limit - self.rows) or not self._has_room(size):
            return None
        session = FetchSession(self._new_id(), _without_client_id(owner), connection, uses_ids, self._now())
        self._sessions[session.session_id] = session
        self.opened += 1
        if connection not in self._by_connection:
            connection.when_closed(lambda: self._closed(connection))
        self._by_connection[connection] = session
        return session

    def find(self, session_id: int, epoch: int, owner: Caller, uses_ids: bool) -> FetchSession:
        """The session of a request. Its epoch is the next one from now on, and an earlier request that still waits ends
        without records."""
        session = self._owned(session_id, owner)
        if session is None:
            message = f"there is no fetch session {session_id} of {owner.principal}"
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, message)
        if epoch != session.epoch:
            message = f"fetch session epoch {epoch}: expected {session.epoch}"
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, message)
        if uses_ids is not session.uses_ids:
            message = "a fetch session names topics by id, or by name, from its beginning to its end"
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, message)
        session.epoch = FIRST_EPOCH if epoch == LAST_EPOCH else epoch + 1
        session.used_s = self._now()
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.interrupt()
        return session

    def want(self, session: FetchSession, topic: str, topic_id: UUID, wanted: Iterable[Wanted]) -> None:
        """Adds partitions of a topic, or changes them. If the session has too many then, or all sessions together, it
        ends: its consumer goes on without one."""
        for one in wanted:
            before = len(session.rows)
            session.want(topic, topic_id, one)
            self.rows += len(session.rows) - before
            if self.rows > self._rows_limit or len(session.rows) > self._session_limit:
                self.close(session)
                message = f"fetch session {session.session_id} was closed: it has too many partitions"
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, message)

    def forget(self, session: FetchSession, topic: str, topic_id: UUID, partitions: Iterable[int]) -> None:
        before = len(session.rows)
        for partition in partitions:
            session.forget(topic, topic_id, partition)
        self.rows += len(session.rows) - before

    def end(self, session_id: int, owner: Caller) -> None:
        """The consumer ends a session, or begins another one in its place."""
        session = self._owned(session_id, owner)
        if session is not None:
            self.close(session)

    def close(self, session: FetchSession) -> None:
        if session.closed:
            return
        session.closed = True
        del self._sessions[session.session_id]
        if self._by_connection.get(session.connection) is session:
            self._by_connection[session.connection] = None
        self.rows -= len(session.rows)
        for row in session.rows.values():
            row.watch(None)
        session.interrupt()

    def _owned(self, session_id: int, owner: Caller) -> FetchSession | None:
        session = self._sessions.get(session_id)
        return session if session is not None and session.owner == _without_client_id(owner) else None

    def _new_id(self) -> int:
        while (session_id := self._random.randint(1, LAST_ID)) in self._sessions:
            pass
        return session_id

    def _end_of(self, connection: Closable) -> None:
        session = self._by_connection.get(connection)
        if session is not None:
            self.close(session)

    def _closed(self, connection: Closable) -> None:
        self._end_of(connection)
        self._by_connection.pop(connection, None)

    def _has_room(self, size: int) -> bool:
        if len(self._sessions) < self._limit or not self._sessions:
            return len(self._sessions) < self._limit
        now_s = self._now()
        loser = next(iter(self._sessions.values()))
        if now_s - loser.used_s <= IDLE_SECONDS:
            old = [one for one in self._sessions.values() if now_s - one.opened_s > IDLE_SECONDS]
            smallest = min(old, key=lambda one: len(one.rows), default=None)
            if smallest is None or len(smallest.rows) >= size:
                return False
            loser = smallest
        self.evicted += 1
        self.close(loser)
        return True


def _without_client_id(caller: Caller) -> Caller:
    """Everything by which access is decided."""
    return Caller(caller.principal, caller.host, "", caller.groups)
