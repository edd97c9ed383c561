"""Share sessions: which partitions a consumer fetches from this node, so that it need not name them in every request.

A consumer opens a session with epoch 0, names changes with each following request (1, 2, ...), and ends it with -1.
Sessions are in memory. When a session ends, by request or because its connection broke, its messages are released.
"""

from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from penstock.errors import ErrorCode, KafkaError
from penstock.node.queues.consumers import ConsumerIdentity

OPENING_EPOCH = 0
FINAL_EPOCH = -1
LAST_EPOCH = 2**31 - 1

SessionPartition = tuple[UUID, int]
"""A topic's id, and a partition of it."""
SessionKey = tuple[str, str]
"""Group and member."""


class ShareSession:
    """The partitions of one consumer."""

    __slots__ = ("closed", "epoch", "group_id", "identity", "member_id", "partitions")

    def __init__(self, group_id: str, identity: ConsumerIdentity) -> None:
        self.group_id = group_id
        self.member_id = identity.consumer_id
        self.identity = identity
        self.epoch = OPENING_EPOCH
        self.partitions: dict[SessionPartition, None] = {}
        self.closed = False

    def rotate(self) -> None:
        """Another partition is first next time, so that none is always served before the others."""
        if len(self.partitions) > 1:
            first = next(iter(self.partitions))
            del self.partitions[first]
            self.partitions[first] = None


class ShareSessions:
    """All sessions of a node."""

    def __init__(
        self,
        limit: int,
        partitions_limit: int,
        on_close: Callable[[ShareSession], None],
        on_removed: Callable[[ShareSession, SessionPartition], None],
    ) -> None:
        """`on_removed`: a session no longer fetches from a partition."""
        self._limit = limit
        self._partitions_limit = partitions_limit
        self._on_close = on_close
        self._on_removed = on_removed
        self._sessions: dict[SessionKey, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    def open(self, group_id: str, identity: ConsumerIdentity) -> ShareSession:
        """A new session; closes the one that the same member had."""
        member_id = identity.consumer_id
        old = self._sessions.get((group_id, member_id))
        if old is not None:
            self.close(old)
        if len(self._sessions) >= self._limit:
            message = f"this node has {self._limit} share sessions, its limit (limits.max_share_sessions)"
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, message)
        session = ShareSession(group_id, identity)
        self._sessions[group_id, member_id] = session
        session.epoch = 1
        return session

    def find(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session of a request. Its epoch is the next one from now on."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"{member_id!r} has no session on this node")
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            message = f"share session epoch {epoch}: expected {session.epoch}"
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        session.epoch = 1 if epoch == LAST_EPOCH else epoch + 1
        return session

    def change(
        self, session: ShareSession, added: Iterable[SessionPartition], removed: Iterable[SessionPartition]
    ) -> None:
        for partition in removed:
            session.partitions.pop(partition, None)
            self._on_removed(session, partition)
        for partition in added:
            session.partitions.setdefault(partition)
        if len(session.partitions) > self._partitions_limit:
            self.close(session)
            message = f"a share session of more than {self._partitions_limit} partitions"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)

    def close(self, session: ShareSession) -> None:
        """Releases the messages of its member."""
        if not session.closed:
            session.closed = True
            self._sessions.pop((session.group_id, session.member_id), None)
            self._on_close(session)
