"""Transactions of an asyncio client. Requests to brokers run in threads, one at a time."""

import asyncio
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.client.aio.driver import AsyncSettlement
from penstock.client.aio.threads import call_in_thread
from penstock.client.base_transactions import SETTLE_SECONDS, BaseTransaction
from penstock.client.publishing import OutgoingMessage
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.client.wire.transactional_producer import GroupMember


class AsyncTransaction(BaseTransaction[AsyncSettlement, Coroutine[Any, Any, None]]):
    """Messages, offsets of groups, and jobs of queues that count together, or not at all.

    `async with client.transaction("id") as transaction:` commits at the end of the block, and aborts if the block
    raises or its task is cancelled. `publish` and `commit_offsets` are to be awaited.
    """

    async def commit(self) -> None:
        """Commits now. Raises TransactionFailed: its `outcome` is "aborted" or "unknown". If the task is cancelled
        meanwhile, the commit goes on."""
        await _uninterrupted(self._commit())

    async def abort(self) -> None:
        """Aborts now: nothing of it becomes visible, and its jobs come again."""
        if self._is_open:
            await _uninterrupted(call_in_thread(self._give_up))

    async def __aenter__(self) -> Self:
        await _uninterrupted(call_in_thread(self._begin))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            await self.abort()
        elif self._is_open:
            await self.commit()

    async def _commit(self) -> None:
        self._open_producer()  # a transaction that has ended may be committed: it must not be called aborted
        try:
            await call_in_thread(self._store)
            async with asyncio.timeout(SETTLE_SECONDS):
                await asyncio.gather(*self._settlements)
        except Exception as problem:  # noqa: BLE001 - raised again
            await call_in_thread(self._give_up)
            self._not_committed(problem)
        await call_in_thread(self._decide)

    async def _publish(self, message: OutgoingMessage) -> None:
        if self._knows(message):
            is_full = self._collect(message)
        else:
            is_full = await call_in_thread(self._collect, message)
        if is_full:
            await call_in_thread(self._send)

    async def _commit_offsets(self, member: "GroupMember", offsets: Mapping[TopicPartition, int]) -> None:
        await call_in_thread(self._send_offsets, member, offsets)


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Goes on if the caller is cancelled: the state of the transaction, and its producer, need the end of it."""
    await asyncio.shield(asyncio.ensure_future(work))
