"""Queues and subscriptions of an asyncio client. For one event loop; several tasks may share them."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from penstock.client.aio.driver import AsyncSettlement, TaskDriver
from penstock.client.arguments import Seconds, wait_seconds_or_none
from penstock.client.base_streams import (
    CLOSE_SECONDS,
    BaseJob,
    BaseMessage,
    BaseQueue,
    BaseStream,
    BaseSubscription,
)
from penstock.client.http_nodes import HttpNodes
from penstock.client.session import Item


class AsyncStream(BaseStream[Item, AsyncSettlement]):
    """Records as they come. Iterating waits for more: for ever, or until none has come for `idle_s`."""

    _driver: TaskDriver[Item]

    def _new_driver(self, nodes: HttpNodes) -> TaskDriver[Item]:
        return TaskDriver(self._session, nodes, type(self).__name__.lower().removeprefix("async"))

    async def receive(self, timeout: Seconds | None = None) -> Item | None:
        """The next one; None if none came within so many seconds (None: waits for one), or it was closed."""
        return await self._driver.receive(wait_seconds_or_none("timeout", timeout))

    async def __aiter__(self) -> AsyncIterator[Item]:
        while (item := await self._driver.receive_unless_idle(self._idle_s)) is not None:
            yield item

    async def flush(self, timeout: Seconds | None = None) -> bool:
        """Waits until all acks are durable. Returns whether they are."""
        return await self._driver.flush(wait_seconds_or_none("timeout", timeout))

    async def close(self, timeout: Seconds | None = CLOSE_SECONDS) -> None:
        """Waits until all acks are durable, then disconnects. Jobs that were taken and not settled come again."""
        await self._driver.close(wait_seconds_or_none("timeout", timeout))
        self._on_close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncJob(BaseJob[AsyncSettlement]):
    """A job in hand. The client renews its lease until it is settled. The first of ack, retry and reject counts: the
    same call again returns the same settlement, and another one fails with LeaseLost when it is awaited. None of them
    has to be awaited: awaited, they return when they are durable.

    `async with job:` acks at the end of the block, and retries the job if the block raises.
    """

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(problem)


class AsyncMessage(BaseMessage[AsyncSettlement]):
    """A message that the broker pushed."""

    __slots__ = ()


class AsyncQueue(AsyncStream[AsyncJob], BaseQueue[AsyncJob, AsyncSettlement]):
    """A consumer of a queue."""

    _item = AsyncJob


class AsyncSubscription(AsyncStream[AsyncMessage], BaseSubscription[AsyncMessage, AsyncSettlement]):
    """A subscriber: messages in log order, from where its last ack left off."""

    _item = AsyncMessage

    async def unsubscribe(self, timeout: Seconds | None = CLOSE_SECONDS) -> None:
        """Deletes the subscription, with its committed offsets, and closes."""
        timeout_s = wait_seconds_or_none("timeout", timeout)
        await self._unsubscribe()
        await self.close(timeout_s)
