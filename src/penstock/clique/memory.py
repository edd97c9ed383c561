"""The carrier for tests and for programs of one process: memory://NAME.

All connections of a process to the same name share a *hub*. A hub holds the messages of each queue group until they
are acknowledged, also while the group has no subscriber, up to a limit; and cells that change by compare-and-set.
Everything is gone when the process ends.

Connections may be on different event loops, in different threads. Invariants:

 1. All state of a hub changes under its lock. Callbacks run on the loop of their subscriber and never under the lock.
 2. A message of a queue group is in the group's backlog, or unacknowledged at one subscriber, or done.
 3. The backlog is ordered by publication: a message that comes back is handed out before later ones.
"""

import asyncio
import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from penstock.clique.errors import Closed, OverLimit
from penstock.clique.pubsub import Callback, Capabilities, Cell, PubSub

log = logging.getLogger("penstock.clique")

BACKLOG_MAX: Final = 100_000
BACKLOG_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of one queue group: a program that publishes without a worker must not take all memory."""
UNACKED_MAX: Final = 1_000
"""Messages that one subscriber of a group has at once; the others stay in the backlog, for any subscriber."""


class MemoryMessage:
    """A published message, shared by all that get it."""

    __slots__ = ("data", "headers", "number", "reply", "subject")

    def __init__(
        self, number: int, subject: str, data: bytes, headers: Mapping[str, str], reply: str | None
    ) -> None:
        self.number = number
        self.subject = subject
        self.data = data
        self.headers = headers
        self.reply = reply

    def __lt__(self, other: "MemoryMessage") -> bool:
        return self.number < other.number


class MemoryDelivery:
    """A message at one subscriber."""

    __slots__ = ("_message", "_subscriber")

    def __init__(self, message: MemoryMessage, subscriber: "MemorySubscription") -> None:
        self._message = message
        self._subscriber = subscriber

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def data(self) -> bytes:
        return self._message.data

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers

    @property
    def reply(self) -> str | None:
        return self._message.reply

    def ack(self) -> None:
        self._subscriber.settle(self._message, is_done=True)

    def nack(self) -> None:
        self._subscriber.settle(self._message, is_done=False)


class MemorySubscription:
    """A subscriber: a task on its loop that awaits the callback for one message after the other."""

    def __init__(self, hub: "MemoryHub", callback: Callback, group: "QueueGroup | None") -> None:
        self._hub = hub
        self._callback = callback
        self.group = group
        self.unacked: dict[int, MemoryMessage] = {}
        self._inbox: deque[MemoryMessage] = deque()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._task = self._loop.create_task(self._run())

    def give(self, message: MemoryMessage) -> None:
        """From any thread, under the lock of the hub."""
        self._inbox.append(message)
        if len(self._inbox) > 1:
            return  # the task knows
        with suppress(RuntimeError):  # its loop was closed without closing the connection
            self._loop.call_soon_threadsafe(self._arrived.set)

    def settle(self, message: MemoryMessage, *, is_done: bool) -> None:
        with self._hub.lock:
            if self.group is None or self.unacked.pop(message.number, None) is None:
                return  # settled before, or given to another subscriber
            self.group.settled(message, is_done=is_done)

    async def unsubscribe(self) -> None:
        """Messages that the callback has not got go to other subscribers. The others can still be acknowledged, until
        the connection is closed."""
        with self._hub.lock:
            self._hub.remove(self)
            waiting = [
                message for message in self._inbox if self.unacked.pop(message.number, None) is not None
            ]
            self._inbox.clear()
            if self.group is not None:
                self.group.take_back(waiting)
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def abandon(self) -> None:
        """The connection is gone: everything that is not acknowledged goes to other subscribers."""
        with self._hub.lock:
            unacked, self.unacked = self.unacked, {}
            if self.group is not None:
                self.group.take_back(unacked.values())

    async def _run(self) -> None:
        while True:
            with self._hub.lock:
                self._arrived.clear()
                message = self._inbox.popleft() if self._inbox else None
            if message is None:
                await self._arrived.wait()
                continue
            try:
                await self._callback(MemoryDelivery(message, self))
            except Exception:
                log.exception("the callback of %s failed: the message stays unacknowledged", message.subject)


class QueueGroup:
    """The messages of one subject for one queue group (2). Under the lock of the hub."""

    def __init__(self, subject: str, name: str) -> None:
        self._name = f"queue group {name} of {subject}"
        self._backlog: list[MemoryMessage] = []
        self._held = 0
        self._bytes = 0
        self._members: list[MemorySubscription] = []
        self._turn = 0

    def check_room(self, size: int) -> None:
        if self._held >= BACKLOG_MAX or self._bytes + size > BACKLOG_BYTES_MAX:
            raise OverLimit(
                f"the {self._name} holds {self._held} messages ({self._bytes} bytes) that no worker has handled: "
                f"the limit is {BACKLOG_MAX} messages, {BACKLOG_BYTES_MAX} bytes (memory.BACKLOG_MAX)"
            )

    def add(self, message: MemoryMessage) -> None:
        self._held += 1
        self._bytes += len(message.data)
        heapq.heappush(self._backlog, message)
        self.hand_out()

    def join(self, member: MemorySubscription) -> None:
        self._members.append(member)
        self.hand_out()

    def leave(self, member: MemorySubscription) -> None:
        if member in self._members:
            self._members.remove(member)

    def take_back(self, messages: Iterable[MemoryMessage]) -> None:
        """They go to the others, or wait for the next subscriber (3)."""
        for message in messages:
            heapq.heappush(self._backlog, message)
        self.hand_out()

    def settled(self, message: MemoryMessage, *, is_done: bool) -> None:
        if is_done:
            self._held -= 1
            self._bytes -= len(message.data)
        else:
            heapq.heappush(self._backlog, message)
        self.hand_out()

    def hand_out(self) -> None:
        """To one subscriber after the other, those that have enough left out."""
        free = [one for one in self._members if len(one.unacked) < UNACKED_MAX]
        while self._backlog and free:
            self._turn += 1
            member = free[self._turn % len(free)]
            message = heapq.heappop(self._backlog)
            member.unacked[message.number] = message
            member.give(message)
            if len(member.unacked) >= UNACKED_MAX:
                free.remove(member)


class MemoryCells:
    """Values that change by compare-and-set."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._cells: dict[str, Cell] = {}

    async def get(self, key: str) -> Cell | None:
        with self._lock:
            return self._cells.get(key)

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        with self._lock:
            found = self._cells.get(key, Cell(0, b""))
            if found.revision != revision:
                return None
            self._cells[key] = Cell(revision + 1, value)
            return revision + 1


