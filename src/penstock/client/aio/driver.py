"""A session driven by tasks of an event loop: a driver task, and one task for each connection.

Everything runs on the loop on which the driver was made, so nothing needs a lock. Only the driver task sends frames, in
the order in which the session made them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from penstock.client.aio.threads import call_in_thread
from penstock.client.connection_loss import UpgradeRefused
from penstock.client.errors import ClientError
from penstock.client.http_nodes import HttpNodes
from penstock.client.session import Connect, Disconnect, Effect, FindNodes, Item, Resolve, Send, Session
from penstock.client.session_driver import SessionDriver, log


class _NodeConnection(ClientConnection):
    """Leaves redirects to the session."""

    async def handshake(self, *arguments: Any, **more: Any) -> None:
        try:
            await super().handshake(*arguments, **more)
        except InvalidStatus as refused:
            raise UpgradeRefused(refused.response) from None


class AsyncSettlement(asyncio.Future[None]):
    """The outcome of an ack. You may ignore it; awaited, it returns when the ack is durable, and raises LeaseLost if
    the broker refused it."""

    def resolve(self, error: ClientError | None) -> None:
        if self.done():
            return  # the task that waited for it was cancelled
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
            self.exception()  # marks it as retrieved: asyncio shall not warn of an ack that no task awaits


class TaskDriver(SessionDriver[Item, AsyncSettlement, ClientConnection]):
    """Runs a session in tasks."""

    def __init__(self, session: Session[Item], nodes: HttpNodes, name: str) -> None:
        super().__init__(session, nodes, name)
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._takers: deque[asyncio.Future[None]] = deque()
        """Each waits for a record, first come, first served."""
        self._watchers: list[asyncio.Future[None]] = []
        """Wait until the driver task has looked again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._task = self._loop.create_task(self._run(), name=f"penstock-{name}")

    # --- for callers

    async def receive(self, timeout: float | None) -> Item | None:
        """None after the timeout, or when the session drains. Raises the error that ended the session."""
        self._guard.check()
        try:
            async with asyncio.timeout(timeout):
                while not self._is_draining:
                    item = self.take()
                    if item is not None:
                        return item
                    if self.session.ended is not None:
                        raise self.session.ended
                    await self._wait_for_item()
        except TimeoutError:
            return None
        self._check_ended()
        return None

    async def receive_unless_idle(self, idle_s: float | None) -> Item | None:
        """The same as `receive`, but the time counts only while a node serves the session."""
        if idle_s is not None:
            while self._is_waiting_for_node:
                await self._watch()
        return await self.receive(idle_s)

    def take(self) -> Item | None:
        """A record that is there already."""
        item = self.session.take()
        if self.session.has_effects:
            self._work.set()
        return item

    def settlement(self) -> AsyncSettlement:
        return AsyncSettlement(loop=self._loop)

    def tell(self, event: Callable[[float], None]) -> None:
        self._guard.check()
        event(self._loop.time())
        self._work.set()
        if self._task.done():  # connections are cancelled then: only promises can be left
            self._take_effects(self._loop.time())

    async def flush(self, timeout: float | None) -> bool:
        """Whether all acks are durable, also those since the last flush."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self.session.is_settled and self.session.ended is None:
                    await self._watch()
        return self.session.is_settled and not self.session.take_lost_acks()

    def drain(self) -> None:
        self._is_draining = True
        self.session.drain()
        self._work.set()
        self._wake(len(self._takers))

    async def close(self, timeout: float | None) -> None:
        """Waits for answers, disconnects and ends the tasks. May be called again."""
        self.drain()
        await self.flush(timeout)
        self.session.end()
        self._work.set()
        await asyncio.shield(self._task)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Returns when the driver task has looked again."""
        watcher = self._loop.create_future()
        self._watchers.append(watcher)
        await watcher

    async def _wait_for_item(self) -> None:
        taker = self._loop.create_future()
        self._takers.append(taker)
        try:
            await taker
        except asyncio.CancelledError:
            if taker.done() and not taker.cancelled():
                self._wake(1)  # it was this taker's turn, and it leaves: wake the next one
            raise

    # --- the driver task

    async def _run(self) -> None:
        try:
            while (effects := await self._next_effects()) is not None:
                for effect in effects:
                    await self._perform(effect)
        except Exception as bug:  # noqa: BLE001 - callers get it
            self._end_after(bug)
            await self._run()

    async def _next_effects(self) -> list[Effect] | None:
        """Waits for some; None when there will be no more."""
        while True:
            self._work.clear()
            now = self._loop.time()
            effects = self._take_effects(now)
            self._wake_watchers()
            if self.session.ended is not None:
                self._wake(len(self._takers))
            if effects:
                return effects
            if self._is_finished:
                return None
            wake_at = self.session.wake_at()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - now)):
                    await self._work.wait()

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(connection_id=connection_id, text=text):
                if (socket := self._sockets.get(connection_id)) is not None:
                    with suppress(OSError, WebSocketException):  # the connection's own task reports the loss
                        await socket.send(text)
            case Connect(connection_id=connection_id, url=url):
                self._start(self._serve(connection_id, url))
            case Disconnect(connection_id=connection_id):
                if (socket := self._sockets.get(connection_id)) is not None:
                    await socket.close()
            case FindNodes():
                self._start(self._find())
            case Resolve(error=error) if error is not None:
                log.info("%s: %s", self._name, error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wake(self, count: int) -> None:
        while count > 0 and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    def _wake_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    # --- tasks of connections

    async def _find(self) -> None:
        with self._reporting_failed_search():
            urls = await call_in_thread(self._nodes.find_urls)
            self.tell(lambda now: self.session.found(urls, now))

    async def _serve(self, connection_id: int, url: str) -> None:
        with self._reporting_loss(connection_id, url):
            settings = await call_in_thread(
                self._connect_settings, url
            )  # it reads files, and may get a token
            async with connect(url, create_connection=_NodeConnection, **settings) as socket:
                self._sockets[connection_id] = socket
                self.tell(lambda now: self.session.connected(connection_id, now))
                while True:
                    self._received(connection_id, await socket.recv())

    def _received(self, connection_id: int, data: str | bytes) -> None:
        self.session.received(connection_id, data, self._loop.time())
        self._wake(len(self.session.ready))
        self._work.set()
