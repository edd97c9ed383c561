"""The consumers that wait at one queue driver, in the order in which they came."""

import asyncio
from collections.abc import Callable

from penstock.node.queues.values import Consumer
from penstock.node.replication.fetch_waiter import FetchWaiter


class WaitingConsumers:
    """Consumers that found no messages, and standbys that wait until an exclusive queue is free."""

    def __init__(self) -> None:
        self._waiting: dict[Consumer, None] = {}
        self._standbys: dict[Consumer, None] = {}

    def __len__(self) -> int:
        """The number of waiting consumers, without the standbys."""
        return len(self._waiting)

    @property
    def has_standbys(self) -> bool:
        return bool(self._standbys)

    def add(self, consumer: Consumer) -> None:
        self._waiting[consumer] = None

    def add_standby(self, consumer: Consumer) -> None:
        self._standbys[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        self._waiting.pop(consumer, None)
        self._standbys.pop(consumer, None)

    def wake(self, count: int) -> None:
        """The first ones. A consumer that finds nothing waits again, at the end of the line."""
        for consumer in list(self._waiting)[:count]:
            del self._waiting[consumer]
            consumer.set()

    def wake_standbys(self) -> None:
        """The first that asks gets the queue."""
        for consumer in self._standbys:
            consumer.set()
        self._standbys.clear()

    def wake_all(self) -> None:
        self.wake(len(self._waiting))
        self.wake_standbys()


class CommitListener(FetchWaiter):
    """Calls a function at every commit of a partition, and when its leader changes."""

    __slots__ = ("_notify",)

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__(0, asyncio.get_running_loop().create_future())
        self._notify = notify

    def committed(self, size_bytes: int) -> None:
        self._notify()

    def wake(self) -> None:
        self._notify()
