"""Quotas on the Kafka port, as Kafka keeps them: a request above a quota is answered at once, and the response says for
how long the client is throttled. For so long the port does not read from its connection and starts no more of its
requests.

    Produce                   the bytes of the request, counted when its batches are appended
    Fetch                     the bytes of records. A throttled Fetch is answered without records, and these are not
                              counted. One batch that exceeds the quota by itself is sent, else it would never be
    ShareFetch                the bytes of records, which are sent in any case: they are leased by now
    CreateTopics, ...         the partitions: the handlers count them (`handlers.topics`)
    all requests              how long they keep the event loop busy, in percent; not those before a login

Everything is counted per request, and nothing while no quota is set.
"""

import inspect
import time
from collections.abc import Coroutine, Generator
from typing import Any, Protocol

from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire import ApiKey, Message, RequestHeader, decode_response
from penstock.kafka.wire.messages.fetch import FetchResponse
from penstock.kafka.wire.messages.share_fetch import ShareFetchResponse
from penstock.node.access import Quotas
from penstock.security.quotas import QuotaKind
from penstock.security.throttling import request_share
from penstock.types import Caller

MUTATIONS = frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS})
LENGTH_BYTES = 4


class ThrottledConnection(Protocol):
    """A connection, as far as it matters here."""

    def throttle(self, milliseconds: int) -> None:
        """Reads and starts nothing for so long."""
        ...


class BusyTime:
    """Awaits a coroutine, and adds up for how long it kept the event loop busy."""

    def __init__(self, coroutine: Coroutine[Any, None, Message | None]) -> None:
        self._coroutine = coroutine
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, None, Message | None]:
        coroutine, problem = self._coroutine, None
        while True:
            began = time.perf_counter()
            try:
                waited = coroutine.send(None) if problem is None else coroutine.throw(problem)
            except StopIteration as done:
                result: Message | None = done.value
                return result
            finally:
                self.seconds += time.perf_counter() - began
            try:
                yield waited
                problem = None
            except BaseException as thrown:  # noqa: BLE001 - such as CancelledError: the coroutine gets it
                problem = thrown


class Throttle:
    """Handles requests while quotas are set."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def handle(
        self,
        connection: ThrottledConnection,
        header: RequestHeader,
        context: RequestContext,
        request: Message,
        size: int,
    ) -> Message | Coroutine[None, None, Message | None] | None:
        """The handler's response with its throttle time, or a coroutine for it. `size` is the request's."""
        if context.api.before_login:
            response: Message | Coroutine[None, None, Message | None] | None
            response = context.api.handler(context, request)
            return response
        began = time.perf_counter()
        response = context.api.handler(context, request)
        work = _Work(self._quotas, connection, header.api_key, context.caller)
        work.busy_seconds = time.perf_counter() - began
        if header.api_key == ApiKey.PRODUCE:
            work.produced(size)
        if inspect.isawaitable(response):
            return _finish(work, BusyTime(response))
        return work.conclude(response)

    def forwarded(self, connection: ThrottledConnection, header: RequestHeader, frame: memoryview) -> None:
        """The controller's response to a request that was forwarded: the client is throttled as it says."""
        if header.api_key in MUTATIONS:
            _, response = decode_response(header.api_key, header.api_version, frame[LENGTH_BYTES:])
            connection.throttle(getattr(response, "throttle_time_ms", 0))


async def _finish(work: "_Work", response: BusyTime) -> Message | None:
    answer = await response
    work.busy_seconds += response.seconds
    return work.conclude(answer)


class _Work:
    """One request, and what is counted for it."""

    __slots__ = ("_api_key", "_caller", "_connection", "_quotas", "_throttle_ms", "busy_seconds")

    def __init__(self, quotas: Quotas, connection: ThrottledConnection, api_key: int, caller: Caller) -> None:
        self._quotas = quotas
        self._connection = connection
        self._api_key = api_key
        self._caller = caller
        self._throttle_ms = 0
        self.busy_seconds = 0.0

    def _throttle(self, kind: QuotaKind, throttle_ms: int) -> None:
        if throttle_ms:
            self._quotas.throttled(kind)
            self._throttle_ms = max(self._throttle_ms, throttle_ms)
            self._connection.throttle(throttle_ms)

    def produced(self, size: int) -> None:
        """Throttles at once and not when the batches are committed: a producer may have many requests under way."""
        kind = QuotaKind.PRODUCER_BYTE_RATE
        self._throttle(kind, self._quotas.record(kind, self._caller, size))

    def conclude(self, response: Message | None) -> Message | None:
        kind = QuotaKind.REQUEST_PERCENTAGE
        busy = request_share(self.busy_seconds * 1000)
        self._throttle(kind, self._quotas.record(kind, self._caller, busy))
        if isinstance(response, FetchResponse | ShareFetchResponse):
            self._fetched(response)
        told_ms = getattr(response, "throttle_time_ms", None)
        if told_ms is not None:
            if told_ms:
                self._throttle(QuotaKind.CONTROLLER_MUTATION_RATE, told_ms)
            response.throttle_time_ms = self._throttle_ms  # type: ignore[union-attr]
        return response

    def _fetched(self, response: FetchResponse | ShareFetchResponse) -> None:
        kind, quotas = QuotaKind.CONSUMER_BYTE_RATE, self._quotas
        size = sum(len(row.records or b"") for topic in response.responses for row in topic.partitions)
        if not size:
            return
        self._throttle(kind, quotas.record(kind, self._caller, size))
        if not self._throttle_ms or isinstance(response, ShareFetchResponse):
            return
        most = quotas.most_at_once(kind, self._caller)
        if most is None or size <= most:
            quotas.take_back(kind, self._caller, size)
            response.responses = []
