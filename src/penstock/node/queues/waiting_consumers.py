"""The consumers that wait at one queue driver, in the order in which they came."""

import asyncio
from collections.abc import Callable, Collection
from itertools import islice
from typing import Protocol

from penstock.node.queues.values import Consumer
from penstock.node.replication.fetch_waiter import CommitWatcher


class WaitingConsumers:
    """Consumers that found no messages, and standbys that wait until an exclusive queue is free."""

    def __init__(self, driver: object) -> None:
        self._driver = driver
        self._waiting: dict[Consumer, str] = {}
        """Each with the member that it waits for."""
        self._standbys: dict[Consumer, None] = {}

    def __len__(self) -> int:
        """The number of waiting consumers, without the standbys."""
        return len(self._waiting)

    @property
    def has_standbys(self) -> bool:
        return bool(self._standbys)

    def add(self, consumer: Consumer, member: str) -> None:
        self._waiting[consumer] = member

    def add_standby(self, consumer: Consumer) -> None:
        self._standbys[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        self._waiting.pop(consumer, None)
        self._standbys.pop(consumer, None)

    def wake(self, count: int) -> None:
        """The first ones. A consumer that finds nothing waits again, at the end of the line."""
        for consumer in list(islice(self._waiting, count)):
            del self._waiting[consumer]
            consumer.wake(self._driver)

    def has_any(self, may_get: Callable[[str], bool]) -> bool:
        """Whether any of them may get messages."""
        return any(map(may_get, self._waiting.values()))

    def wake_those(self, may_get: Callable[[str], bool]) -> None:
        """All that may get messages."""
        for consumer in [one for one, member in self._waiting.items() if may_get(member)]:
            del self._waiting[consumer]
            consumer.wake(self._driver)

    def wake_standbys(self) -> None:
        """The first that asks gets the queue."""
        for consumer in self._standbys:
            consumer.wake(self._driver)
        self._standbys.clear()

    def wake_all(self) -> None:
        self.wake(len(self._waiting))
        self.wake_standbys()


class Driver(Protocol):
    """The part of a queue driver at which consumers wait."""

    def wait(self, consumer: Consumer, member: str) -> None: ...

    def forget(self, consumer: Consumer) -> None: ...

    def pass_on(self) -> None:
        """A consumer that was woken will not ask: wakes another one instead."""
        ...


async def woken(consumer: Consumer, drivers: Collection[Driver], member: str, deadline: float) -> bool:
    """Waits at these drivers. False when the deadline has passed without a wake-up; else the caller must ask, because
    each driver wakes only as many consumers as it has messages."""
    for driver in drivers:
        driver.wait(consumer, member)
    try:
        async with asyncio.timeout_at(deadline):
            await consumer.wait()
    except TimeoutError:
        pass  # it may have been woken in the same turn of the event loop
    except asyncio.CancelledError:
        for driver in drivers:
            if driver in consumer.woken_by:
                driver.pass_on()
        raise
    finally:
        for driver in drivers:
            driver.forget(consumer)
    return consumer.is_set()


class CommitListener(CommitWatcher):
    """Calls a function at every commit of a partition, and when its leader changes."""

    __slots__ = ("_notify",)

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__()
        self._notify = notify

    def committed(self, size_bytes: int) -> None:
        self._notify()

    def wake(self) -> None:
        self._notify()
