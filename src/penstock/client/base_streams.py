"""Queues, subscriptions, jobs and messages: everything that the blocking and the asyncio client share.

streams.py and aio/streams.py add the methods that wait. `S` is what `ack` returns: a blocking client's has `wait()`, an
asyncio client's can be awaited.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic

from penstock.batch import Record
from penstock.client.arguments import Seconds, retry_seconds
from penstock.client.error_texts import error_text, error_type
from penstock.client.errors import ClientError, LeaseLost
from penstock.client.http_nodes import HttpNodes
from penstock.client.queue_session import JobFailure, QueueSession, SettleAction
from penstock.client.received_record import ReceivedRecord
from penstock.client.session import Item, Session
from penstock.client.session_driver import S, SessionDriver
from penstock.client.subscription_session import SubscriptionSession
from penstock.types import TopicPartition

if TYPE_CHECKING:  # programs without transactions do not load the Kafka protocol
    from penstock.client.wire.producer import TransactionIdentity

CLOSE_SECONDS: Final = 10.0
"""How long `close` waits for the broker's answers."""


class BaseStream(ABC, Generic[Item, S]):
    """Records as they come. Iterating waits for more: for ever, or until none has come for `idle_s`."""

    _item: Callable[..., Item]
    _session: Session[Item]
    _driver: SessionDriver[Item, S, Any]

    def __init__(
        self,
        open_session: Callable[[Callable[..., Any]], Any],
        nodes: HttpNodes,
        *,
        idle_s: float | None,
        on_close: Callable[[Any], None],
    ) -> None:
        self._idle_s = idle_s
        self._on_close = on_close
        self._session = open_session(partial(type(self)._item, self))
        self._driver = self._new_driver(nodes)

    @abstractmethod
    def _new_driver(self, nodes: HttpNodes) -> SessionDriver[Item, S, Any]: ...

    @abstractmethod
    def close(self, timeout: Seconds | None = CLOSE_SECONDS) -> Any: ...

    def drain(self) -> None:
        """Ends iterations and returns the records that were not taken; these do not count as deliveries. Jobs in hand
        can still be settled. Call `close` afterwards."""
        self._driver.drain()


class BaseQueue(BaseStream[Item, S]):
    """A consumer of a queue."""

    _session: QueueSession[Item]

    @property
    def lost_leases(self) -> int:
        """Jobs whose ack came too late: they were, or will be, delivered again."""
        return self._session.lost_leases

    def _settle(
        self,
        job: Item,
        action: SettleAction,
        delay_ms: int | None,
        failure: JobFailure | None = None,
        transaction: "TransactionIdentity | None" = None,
    ) -> S:
        def ask(settlement: S, now: float) -> None:
            self._session.settle(job, action, delay_ms, settlement, now, failure, transaction=transaction)

        return self._driver.ask(ask)

    def _refuse(self, job: Item, earlier: SettleAction | None, action: SettleAction) -> S:
        settlement = self._driver.settlement()
        text = f"{job!r}: this client has settled it already: {earlier} counts, {action} does not"
        settlement.resolve(LeaseLost(text))
        return settlement

    def _holds(self, job: Item) -> bool:
        return self._session.holds(job)


class BaseSubscription(BaseStream[Item, S]):
    """A subscriber: messages in log order, from where its last ack left off."""

    _session: SubscriptionSession[Item]

    @property
    def resumed(self) -> bool:
        """Whether its last connection resumed the subscription. False: the broker created it."""
        return self._session.resumed

    @property
    def times_inactive(self) -> int:
        """How often the broker disconnected it because an ack did not come in time. It reconnects by itself."""
        return self._session.times_inactive

    def _ack(self, message: Item) -> S:
        return self._driver.ask(lambda settlement, now: self._session.ack(message, settlement))

    def _unsubscribe(self) -> S:
        return self._driver.ask(lambda settlement, now: self._session.unsubscribe(settlement))


