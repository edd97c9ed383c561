"""Queues and subscriptions as an asynchronous client sees them. For one event loop; several tasks may share them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self

from penstock.batch import Record
from penstock.client.aio.driver import Settlement, TaskDriver
from penstock.client.amounts import Seconds
from penstock.client.feed_session import FeedSession
from penstock.client.received import Place, Received
from penstock.client.session import Item
from penstock.client.streams import FAREWELL_SECONDS, retry_delay_ms, settled_already
from penstock.client.work_session import Verdict, WorkSession


class AsyncStream(Generic[Item]):
    """What came and is to be dealt with. Iterating waits for more, for ever, or until it was quiet for `idle_s`."""

    _driver: TaskDriver[Item]

    def __init__(self, idle_s: float | None, on_close: Callable[[Any], None]) -> None:
        self._idle_s = idle_s
        self._on_close = on_close

    async def receive(self, timeout: float | None = None) -> Item | None:
        """The next one; None if none came within so many seconds (None: waits for one), or it was closed."""
        return await self._driver.receive(timeout)

    async def __aiter__(self) -> AsyncIterator[Item]:
        while (item := await self._driver.receive_unless_idle(self._idle_s)) is not None:
            yield item

    async def flush(self, timeout: float | None = None) -> bool:
        """Waits until everything that was acked is durable; whether it is."""
        return await self._driver.flush(timeout)

    def drain(self) -> None:
        """Ends iterations and returns what nobody has taken, which does not count as a delivery; what is in hand can
        still be settled. Then `close`."""
        self._driver.drain()

    async def close(self, timeout: float | None = FAREWELL_SECONDS) -> None:
        """Waits until what was acked is durable, then hangs up. What was taken and not settled is delivered again."""
        await self._driver.close(timeout)
        self._on_close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncJob(Received):
    """A job in hand. Its lease is renewed by itself until it is settled, which counts once: the same said again is the
    same settlement, and another verdict is LeaseLost where it is awaited. None of them has to be awaited: awaited, they
    return when the broker has it on disk.

    `async with job:` acks at the end of the block, and has it retried when the block raises.
    """

    __slots__ = ("_queue", "_settlement", "_verdict")

    def __init__(self, queue: "AsyncQueue", place: Place, record: Record, **facts: int) -> None:
        super().__init__(
            place, record, link=facts["link"], order=facts["order"], deliveries=facts["deliveries"]
        )
        self._queue = queue
        self._verdict: Verdict | None = None
        self._settlement: Settlement | None = None

    def ack(self) -> Settlement:
        """It is done and will not be delivered again."""
        return self._settle("accept")

    def retry(self, delay: Seconds | None = None) -> Settlement:
        """It is to be delivered again after so many seconds, from 0 to seven days (the nearest of them counts); None:
        as the queue's settings say."""
        return self._settle("retry", retry_delay_ms(delay))

    def reject(self) -> Settlement:
        """It can never be done: it goes to the dead-letter topic."""
        return self._settle("reject")

    def renew(self) -> Settlement:
        """Takes the lease anew from now on. Rarely needed: it is renewed by itself."""
        return self._queue._settle(self, "renew", None)

    @property
    def settled(self) -> bool:
        """Whether ack, retry or reject was said."""
        return self._verdict is not None

    @property
    def lost(self) -> bool:
        """Whether it is no longer this client's, although it was not settled here: somebody else may have it."""
        return not self.settled and not self._queue._holds(self)

    def _settle(self, verdict: Verdict, delay_ms: int | None = None) -> Settlement:
        if self._settlement is None:
            self._verdict = verdict
            self._settlement = self._queue._settle(self, verdict, delay_ms)
            return self._settlement
        if verdict != self._verdict:
            return self._queue._refuse(self, verdict)
        return self._settlement

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.settled:
            self.ack() if problem is None else self.retry()


class AsyncQueue(AsyncStream[AsyncJob]):
    """A consumer of a queue."""

    def __init__(
        self,
        open_session: Callable[[Callable[..., AsyncJob]], WorkSession[AsyncJob]],
        find_urls: Callable[[], Awaitable[list[str]]],
        *,
        idle_s: float | None,
        on_close: Callable[[Any], None],
    ) -> None:
        super().__init__(idle_s, on_close)
        self._session = open_session(lambda place, record, **facts: AsyncJob(self, place, record, **facts))
        self._driver = TaskDriver(self._session, find_urls, "queue")

    @property
    def lost_leases(self) -> int:
        """Jobs whose ack came too late: they were, or will be, delivered again."""
        return self._session.lost_leases

    def _settle(self, job: AsyncJob, verdict: Verdict, delay_ms: int | None) -> Settlement:
        settlement = self._driver.settlement()
        self._driver.tell(lambda now: self._session.settle(job, verdict, delay_ms, settlement, now))
        return settlement

    def _refuse(self, job: AsyncJob, verdict: Verdict) -> Settlement:
        settlement = self._driver.settlement()
        settlement.resolve(settled_already(job, job._verdict, verdict))
        return settlement

    def _holds(self, job: AsyncJob) -> bool:
        return self._session.holds(job)


class AsyncMessage(Received):
    """A message that was pushed."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: "AsyncSubscription", place: Place, record: Record, **facts: int) -> None:
        super().__init__(place, record, link=facts["link"], order=facts["order"])
        self._subscription = subscription

    def ack(self) -> Settlement:
        """The subscription goes on behind this message: it is for all that came before it of the same partition, too.
        Await it if you must know that it is durable."""
        return self._subscription._ack(self)


class AsyncSubscription(AsyncStream[AsyncMessage]):
    """A subscriber: messages in the log's order, from where its last ack left off."""

    def __init__(
        self,
        open_session: Callable[[Callable[..., AsyncMessage]], FeedSession[AsyncMessage]],
        find_urls: Callable[[], Awaitable[list[str]]],
        *,
        idle_s: float | None,
        on_close: Callable[[Any], None],
    ) -> None:
        super().__init__(idle_s, on_close)
        self._session = open_session(
            lambda place, record, **facts: AsyncMessage(self, place, record, **facts)
        )
        self._driver = TaskDriver(self._session, find_urls, "subscription")

    @property
    def resumed(self) -> bool:
        """Whether it went on where it was, at its last connection, and did not begin anew."""
        return self._session.resumed

    @property
    def times_inactive(self) -> int:
        """How often it was sent away because an ack did not come in time. It came back by itself each time."""
        return self._session.times_inactive

    async def unsubscribe(self, timeout: float | None = FAREWELL_SECONDS) -> None:
        """Forgets the subscription for good, with its place, and closes."""
        settlement = self._driver.settlement()
        self._driver.tell(lambda now: self._session.unsubscribe(settlement))
        await settlement
        await self.close(timeout)

    def _ack(self, message: AsyncMessage) -> Settlement:
        settlement = self._driver.settlement()
        self._driver.tell(lambda now: self._session.ack(message, settlement))
        return settlement
