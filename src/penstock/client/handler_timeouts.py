"""Timeouts of handlers in threads.

A thread cannot be interrupted. So when a handler times out, its job goes to other consumers and another thread replaces
its thread. The handler itself goes on for as long as it likes, and is then told that it came too late.

Invariants:
 1. A handler either ends in time or times out, never both; the monitor reports one of them, once.
 2. All handlers have the same timeout, so they time out in the order in which they began.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from penstock.client.streams import Job


class _Running(NamedTuple):
    due: float
    thread: threading.Thread


class TimeoutMonitor:
    """Calls `on_timeout` with each job that is not done in time, and with its thread. Without a timeout it does
    nothing."""

    def __init__(
        self, timeout_s: float | None, on_timeout: Callable[[Job, threading.Thread], None], name: str
    ) -> None:
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._running: dict[Job, _Running] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        if timeout_s is not None:
            threading.Thread(target=self._run, name=f"penstock-timeouts-{name}", daemon=True).start()

    def begin(self, job: Job) -> None:
        """The calling thread begins with the job now."""
        if self._timeout_s is not None:
            with self._changed:
                self._running[job] = _Running(time.monotonic() + self._timeout_s, threading.current_thread())
                if len(self._running) == 1:
                    self._changed.notify()

    def end(self, job: Job) -> bool:
        """Whether it was in time (1)."""
        if self._timeout_s is None:
            return True
        with self._changed:
            return self._running.pop(job, None) is not None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (late := self._next_timeout()) is not None:
            self._on_timeout(*late)

    def _next_timeout(self) -> tuple[Job, threading.Thread] | None:
        """Waits for one; None when the monitor was closed."""
        with self._changed:
            while not self._is_closed:
                job, running = next(iter(self._running.items()), (None, None))  # (2)
                if job is None or running is None:
                    self._changed.wait()
                elif (left_s := running.due - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                else:
                    del self._running[job]
                    return job, running.thread
        return None
