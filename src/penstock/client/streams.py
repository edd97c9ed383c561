"""Queues and subscriptions of a blocking client.

Everything here may be used from several threads at once. Several threads may iterate over one queue: each job goes to
one of them.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

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
from penstock.client.thread_driver import Settlement, ThreadDriver


class Stream(BaseStream[Item, Settlement]):
    """Records as they come. Iterating waits for more: for ever, or until none has come for `idle_s`."""

    _driver: ThreadDriver[Item]

    def _new_driver(self, nodes: HttpNodes) -> ThreadDriver[Item]:
        return ThreadDriver(self._session, nodes, type(self).__name__.lower())

    def receive(self, timeout: Seconds | None = None) -> Item | None:
        """The next one; None if none came within so many seconds (None: waits for one), or it was closed."""
        return self._driver.receive(wait_seconds_or_none("timeout", timeout))

    def __iter__(self) -> Iterator[Item]:
        while (item := self._driver.receive_unless_idle(self._idle_s)) is not None:
            yield item

    def flush(self, timeout: Seconds | None = None) -> bool:
        """Waits until all acks are durable. Returns whether they are."""
        return self._driver.flush(wait_seconds_or_none("timeout", timeout))

    def close(self, timeout: Seconds | None = CLOSE_SECONDS) -> None:
        """Waits until all acks are durable, then disconnects. Jobs that were taken and not settled come again."""
        self._driver.close(wait_seconds_or_none("timeout", timeout))
        self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Job(BaseJob[Settlement]):
    """A job in hand. The client renews its lease until it is settled. The first of ack, retry and reject counts: the
    same call again returns the same settlement, and another one fails with LeaseLost when it is waited for.

    `with job:` acks at the end of the block, and retries the job if the block raises.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(problem)


class Message(BaseMessage[Settlement]):
    """A message that the broker pushed."""

    __slots__ = ()


class Queue(Stream[Job], BaseQueue[Job, Settlement]):
    """A consumer of a queue."""

    _item = Job


class Subscription(Stream[Message], BaseSubscription[Message, Settlement]):
    """A subscriber: messages in log order, from where its last ack left off."""

    _item = Message

    def unsubscribe(self, timeout: Seconds | None = CLOSE_SECONDS) -> None:
        """Deletes the subscription, with its committed offsets, and closes."""
        timeout_s = wait_seconds_or_none("timeout", timeout)
        self._unsubscribe().wait(timeout_s)
        self.close(timeout_s)