class MemoryHub:
    """What the connections to one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cells = MemoryCells(self.lock)
        self._numbers = itertools.count(1)
        self._groups: dict[str, dict[str, QueueGroup]] = {}
        """By subject and name. They stay when their last subscriber leaves: a clique may be started again."""
        self._plain: dict[str, list[MemorySubscription]] = {}

    def publish(self, subject: str, data: bytes, headers: Mapping[str, str], reply: str | None) -> None:
        with self.lock:
            groups = self._groups.get(subject, {}).values()
            for group in groups:
                group.check_room(len(data))
            message = MemoryMessage(next(self._numbers), subject, data, headers, reply)
            for group in groups:
                group.add(message)
            for subscriber in self._plain.get(subject, ()):
                subscriber.give(message)

    def subscribe(self, subject: str, callback: Callback, queue_group: str | None) -> MemorySubscription:
        with self.lock:
            if queue_group is None:
                made = MemorySubscription(self, callback, None)
                self._plain.setdefault(subject, []).append(made)
                return made
            groups = self._groups.setdefault(subject, {})
            group = groups.setdefault(queue_group, QueueGroup(subject, queue_group))
            made = MemorySubscription(self, callback, group)
            group.join(made)
            return made

    def remove(self, subscription: MemorySubscription) -> None:
        if subscription.group is not None:
            subscription.group.leave(subscription)
            return
        for subject, subscribers in list(self._plain.items()):
            if subscription in subscribers:
                subscribers.remove(subscription)
            if not subscribers:
                del self._plain[subject]


_hubs: Final[dict[str, MemoryHub]] = {}


class MemoryPubSub:
    """A connection to the hub of a name."""

    capabilities: Final = Capabilities(ordered=True, acks=True, compare_and_set=True)
    max_message_bytes: Final = None

    def __init__(self, name: str) -> None:
        self._name = name
        self._hub = _hubs.setdefault(name, MemoryHub())
        self._subscriptions: list[MemorySubscription] = []
        self._is_closed = False

    @property
    def store(self) -> MemoryCells:
        return self._hub.cells

    async def connect(self) -> None:
        """There is nothing to connect to."""

    def another(self) -> PubSub:
        return MemoryPubSub(self._name)

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str | None = None
    ) -> None:
        self._check_open()
        self._hub.publish(subject, data, headers or {}, reply)

    async def subscribe(
        self, subject: str, callback: Callback, queue_group: str | None = None
    ) -> MemorySubscription:
        self._check_open()
        made = self._hub.subscribe(subject, callback, queue_group)
        self._subscriptions.append(made)
        return made

    async def close(self) -> None:
        self._is_closed = True
        while self._subscriptions:
            subscription = self._subscriptions.pop()
            await subscription.unsubscribe()
            subscription.abandon()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the connection to memory://{self._name} was closed")

    def __repr__(self) -> str:
        return f"memory://{self._name}"
