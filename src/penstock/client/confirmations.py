"""The future of a published message: a concurrent.futures.Future that costs little until someone waits for it.

A usual future has a lock and a condition of its own, which take longer to make than librdkafka takes to queue, send and
confirm a message. Most futures of `publish_soon` are only looked at when they are done. So this one makes its condition
when another part of the standard library asks for it (`concurrent.futures.wait`, `as_completed`), and its own `result`
waits for a single lock.

Invariants:
 1. `_making` guards the fields as long as there is no condition, and the condition does afterwards. No thread waits for
    another lock while it holds `_making`.
 2. A future is running from the beginning: librdkafka cannot cancel a message.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"
"""The names of states in concurrent.futures."""

_making = threading.RLock()
"""Reentrant, because a signal handler may publish, too."""


class Confirmation(Future[T]):
    """The answer to a message."""

    _state = RUNNING
    _result = None
    _exception = None
    _own_condition: threading.Condition | None = None

    def __init__(self) -> None:
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """For the standard library."""
        with _making:
            if self._own_condition is None:
                self._own_condition = threading.Condition()
            return self._own_condition

    # --- for callers

    def cancel(self) -> bool:
        return False  # (2)

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return self._state != FINISHED

    def done(self) -> bool:
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> T:
        problem = self.exception(timeout)
        try:
            if problem is not None:
                raise problem
            return cast(T, self._result)
        finally:
            del problem, self  # an error that is kept would keep this frame, and with it the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != FINISHED:
            self._wait(timeout)
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        with _making:
            if self._own_condition is None and self._state != FINISHED:
                self._done_callbacks.append(fn)
                return
        super().add_done_callback(fn)

    def _wait(self, timeout: float | None) -> None:
        """Returns when it is done; TimeoutError if it is not."""
        done = threading.Lock()
        done.acquire()

        def release(_: Any) -> None:
            done.release()

        self.add_done_callback(release)
        if done.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            return
        with self._condition:
            if self._state != FINISHED:
                self._done_callbacks.remove(release)
                raise TimeoutError

    # --- for the publisher

    def set_result(self, result: T) -> None:
        if not self._finish(result, None):
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        if not self._finish(None, exception):
            super().set_exception(exception)

    def _finish(self, result: T | None, exception: BaseException | None) -> bool:
        """Whether there was no condition."""
        with _making:
            if self._own_condition is not None or self._state == FINISHED:
                return False
            self._result, self._exception, self._state = result, exception, FINISHED
        if self._done_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]  # typeshed leaves it out
        return True
