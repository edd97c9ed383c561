"""A session driven by threads: one that acts ("pilot"), one for each connection, and the callers' own.

One lock guards the session. It is held for decisions only, never while something is sent, dialled or waited for.
Frames are sent by the pilot alone, so they leave in the order in which the session made them.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from penstock.client.errors import ClientError, Closed
from penstock.client.frames import MAX_FRAME_BYTES
from penstock.client.losses import DIAL_SETTINGS, loss_of
from penstock.client.session import Dial, Effect, Find, HangUp, Item, Resolve, Send, Session

JOIN_SECONDS = 5.0
"""For threads that are to end: one that is dialling a host which does not answer is not waited for any longer."""

log = logging.getLogger("penstock.client")

FindUrls = Callable[[], list[str]]


class Settlement:
    """What becomes of an ack. Nobody has to look at it; `wait` returns when the broker has it on disk."""

    __slots__ = ("_driver", "_error", "_is_done")

    def __init__(self, driver: "ThreadDriver[Item]") -> None:
        self._driver = driver
        self._is_done = False
        self._error: ClientError | None = None

    def done(self) -> bool:
        return self._is_done

    def wait(self, timeout: float | None = None) -> None:
        """Raises LeaseLost if it was not taken; TimeoutError (seconds) if there is no answer yet."""
        if not self._driver.wait_for(lambda: self._is_done, timeout):
            raise TimeoutError(
                f"no answer within {timeout} s: it may still come; wait again, or look at the log"
            )
        if self._error is not None:
            raise self._error

    def resolve(self, error: ClientError | None) -> None:
        self._error = error
        self._is_done = True


class ThreadDriver(Generic[Item]):
    """Runs a session until it ends or is closed."""

    def __init__(self, session: Session[Item], find_urls: FindUrls, name: str) -> None:
        self.session = session
        self._find_urls = find_urls
        self._name = name
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        """Something to take, an answer, or the end."""
        self._work = threading.Condition(self._lock)
        """For the pilot."""
        self._sockets: dict[int, ClientConnection] = {}
        self._threads: list[threading.Thread] = []
        self._watchers = 0
        """Callers who wait for more than an item: they look whenever the pilot has looked."""
        self._is_draining = False
        self._is_over = False
        self._pilot = threading.Thread(target=self._fly, name=f"penstock-{name}", daemon=True)
        self._pilot.start()

    # --- for callers, from any thread

    def receive(self, timeout: float | None) -> Item | None:
        """None when nothing came in time, or no more is to come. Raises what ended the session."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._is_draining:
                item = self.session.take()
                if self.session.has_words:
                    self._work.notify()
                if item is not None:
                    return item
                if self.session.ended is not None:
                    raise self.session.ended
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                self._news.wait(remaining)
            if self.session.ended is not None and not isinstance(self.session.ended, Closed):
                raise self.session.ended
            return None

    def receive_unless_idle(self, idle_s: float | None) -> Item | None:
        """As `receive`, but only the time counts in which a node was there to hand something out."""
        if idle_s is not None:
            self.wait_for(
                lambda: self.session.is_served or self.session.ended is not None or self._is_draining, None
            )
        return self.receive(idle_s)

    def tell(self, say: Callable[[float], None]) -> None:
        """Lets a caller say something to the session; what follows from it is done by the pilot."""
        with self._lock:
            say(time.monotonic())
            self._work.notify()
            effects = self.session.take_effects(time.monotonic()) if self._is_over else []
            self._answer(effects)
        for effect in effects:  # there is no pilot any more
            self._perform(effect)

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until something is so that only the session can bring about."""
        with self._lock:
            self._watchers += 1
            try:
                return self._news.wait_for(is_so, timeout)
            finally:
                self._watchers -= 1

    def flush(self, timeout: float | None) -> bool:
        """Whether all that was said has been answered."""
        return self.wait_for(lambda: self.session.is_settled or self.session.ended is not None, timeout)

    def drain(self) -> None:
        """From now on `receive` gives nothing; what is in hand can still be settled."""
        with self._lock:
            self._is_draining = True
            self.session.drain()
            self._news.notify_all()
            self._work.notify()

    def close(self, timeout: float | None) -> None:
        """Waits for answers, hangs up, ends the threads. Any number of times."""
        self.drain()
        self.flush(timeout)
        with self._lock:
            self.session.end()
            self._work.notify()
        self._join()

    # --- the pilot

    def _fly(self) -> None:
        while (effects := self._next_effects()) is not None:
            for effect in effects:
                self._perform(effect)

    def _next_effects(self) -> list[Effect] | None:
        """Waits for some; None when there will be no more."""
        with self._lock:
            while True:
                now = time.monotonic()
                effects = self.session.take_effects(now)
                self._answer(effects)
                if effects or self._watchers or self.session.ended is not None:
                    self._news.notify_all()
                if effects:
                    return effects
                if self.session.ended is not None and self._is_draining:
                    self._is_over = True
                    return None
                wake_at = self.session.wake_at()
                self._work.wait(None if wake_at is None else max(0.0, wake_at - now))

    @staticmethod
    def _answer(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Resolve):
                effect.token.resolve(effect.error)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(link=link, text=text):
                self._send(link, text)
            case Dial(link=link, url=url):
                self._run(f"link-{link}", lambda: self._serve(link, url))
            case HangUp(link=link):
                socket = self._sockets.get(link)
                if socket is not None:
                    socket.close()
            case Find():
                self._run("find", self._find)
            case Resolve(error=error) if error is not None:
                log.info("%s: %s", self._name, error)

    def _send(self, link: int, text: str) -> None:
        socket = self._sockets.get(link)
        if socket is None:
            return
        with suppress(OSError, WebSocketException):  # its own thread notices as well, and tells the session
            socket.send(text)

    def _run(self, what: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"penstock-{self._name}-{what}", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _join(self) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in [self._pilot, *self._threads]:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- threads of connections

    def _find(self) -> None:
        try:
            urls = self._find_urls()
        except ClientError as trouble:
            problem = trouble
            log.warning(
                "%s: %s", self._name, problem
            )  # it is tried again, for long: somebody should know why
            self.tell(lambda now: self.session.not_found(problem, now))
        else:
            self.tell(lambda now: self.session.found(urls, now))

    def _serve(self, link: int, url: str) -> None:
        try:
            with connect(url, max_size=MAX_FRAME_BYTES, **DIAL_SETTINGS) as socket:
                self._sockets[link] = socket
                self.tell(lambda now: self.session.connected(link, now))
                while True:
                    self._hear(link, socket.recv())
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
        with self._lock:
            self.session.received(link, frame, time.monotonic())
            if self.session.ready:
                self._news.notify_all()
            self._work.notify()
