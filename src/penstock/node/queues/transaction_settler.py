"""Settlements of one queue's messages within transactions of producers.

    the consumer settles      the core gives its messages to the transaction, which holds them without a deadline
    stored                    the settlement is in the state topic, as a part of the transaction: the consumer is told
    the transaction ends      the leader of the state topic tells this driver, which waits there (`watch`)
    committed                 the core applies the settlement, and the next save deletes its record
    aborted                   the messages are available again; the record never counted

A settlement that the transaction refuses (its producer is fenced, say) ends like an aborted one. If it is not known
whether a settlement is stored, the driver ends: the next one claims the queue, and finds out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.queues.failures import NO_FAILURES, Failures
from penstock.node.queues.state_saver import StateSaver, resolve
from penstock.node.queues.values import NotLeased, ProducerTransaction, as_kafka_error, not_leased
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.retry_backoff import RetryBackoff
from penstock.queue.settlements import TransactionSettlement
from penstock.queue.values import Acknowledgement
from penstock.types import Caller

if TYPE_CHECKING:
    from penstock.node.queues.driver import QueueDriver


log = logging.getLogger("penstock.queues")


class TransactionSettler:
    """The open settlements of one driver."""

    def __init__(self, driver: "QueueDriver", saver: StateSaver) -> None:
        self._driver = driver
        self._saver = saver
        self._open: dict[bytes, Failures] = {}
        """Settlements that are stored, and why they retry or reject messages."""
        self._following: asyncio.Task[None] | None = None

    def begin(
        self,
        now_ms: int,
        member: str,
        batches: Sequence[Acknowledgement],
        failures: Failures,
        transaction: ProducerTransaction,
        future: "asyncio.Future[None]",
        *,
        caller: Caller,
    ) -> Awaitable[None]:
        """Gives the messages to the transaction at once; the result stores that, and resolves the future."""
        suffix = self._saver.new_suffix()
        errors, settlement = self._driver.core.begin_settlement(
            now_ms, suffix, member, transaction.transactional_id, batches
        )
        refused = not_leased(errors, batches) if any(errors) else None
        return self._finish(suffix, settlement, failures, transaction, refused, future, caller)

    async def _finish(
        self,
        suffix: bytes,
        settlement: TransactionSettlement | None,
        failures: Failures,
        transaction: ProducerTransaction,
        refused: NotLeased | None,
        future: "asyncio.Future[None]",
        caller: Caller,
    ) -> None:
        error: KafkaError | None = refused
        if settlement is not None:
            error = await self._store(suffix, settlement, failures, transaction, caller) or refused
        if not future.done():
            resolve(future, error)

    async def _store(
        self,
        suffix: bytes,
        settlement: TransactionSettlement,
        failures: Failures,
        transaction: ProducerTransaction,
        caller: Caller,
    ) -> KafkaError | None:
        driver = self._driver
        try:
            code = await self._saver.store_settlement(suffix, settlement, transaction, caller=caller)
        except PenstockError as trouble:
            log.warning("queue %s on %s is reloaded: %s", driver.key.group_id, driver.partition.name, trouble)
            driver.end(as_kafka_error(trouble))
            return as_kafka_error(trouble)
        if driver.ended is not None:
            return driver.ended
        if code:
            self._end(suffix, NO_FAILURES, commit=False)
            message = f"the transaction of {transaction.transactional_id!r} does not take it: {code.name}"
            return KafkaError(code, message)
        self.follow([suffix], failures)
        return None

    def follow(self, suffixes: Iterable[bytes], failures: Failures = NO_FAILURES) -> None:
        """These settlements are stored: waits for the end of their transactions."""
        self._open |= dict.fromkeys(suffixes, failures)
        if self._open and (self._following is None or self._following.done()):
            self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        driver = self._driver
        what = f"transactions of queue {driver.key.group_id} on {driver.partition.name}"
        backoff = RetryBackoff(what, log)
        while self._open and driver.ended is None:
            is_done = False
            with logged_bugs(what):
                is_done = await self._follow_once(what, backoff)
            if is_done:
                backoff.succeeded()
            elif driver.ended is None:
                await asyncio.sleep(backoff.next_seconds())

    async def _follow_once(self, what: str, backoff: RetryBackoff) -> bool:
        """Whether all that the leader of the state topic has told is done. A settlement whose end meets a bug stays
        open, and is told again; the others end."""
        driver = self._driver
        try:
            outcomes = await self._saver.watch_settlements(list(self._open))
        except PenstockError as trouble:
            if isinstance(trouble, KafkaError) and trouble.code is ErrorCode.FENCED_STATE_EPOCH:
                driver.end(trouble)
            else:
                backoff.warn(trouble)
            return False
        for suffix, commit in outcomes:
            with logged_bugs(what):
                if driver.ended is None:
                    self._end(suffix, self._open.get(suffix, NO_FAILURES), commit=commit)
                self._open.pop(suffix, None)
        return all(suffix not in self._open for suffix, _ in outcomes)

    def _end(self, suffix: bytes, failures: Failures, *, commit: bool) -> None:
        """The transaction of a settlement has ended, or has refused it."""
        driver, now_ms = self._driver, self._driver.now_ms
        applied = driver.core.end_settlement(now_ms, suffix, commit=commit)
        if applied is not None:
            taken = [one.acknowledgement for one in applied.ranges]
            driver.stats.count_settled(taken)
            driver.consumers.count_settled(applied.consumer, taken, now_ms)
            driver.failures.settled(now_ms, applied.consumer, taken, failures)
        driver.refresh()

    def stop(self) -> None:
        """The driver has ended: the next one finds the open settlements in the state topic."""
        if self._following is not None and self._following is not asyncio.current_task():
            self._following.cancel()

    async def stopped(self) -> None:
        if self._following is not None:
            await asyncio.wait({self._following})
