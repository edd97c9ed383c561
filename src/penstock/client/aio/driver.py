"""A session driven by tasks of an event loop: one that acts ("pilot"), and one for each connection.

Everything of it runs on the loop on which it was made, so nothing needs a lock. Frames are sent by the pilot alone, in
the order in which the session made them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from penstock.client.errors import ClientError, Closed
from penstock.client.frames import MAX_FRAME_BYTES
from penstock.client.losses import DIAL_SETTINGS, loss_of
from penstock.client.session import Dial, Effect, Find, HangUp, Item, Resolve, Send, Session

log = logging.getLogger("penstock.client")

FindUrls = Callable[[], Awaitable[list[str]]]


class Settlement(asyncio.Future[None]):
    """What becomes of an ack. Nobody has to await it; awaited, it is done when the broker has it on disk, and raises
    LeaseLost if it was not taken."""

    def resolve(self, error: ClientError | None) -> None:
        if self.done():
            return  # whoever waited was cancelled
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
            self.exception()  # looked at: nobody is warned of an ack that nobody waited for


class TaskDriver(Generic[Item]):
    """Runs a session until it ends or is closed."""

    def __init__(self, session: Session[Item], find_urls: FindUrls, name: str) -> None:
        self.session = session
        self._find_urls = find_urls
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._takers: deque[asyncio.Future[None]] = deque()
        """Each waits for an item, first come, first served."""
        self._watchers: list[asyncio.Future[None]] = []
        """Wait for any news."""
        self._sockets: dict[int, ClientConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._pilot = self._loop.create_task(self._fly(), name=f"penstock-{name}")

    # --- for callers

    async def receive(self, timeout: float | None) -> Item | None:
        """None when nothing came in time, or no more is to come. Raises what ended the session."""
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
        if self.session.ended is not None and not isinstance(self.session.ended, Closed):
            raise self.session.ended
        return None

    async def receive_unless_idle(self, idle_s: float | None) -> Item | None:
        """As `receive`, but only the time counts in which a node was there to hand something out."""
        if idle_s is not None:
            while not self.session.is_served and self.session.ended is None and not self._is_draining:
                await self._watch()
        return await self.receive(idle_s)

    def take(self) -> Item | None:
        """What is there already."""
        item = self.session.take()
        if self.session.has_words:
            self._work.set()
        return item

    def tell(self, say: Callable[[float], None]) -> None:
        """Lets a caller say something to the session; what follows from it is done by the pilot."""
        say(self._loop.time())
        self._work.set()
        if self._pilot.done():  # links are cancelled then: only answers can be left
            self._answer(self.session.take_effects(self._loop.time()))

    def settlement(self) -> Settlement:
        return Settlement(loop=self._loop)

    async def flush(self, timeout: float | None) -> bool:
        """Whether all that was said has been answered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self.session.is_settled and self.session.ended is None:
                    await self._watch()
        return self.session.is_settled

    def drain(self) -> None:
        """From now on `receive` gives nothing; what is in hand can still be settled."""
        self._is_draining = True
        self.session.drain()
        self._work.set()
        self._wake(len(self._takers))

    async def close(self, timeout: float | None) -> None:
        """Waits for answers, hangs up, ends the tasks. Any number of times."""
        self.drain()
        await self.flush(timeout)
        self.session.end()
        self._work.set()
        await asyncio.shield(self._pilot)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Until the pilot has looked again."""
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
                self._wake(1)  # it was this one's turn, and it goes: the next one's, then
            raise

    # --- the pilot

    async def _fly(self) -> None:
        while (effects := await self._next_effects()) is not None:
            for effect in effects:
                await self._perform(effect)

    async def _next_effects(self) -> list[Effect] | None:
        """Waits for some; None when there will be no more."""
        while True:
            self._work.clear()
            now = self._loop.time()
            effects = self.session.take_effects(now)
            self._answer(effects)
            self._tell_watchers()
            if self.session.ended is not None:
                self._wake(len(self._takers))
            if effects:
                return effects
            if self.session.ended is not None and self._is_draining:
                return None
            await self._wait_for_work(now)

    async def _wait_for_work(self, now: float) -> None:
        wake_at = self.session.wake_at()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - now)):
                await self._work.wait()

    @staticmethod
    def _answer(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Resolve):
                effect.token.resolve(effect.error)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(link=link, text=text):
                if link in self._sockets:
                    with suppress(OSError, WebSocketException):  # its own task notices as well
                        await self._sockets[link].send(text)
            case Dial(link=link, url=url):
                self._run(self._serve(link, url))
            case HangUp(link=link):
                if link in self._sockets:
                    await self._sockets[link].close()
            case Find():
                self._run(self._find())
            case Resolve(error=error) if error is not None:
                log.info("%s: %s", self._name, error)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wake(self, count: int) -> None:
        while count > 0 and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    def _tell_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    # --- tasks of connections

    async def _find(self) -> None:
        try:
            urls = await self._find_urls()
        except ClientError as trouble:
            problem = trouble
            log.warning(
                "%s: %s", self._name, problem
            )  # it is tried again, for long: somebody should know why
            self.tell(lambda now: self.session.not_found(problem, now))
        else:
            self.tell(lambda now: self.session.found(urls, now))

    async def _serve(self, link: int, url: str) -> None:
        try:
            async with connect(url, max_size=MAX_FRAME_BYTES, **DIAL_SETTINGS) as socket:
                self._sockets[link] = socket
                self.tell(lambda now: self.session.connected(link, now))
                while True:
                    self._hear(link, await socket.recv())
        except (OSError, WebSocketException, ValueError) as problem:
            loss = loss_of(problem)
        except Exception as bug:
            failure = ClientError(f"a bug in penstock.client: {bug!r}")
            self.tell(lambda now: self.session.fail(failure))
            raise
        finally:
            self._sockets.pop(link, None)
        log.debug("%s: %s: %s", self._name, url, loss.reason)
        self.tell(lambda now: self.session.lost(link, loss, now))

    def _hear(self, link: int, frame: str | bytes) -> None:
        self.session.received(link, frame, self._loop.time())
        self._wake(len(self.session.ready))
        self._work.set()
