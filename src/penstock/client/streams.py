"""Queues and subscriptions as a blocking client sees them: things to iterate over, and what can be done with each item.

Everything here may be used from several threads at once. Several threads may iterate over one queue: each job goes to
one of them.
"""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Generic, Self

from penstock.batch import Record
from penstock.client.amounts import Seconds, retry_seconds
from penstock.client.errors import LeaseLost
from penstock.client.feed_session import FeedSession
from penstock.client.received import Place, Received
from penstock.client.session import Item
from penstock.client.threads import Settlement, ThreadDriver
from penstock.client.work_session import Verdict, WorkSession

FAREWELL_SECONDS: Final = 10.0
"""How long closing waits for the answers to what was said."""


class Stream(Generic[Item]):
    """What came and is to be dealt with. Iterating waits for more, for ever, or until it was quiet for `idle_s`."""

    _driver: ThreadDriver[Item]

    def __init__(self, idle_s: float | None, on_close: Callable[[Any], None]) -> None:
        self._idle_s = idle_s
        self._on_close = on_close

    def receive(self, timeout: float | None = None) -> Item | None:
        """The next one; None if none came within so many seconds (None: waits for one), or it was closed."""
        return self._driver.receive(timeout)

    def __iter__(self) -> Iterator[Item]:
        while (item := self._driver.receive_unless_idle(self._idle_s)) is not None:
            yield item

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until everything that was acked is durable; whether it is."""
        return self._driver.flush(timeout)

    def drain(self) -> None:
        """Ends iterations and returns what nobody has taken, which does not count as a delivery; what is in hand can
        still be settled. Then `close`."""
        self._driver.drain()

    def close(self, timeout: float | None = FAREWELL_SECONDS) -> None:
        """Waits until what was acked is durable, then hangs up. What was taken and not settled is delivered again."""
        self._driver.close(timeout)
        self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Job(Received):
    """A job in hand. Its lease is renewed by itself until it is settled, which counts once: the same said again is the
    same settlement, and another verdict is LeaseLost where it is waited for.

    `with job:` acks at the end of the block, and has it retried when the block raises.
    """

    __slots__ = ("_queue", "_settlement", "_verdict")

    def __init__(self, queue: "Queue", place: Place, record: Record, **facts: int) -> None:
        super().__init__(
            place, record, link=facts["link"], order=facts["order"], deliveries=facts["deliveries"]
        )
        self._queue = queue
        self._verdict: Verdict | None = None
        self._settlement: Settlement | None = None

    def ack(self) -> Settlement:
        """It is done and will not be delivered again. Returns at once; acks travel together. `.wait()` if you must know
        that it is durable; closing the queue waits for all of them."""
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
            settlement = self._settlement = self._queue._settle(self, verdict, delay_ms)
            self._verdict = verdict
            return settlement
        return self._settlement if verdict == self._verdict else self._queue._refuse(self, verdict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.settled:
            self.ack() if problem is None else self.retry()


class Queue(Stream[Job]):
    """A consumer of a queue."""

    def __init__(
        self,
        open_session: Callable[[Callable[..., Job]], WorkSession[Job]],
        find_urls: Callable[[], list[str]],
        *,
        idle_s: float | None,
        on_close: Callable[[Any], None],
    ) -> None:
        super().__init__(idle_s, on_close)
        self._session = open_session(lambda place, record, **facts: Job(self, place, record, **facts))
        self._driver = ThreadDriver(self._session, find_urls, "queue")

    @property
    def lost_leases(self) -> int:
        """Jobs whose ack came too late: they were, or will be, delivered again."""
        return self._session.lost_leases

    def _settle(self, job: Job, verdict: Verdict, delay_ms: int | None) -> Settlement:
        settlement = Settlement(self._driver)
        self._driver.tell(lambda now: self._session.settle(job, verdict, delay_ms, settlement, now))
        return settlement

    def _refuse(self, job: Job, verdict: Verdict) -> Settlement:
        settlement = Settlement(self._driver)
        settlement.resolve(settled_already(job, job._verdict, verdict))
        return settlement

    def _holds(self, job: Job) -> bool:
        return self._session.holds(job)


class Message(Received):
    """A message that was pushed."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: "Subscription", place: Place, record: Record, **facts: int) -> None:
        super().__init__(place, record, link=facts["link"], order=facts["order"])
        self._subscription = subscription

    def ack(self) -> Settlement:
        """The subscription goes on behind this message: it is for all that came before it of the same partition, too.
        Returns at once; `.wait()` if you must know that it is durable."""
        return self._subscription._ack(self)


class Subscription(Stream[Message]):
    """A subscriber: messages in the log's order, from where its last ack left off."""

    def __init__(
        self,
        open_session: Callable[[Callable[..., Message]], FeedSession[Message]],
        find_urls: Callable[[], list[str]],
        *,
        idle_s: float | None,
        on_close: Callable[[Any], None],
    ) -> None:
        super().__init__(idle_s, on_close)
        self._session = open_session(lambda place, record, **facts: Message(self, place, record, **facts))
        self._driver = ThreadDriver(self._session, find_urls, "subscription")

    @property
    def resumed(self) -> bool:
        """Whether it went on where it was, at its last connection, and did not begin anew."""
        return self._session.resumed

    @property
    def times_inactive(self) -> int:
        """How often it was sent away because an ack did not come in time. It came back by itself each time."""
        return self._session.times_inactive

    def unsubscribe(self, timeout: float | None = FAREWELL_SECONDS) -> None:
        """Forgets the subscription for good, with its place, and closes."""
        settlement = Settlement(self._driver)
        self._driver.tell(lambda now: self._session.unsubscribe(settlement))
        settlement.wait(timeout)
        self.close(timeout)

    def _ack(self, message: Message) -> Settlement:
        settlement = Settlement(self._driver)
        self._driver.tell(lambda now: self._session.ack(message, settlement))
        return settlement


def settled_already(job: Received, before: Verdict | None, verdict: Verdict) -> LeaseLost:
    return LeaseLost(
        f"{job!r} was settled already by this client: {before} was said before {verdict}, and counts"
    )


def retry_delay_ms(delay: Seconds | None) -> int | None:
    return None if delay is None else round(retry_seconds(delay) * 1000)
