"""How many fetch sessions a node keeps, and whose they are."""

from collections.abc import Callable

import pytest

from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.wire import NO_UUID
from penstock.kafka.wire.messages.fetch import FetchPartition
from penstock.node.fetch_sessions import IDLE_SECONDS, LAST_EPOCH, FetchSession, FetchSessions
from penstock.types import Caller

ALICE = Caller("User:alice", "10.0.0.1", "consumer-1")
MANY = 1_000
LIMITS = Limits(max_fetch_sessions=3, max_fetch_session_partitions=MANY, max_partitions_per_session=MANY - 5)


class Connection:
    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def when_closed(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        [callback] = self._callbacks
        callback()


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> FetchSessions:
    return FetchSessions(LIMITS, now=clock)


def opened(
    sessions: FetchSessions, size: int = 1, owner: Caller = ALICE, connection: Connection | None = None
) -> FetchSession | None:
    session = sessions.open(owner, connection or Connection(), False, size)
    if session is not None:
        sessions.want(session, "t", NO_UUID, [FetchPartition(partition=index) for index in range(size)])
    return session


def open_one(sessions: FetchSessions, size: int = 1, connection: Connection | None = None) -> FetchSession:
    session = opened(sessions, size, connection=connection)
    assert session is not None
    return session


def refusal(
    sessions: FetchSessions, session: FetchSession, epoch: int, owner: Caller = ALICE, by_id: bool = False
) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        sessions.find(session.session_id, epoch, owner, by_id)
    return refused.value.code


# --- one session


def test_epochs_follow_each_other_and_begin_again_after_the_last(sessions: FetchSessions) -> None:
    session = open_one(sessions)
    for epoch in (1, 2, 3):
        assert sessions.find(session.session_id, epoch, ALICE, False) is session
    for wrong in (1, 3, 5):
        assert refusal(sessions, session, wrong) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch = LAST_EPOCH
    sessions.find(session.session_id, LAST_EPOCH, ALICE, False)
    assert session.epoch == 1


@pytest.mark.parametrize(
    "other",
    [
        Caller("User:bob", "10.0.0.1", "consumer-1"),
        Caller("User:alice", "10.0.0.2", "consumer-1"),
        Caller("User:alice", "10.0.0.1", "consumer-1", ("Group:ops",)),
    ],
    ids=["user", "address", "groups"],
)
def test_a_session_does_not_exist_for_other_callers(sessions: FetchSessions, other: Caller) -> None:
    session = open_one(sessions)
    assert refusal(sessions, session, 1, other) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.end(session.session_id, other)
    renamed = Caller("User:alice", "10.0.0.1", "consumer-2")
    assert sessions.find(session.session_id, 1, renamed, False) is session


def test_a_session_names_topics_in_one_way(sessions: FetchSessions) -> None:
    session = open_one(sessions)
    assert refusal(sessions, session, 1, by_id=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert sessions.find(session.session_id, 1, ALICE, False) is session


def test_a_session_ends_with_its_connection(sessions: FetchSessions) -> None:
    connection = Connection()
    first = open_one(sessions, 5, connection)
    second = open_one(sessions, 3, connection)
    assert (len(sessions), sessions.rows) == (1, 3), "a connection has one session"
    assert refusal(sessions, first, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    connection.close()
    assert (len(sessions), sessions.rows) == (0, 0)
    assert refusal(sessions, second, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# --- limits


def test_a_young_session_makes_no_room(sessions: FetchSessions) -> None:
    kept = [open_one(sessions, 5) for _ in range(3)]
    assert opened(sessions, 50) is None
    assert not any(one.closed for one in kept)


def test_a_session_that_is_not_used_makes_room(sessions: FetchSessions, clock: Clock) -> None:
    first, second, third = (open_one(sessions, 5) for _ in range(3))
    clock.now_s += IDLE_SECONDS + 1
    for used in (first, third):
        sessions.find(used.session_id, 1, ALICE, False)
    assert opened(sessions, 1) is not None
    assert [one.closed for one in (first, second, third)] == [False, True, False]
    assert sessions.evicted == 1


def test_the_smallest_old_session_makes_room_for_a_larger_one(sessions: FetchSessions, clock: Clock) -> None:
    kept = [open_one(sessions, size) for size in (7, 5, 6)]
    clock.now_s += IDLE_SECONDS + 1
    for one in kept:
        sessions.find(one.session_id, 1, ALICE, False)
    assert opened(sessions, 5) is None, "one of the same size saves no more"
    assert opened(sessions, 6) is not None
    assert [one.closed for one in kept] == [False, True, False]


def test_sessions_have_so_many_partitions_together(sessions: FetchSessions) -> None:
    first = open_one(sessions, MANY - 10)
    assert opened(sessions, 11) is None
    second = open_one(sessions, 10)
    more = [FetchPartition(partition=index) for index in range(11)]
    with pytest.raises(KafkaError) as refused:
        sessions.want(second, "t", NO_UUID, more)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (second.closed, first.closed, sessions.rows) == (True, False, MANY - 10)
    sessions.forget(first, "t", NO_UUID, range(100))
    assert sessions.rows == MANY - 110


def test_a_node_may_have_no_sessions(clock: Clock) -> None:
    assert opened(FetchSessions(Limits(max_fetch_sessions=0), now=clock)) is None


def test_one_session_has_so_many_partitions(sessions: FetchSessions) -> None:
    most = LIMITS.max_partitions_per_session
    assert opened(sessions, most + 1) is None
    session = open_one(sessions, most)
    with pytest.raises(KafkaError, match="too many partitions"):
        sessions.want(session, "u", NO_UUID, [FetchPartition(partition=0)])
    assert (session.closed, sessions.rows) == (True, 0)