class BaseJob(ReceivedRecord, Generic[S]):
    """A job in hand. The client renews its lease until it is settled. The first of ack, retry and reject counts: the
    same call again returns the same settlement, and another one fails with LeaseLost."""

    __slots__ = ("_action", "_queue", "_settlement")

    def __init__(
        self, queue: BaseQueue[Any, S], topic_partition: TopicPartition, record: Record, **facts: int
    ) -> None:
        super().__init__(topic_partition, record, **facts)
        self._queue = queue
        self._action: SettleAction | None = None
        self._settlement: S | None = None

    def ack(self) -> S:
        """The job is done and will not be delivered again. Returns at once; the client sends acks together. Wait for
        the settlement if you need to know that the ack is durable; closing the queue waits for all of them."""
        return self._settle("accept")

    def retry(self, delay: Seconds | None = None, *, error: BaseException | str | None = None) -> S:
        """The job will be delivered again after so many seconds, clipped to 0 to seven days; None: after the delay of
        the queue's settings. `error` says why: if the job becomes a dead letter, the letter says so."""
        delay_ms = None if delay is None else round(retry_seconds(delay) * 1000)
        return self._settle("retry", delay_ms, failure_of(error))

    def reject(self, *, error: BaseException | str | None = None) -> S:
        """The job can never be done: it goes to the dead-letter topic, with the reason."""
        return self._settle("reject", None, failure_of(error))

    def renew(self) -> S:
        """Starts the lease again from now. Rarely needed: the client renews leases by itself."""
        return self._queue._settle(self, "renew", None)

    @property
    def settled(self) -> bool:
        """Whether ack, retry or reject was called."""
        return self._action is not None

    @property
    def action(self) -> SettleAction | None:
        """How it was settled: accept, retry or reject; None if it was not."""
        return self._action

    @property
    def is_last_delivery(self) -> bool:
        """Whether the queue's delivery limit makes it a dead letter if it is not done now."""
        limit = self._queue._session.delivery_limit
        return limit is not None and 0 < limit <= self.deliveries

    @property
    def lost(self) -> bool:
        """Whether this client has lost the lease of a job that it has not settled: another consumer may have it."""
        return not self.settled and not self._queue._holds(self)

    def _settle(
        self, action: SettleAction, delay_ms: int | None = None, failure: JobFailure | None = None
    ) -> S:
        if self._settlement is None:
            settlement = self._settlement = self._queue._settle(self, action, delay_ms, failure)
            self._action = action
            return settlement
        return self._settlement if action == self._action else self._queue._refuse(self, self._action, action)

    def settle_in(
        self,
        transaction: "TransactionIdentity",
        action: SettleAction,
        delay: Seconds | None = None,
        error: BaseException | str | None = None,
    ) -> S:
        """For transactions. The action counts if the transaction commits; if it is aborted, the job comes again."""
        if self._settlement is not None:
            raise ClientError(f"{self!r}: this client has settled it already: {self._action}")
        delay_ms = None if delay is None else round(retry_seconds(delay) * 1000)
        failure = failure_of(error)
        self._settlement = self._queue._settle(self, action, delay_ms, failure, transaction)
        self._action = action
        return self._settlement

    def _leave(self, problem: BaseException | None) -> None:
        """Acks the job at the end of a `with` block, or retries it if the block raised."""
        if not self.settled:
            self.ack() if problem is None else self.retry(error=problem)


def failure_of(error: BaseException | str | None) -> JobFailure | None:
    """The reason of a failure, of a bounded length."""
    if error is None:
        return None
    return JobFailure("" if isinstance(error, str) else error_type(error), error_text(error))


class BaseMessage(ReceivedRecord, Generic[S]):
    """A message that the broker pushed."""

    __slots__ = ("_subscription",)

    def __init__(
        self,
        subscription: BaseSubscription[Any, S],
        topic_partition: TopicPartition,
        record: Record,
        **facts: int,
    ) -> None:
        super().__init__(topic_partition, record, **facts)
        self._subscription = subscription

    def ack(self) -> S:
        """Acks this message and all that came before it from the same partition. Returns at once; wait for the
        settlement if you need to know that the ack is durable."""
        return self._subscription._ack(self)
