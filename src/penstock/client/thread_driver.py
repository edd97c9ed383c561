"""A session driven by threads: a driver thread, one thread for each connection, and the callers' own.

One lock guards the session. A thread holds it for decisions only, never while it sends, connects or waits. Only the
driver thread sends frames, so they leave in the order in which the session made them.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from penstock.client.arguments import Seconds, wait_seconds_or_none
from penstock.client.connection_loss import UpgradeRefused
from penstock.client.errors import ClientError
from penstock.client.http_nodes import HttpNodes
from penstock.client.session import Connect, Disconnect, Effect, FindNodes, Item, Resolve, Send, Session
from penstock.client.session_driver import SessionDriver, log

JOIN_SECONDS = 1.0
"""How long `close` waits for its threads to end. One may be connecting to a host that does not answer: it ends by
itself, and does not keep the process alive."""


class _NodeConnection(ClientConnection):
    """Leaves redirects to the session."""

    def handshake(self, *arguments: Any, **more: Any) -> None:
        try:
            super().handshake(*arguments, **more)
        except InvalidStatus as refused:
            raise UpgradeRefused(refused.response) from None


class Settlement:
    """The outcome of an ack. You may ignore it; `wait` returns when the ack is durable."""

    __slots__ = ("_driver", "_error", "_is_done")

    def __init__(self, driver: "ThreadDriver[Item]") -> None:
        self._driver = driver
        self._is_done = False
        self._error: ClientError | None = None

    def done(self) -> bool:
        return self._is_done

    def wait(self, timeout: Seconds | None = None) -> None:
        """Raises LeaseLost if the broker refused it; TimeoutError (seconds) if there is no answer yet."""
        timeout_s = wait_seconds_or_none("timeout", timeout)
        if not self._driver.wait_for(lambda: self._is_done, timeout_s):
            raise TimeoutError(
                f"no answer within {timeout_s} s: it may still come; wait again, or look at the log"
            )
        if self._error is not None:
            raise self._error

    def resolve(self, error: ClientError | None) -> None:
        self._error = error
        self._is_done = True


class ThreadDriver(SessionDriver[Item, Settlement, ClientConnection]):
    """Runs a session in threads."""

    def __init__(self, session: Session[Item], nodes: HttpNodes, name: str) -> None:
        super().__init__(session, nodes, name)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Wakes callers: a record, an answer, or the end."""
        self._work = threading.Condition(self._lock)
        """Wakes the driver thread."""
        self._driver_waits = False
        """Whether it has to be woken: most calls come while it is awake already."""
        self._threads: list[threading.Thread] = []
        self._watchers = 0
        """Callers that wait for something else than a record: they look whenever the driver thread has looked."""
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-{name}", daemon=True)
        self._thread.start()

    # --- for callers, from any thread

    def receive(self, timeout: float | None) -> Item | None:
        """None after the timeout, or when the session drains. Raises the error that ended the session."""
        self._guard.check()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._is_draining:
                item = self.session.take()
                if self._driver_waits and self.session.has_effects:
                    self._wake_driver()
                if item is not None:
                    return item
                if self.session.ended is not None:
                    raise self.session.ended
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                self._changed.wait(remaining)
            self._check_ended()
            return None

    def receive_unless_idle(self, idle_s: float | None) -> Item | None:
        """The same as `receive`, but the time counts only while a node serves the session."""
        if idle_s is not None:
            self.wait_for(lambda: not self._is_waiting_for_node, None)
        return self.receive(idle_s)

    def settlement(self) -> Settlement:
        return Settlement(self)

    def tell(self, event: Callable[[float], None]) -> None:
        self._guard.check()
        with self._lock:
            event(time.monotonic())
            self._wake_driver()
            effects = self._take_effects(time.monotonic()) if self._is_over else []
        for effect in effects:  # the driver thread has ended
            self._perform(effect)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Waits for a condition that only the session can change."""
        self._guard.check()
        with self._lock:
            self._watchers += 1
            try:
                return self._changed.wait_for(condition, timeout)
            finally:
                self._watchers -= 1

    def flush(self, timeout: float | None) -> bool:
        """Whether all acks are durable, also those since the last flush."""
        self.wait_for(lambda: self.session.is_settled or self.session.ended is not None, timeout)
        with self._lock:
            return self.session.is_settled and not self.session.take_lost_acks()

    def drain(self) -> None:
        self._guard.check()
        with self._lock:
            self._is_draining = True
            self.session.drain()
            self._changed.notify_all()
            self._wake_driver()

    def close(self, timeout: float | None) -> None:
        """Waits for answers, disconnects and ends the threads. May be called again. Does nothing in a forked
        process, which has no part in the session."""
        if self._guard.is_forked:
            return
        self.drain()
        self.flush(timeout)
        with self._lock:
            self.session.end()
            self._wake_driver()
        self._join()

    def _wake_driver(self) -> None:
        """Needs the lock."""
        if self._driver_waits:
            self._driver_waits = False
            self._work.notify()

    # --- the driver thread

    def _run(self) -> None:
        try:
            while (effects := self._next_effects()) is not None:
                for effect in effects:
                    self._perform(effect)
        except Exception as bug:  # noqa: BLE001 - callers get it
            self._end_after(bug)
            self._run()

    def _next_effects(self) -> list[Effect] | None:
        """Waits for some; None when there will be no more."""
        with self._lock:
            while True:
                now = time.monotonic()
                effects = self._take_effects(now)
                if effects or self._watchers or self.session.ended is not None:
                    self._changed.notify_all()
                if effects:
                    return effects
                if self._is_finished:
                    self._is_over = True
                    return None
                wake_at = self.session.wake_at()
                self._driver_waits = True
                self._work.wait(None if wake_at is None else max(0.0, wake_at - now))
                self._driver_waits = False

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(connection_id=connection_id, text=text):
                if (socket := self._sockets.get(connection_id)) is not None:
                    with suppress(
                        OSError, WebSocketException
                    ):  # the connection's own thread reports the loss
                        socket.send(text)
            case Connect(connection_id=connection_id, url=url):
                self._start(f"connection-{connection_id}", lambda: self._serve(connection_id, url))
            case Disconnect(connection_id=connection_id):
                if (socket := self._sockets.get(connection_id)) is not None:
                    socket.close()
            case FindNodes():
                self._start("find", self._find)
            case Resolve(error=error) if error is not None:
                log.info("%s: %s", self._name, error)

    def _start(self, what: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"penstock-{self._name}-{what}", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _join(self) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in [self._thread, *self._threads]:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- threads of connections

    def _find(self) -> None:
        with self._reporting_failed_search():
            urls = self._nodes.find_urls()
            self.tell(lambda now: self.session.found(urls, now))

    def _serve(self, connection_id: int, url: str) -> None:
        with self._reporting_loss(connection_id, url):
            settings = self._connect_settings(url)
            with connect(url, create_connection=_NodeConnection, **settings) as socket:
                self._sockets[connection_id] = socket
                self.tell(lambda now: self.session.connected(connection_id, now))
                while True:
                    self._received(connection_id, socket.recv())

    def _received(self, connection_id: int, data: str | bytes) -> None:
        with self._lock:
            self.session.received(connection_id, data, time.monotonic())
            if self.session.ready:
                self._changed.notify_all()
            self._wake_driver()
