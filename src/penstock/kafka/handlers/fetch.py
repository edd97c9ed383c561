"""Fetch: sends stored batches to readers, at once when there are enough, or when enough have been committed.

A request names all of its partitions, or it belongs to a session (`node.fetch_sessions`), and names changes.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from uuid import UUID

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.fetch_reading import FetchReader, PartitionRead, refused
from penstock.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.node import FetchWaiter, Partition
from penstock.node.fetch_sessions import NO_SESSION, OPENING_EPOCH, FetchRow, FetchSession, ReportedOffsets
from penstock.node.limits.limited_log import LimitedLog
from penstock.types import Isolation, Offset

log = logging.getLogger("penstock.kafka")
_warnings = LimitedLog(log, time.monotonic)

TOPICS_BY_ID_SINCE_VERSION = 13


def fetch(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Coroutine[None, None, FetchResponse]:
    if _replica_id(request) >= 0:
        return _refuse_replica(context, request)
    try:
        attempt = _attempt(context, request)
    except KafkaError as wrong_session:
        return _session_error(wrong_session.code)
    attempt.read()
    if attempt.is_cold:
        return _load_and_read(attempt)
    if attempt.lacks_memory:
        return _wait_for_memory(attempt)
    if attempt.enough:
        return attempt.answer()
    return _wait_and_read(attempt)


def _replica_id(request: FetchRequest) -> int:
    return request.replica_state.replica_id if request.replica_state is not None else request.replica_id


def _refuse_replica(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Nodes replicate over their own port. A client that fetches as a replica must not believe that it is one: acks
    would wait for it, and records that it reads might never be committed."""
    peer, replica_id = context.connection.peer, _replica_id(request)
    _warnings.warn("replica", f"{peer} fetches as replica {replica_id}, and only consumers may fetch here")
    return FetchResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        session_id=NO_SESSION,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[refused(row.partition, ErrorCode.INVALID_REQUEST) for row in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _session_error(code: ErrorCode) -> FetchResponse:
    return FetchResponse(error_code=code, session_id=NO_SESSION, responses=[])


async def _load_and_read(attempt: "_Attempt") -> FetchResponse:
    attempt.drop()
    await attempt.load()
    attempt.read()
    return await (
        _wait_for_memory(attempt) if attempt.lacks_memory or attempt.enough else _wait_and_read(attempt)
    )


async def _wait_and_read(attempt: "_Attempt") -> FetchResponse:
    attempt.drop()
    if not attempt.outdated:  # this starts a turn of the loop after the first read
        await attempt.wait()
    attempt.read()
    return await (_load_and_read(attempt) if attempt.is_cold else _wait_for_memory(attempt))


async def _wait_for_memory(attempt: "_Attempt") -> FetchResponse:
    while attempt.lacks_memory:
        await attempt.wait_for_memory()
        attempt.read()
    return attempt.answer()


# --- sessions


def _attempt(context: RequestContext, request: FetchRequest) -> "_Attempt":
    sessions, caller = context.node.fetch_sessions, context.caller
    by_id = context.api_version >= TOPICS_BY_ID_SINCE_VERSION
    if request.session_epoch > OPENING_EPOCH:
        session = sessions.find(request.session_id, request.session_epoch, caller, by_id)
        _change(context, session, request)
        if session.rows:
            return _SessionAttempt(context, request, session)
        sessions.close(session)  # it has nothing to wait for, and its consumer will open another one
        return _FullAttempt(context, request)
    if request.session_id != NO_SESSION:
        sessions.end(request.session_id, caller)
    if request.session_epoch == OPENING_EPOCH:
        size = sum(len(topic.partitions) for topic in request.topics)
        opened = sessions.open(caller, context.connection, by_id, size) if size else None
        if opened is not None:
            _change(context, opened, request)
            return _SessionAttempt(context, request, opened, is_full=True)
    return _FullAttempt(context, request)


def _change(context: RequestContext, session: FetchSession, request: FetchRequest) -> None:
    sessions = context.node.fetch_sessions
    session.read_with(Isolation.from_wire(request.isolation_level))
    for topic in request.topics:
        sessions.want(session, topic.topic, topic.topic_id, topic.partitions)
    for gone in request.forgotten_topics_data:
        sessions.forget(session, gone.topic, gone.topic_id, gone.partitions)


# --- attempts


class _Attempt(FetchReader, ABC):
    """Reads the partitions of one request, as often as needed."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        super().__init__(context, request)
        self._response = FetchResponse(error_code=ErrorCode.NONE, session_id=NO_SESSION, responses=[])

    @property
    @abstractmethod
    def enough(self) -> bool:
        """Errors are answered at once, as well as requests that name nothing to wait for, or do not wait."""

    @property
    @abstractmethod
    def outdated(self) -> bool:
        """Whether a partition has new records, or was closed, since it was read: a wait would miss that."""

    def read(self) -> None:
        self._begin()
        self._response.responses = self._read_topics()
        self._finish(self._response)

    @abstractmethod
    def _read_topics(self) -> list[FetchableTopicResponse]: ...

    def answer(self) -> FetchResponse:
        """The response to send. Called once, right after the last read."""
        return self._response

    def drop(self) -> None:
        """Lets go of the records: they will be read again."""
        self._response.responses = []
        self._give_back()

    async def wait(self) -> None:
        """Waits until the missing bytes are committed, or the request's max_wait_ms ends."""
        loop = asyncio.get_running_loop()
        missing = self._request.min_bytes - self._bytes
        waiter = FetchWaiter(missing, loop.create_future(), self._isolation)
        timer = loop.call_later(self._request.max_wait_ms / 1000, waiter.wake)
        end_watch = self._watch(waiter)
        unwatch = self._context.node.access.watch(waiter.wake)  # the next read finds out what is allowed
        try:
            await waiter.future
        finally:
            timer.cancel()
            unwatch()
            end_watch()

    @abstractmethod
    def _watch(self, waiter: FetchWaiter) -> Callable[[], None]:
        """Has the waiter told of commits. Returns how to stop that."""


class _FullAttempt(_Attempt):
    """A request that names all of its partitions."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        super().__init__(context, request)
        self._partitions: list[Partition] = []
        self._ends: list[Offset] = []

    @property
    def enough(self) -> bool:
        is_failed_or_empty = self._failed or not self._partitions
        return is_failed_or_empty or self._bytes >= self._request.min_bytes or self._request.max_wait_ms <= 0

    @property
    def outdated(self) -> bool:
        return any(
            partition.end_for(self._isolation) != seen or partition.closed
            for partition, seen in zip(self._partitions, self._ends, strict=True)
        )

    def _read_topics(self) -> list[FetchableTopicResponse]:
        self._partitions = []
        self._ends = []
        return [
            FetchableTopicResponse(
                topic=topic.topic, topic_id=topic.topic_id, partitions=self._read_partitions(topic)
            )
            for topic in self._request.topics
        ]

    def _read_partitions(self, topic: FetchTopic) -> list[PartitionData]:
        rows = []
        for wanted in topic.partitions:
            found = self._read_one(topic.topic, topic.topic_id, wanted)
            rows.append(found.data)
            if found.source is not None:
                self._partitions.append(found.source)
                self._ends.append(found.end)
        return rows

    def _watch(self, waiter: FetchWaiter) -> Callable[[], None]:
        partitions = self._partitions
        for partition in partitions:
            partition.add_waiter(waiter)

        def end() -> None:
            for partition in partitions:
                partition.remove_waiter(waiter)

        return end


class _SessionAttempt(_Attempt):
    """A request of a session. Its rows stay ready until they have been answered, so that a request that waits and
    reads again leaves out nothing that it has found before."""

    def __init__(
        self, context: RequestContext, request: FetchRequest, session: FetchSession, *, is_full: bool = False
    ) -> None:
        super().__init__(context, request)
        self._session = session
        self._epoch = session.epoch
        self._is_full = is_full
        """Whether partitions are answered that have not changed: in the first response of a session."""
        self._found: list[tuple[FetchRow, PartitionRead]] = []
        self._changes = 0
        self._response.session_id = session.session_id

    @property
    def enough(self) -> bool:
        return self._failed or self._bytes >= self._request.min_bytes or self._request.max_wait_ms <= 0

    @property
    def outdated(self) -> bool:
        return self._session.changes != self._changes or self._is_over

    @property
    def _is_over(self) -> bool:
        """Whether the session was closed, or has a newer request."""
        return self._session.closed or self._session.epoch != self._epoch

    def _read_topics(self) -> list[FetchableTopicResponse]:
        session = self._session
        session.check_all(self._context.node.access.authorizer, asyncio.get_running_loop().time())
        self._changes = session.changes
        rows = list(session.rows.values() if self._is_full else session.ready)
        self._found = [(row, self._read_one(row.topic, row.topic_id, row)) for row in rows]
        topics: dict[str | UUID, FetchableTopicResponse] = {}
        for row, found in self._found:
            row.watch(None if session.closed else found.source)
            if self._is_full or _is_news(row, found.data):
                key = row.topic_id if session.uses_ids else row.topic
                topic = topics.get(key)
                if topic is None:
                    topic = FetchableTopicResponse(topic=row.topic, topic_id=row.topic_id, partitions=[])
                    topics[key] = topic
                topic.partitions.append(found.data)
        return list(topics.values())

    def answer(self) -> FetchResponse:
        if self._session.epoch != self._epoch:
            self.drop()
            return _session_error(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        for row, found in self._found:
            data = found.data
            self._session.answered(
                row,
                None if data.error_code else _told(data),
                has_records=bool(data.records),
                is_done=not data.error_code and row.fetch_offset >= found.end,
            )
        return self._response

    def _watch(self, waiter: FetchWaiter) -> Callable[[], None]:
        session = self._session
        session.waiter = waiter

        def end() -> None:
            if session.waiter is waiter:
                session.waiter = None

        return end


def _is_news(row: FetchRow, data: PartitionData) -> bool:
    return bool(data.error_code or data.records) or _told(data) != row.told


def _told(data: PartitionData) -> ReportedOffsets:
    return ReportedOffsets(data.high_watermark, data.last_stable_offset, data.log_start_offset)
