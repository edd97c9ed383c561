"""Which handlers are late: a watch over the threads of one pool.

A thread cannot be interrupted. So one that takes longer than its handler may loses its job, which goes to others, and
its place, which another thread takes. It goes on nevertheless, for as long as it likes, and is then told that it came
too late.

Invariants:
 1. Of each handler it is said once that it has ended in time, or once that it is late; never both.
 2. All have the same time, so they become late in the order in which they began.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from penstock.client.streams import Job


class _Begun(NamedTuple):
    due: float
    thread: threading.Thread


class Watch:
    """Calls `on_late` with each job that is not done in time, and with the thread that has it. Without a timeout
    nothing is ever late."""

    def __init__(
        self, timeout_s: float | None, on_late: Callable[[Job, threading.Thread], None], name: str
    ) -> None:
        self._timeout_s = timeout_s
        self._on_late = on_late
        self._begun: dict[Job, _Begun] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        if timeout_s is not None:
            threading.Thread(target=self._look, name=f"penstock-watch-{name}", daemon=True).start()

    def begin(self, job: Job) -> None:
        """The calling thread begins with it now."""
        if self._timeout_s is not None:
            with self._changed:
                self._begun[job] = _Begun(time.monotonic() + self._timeout_s, threading.current_thread())
                if len(self._begun) == 1:
                    self._changed.notify()

    def end(self, job: Job) -> bool:
        """Whether it was in time (1)."""
        if self._timeout_s is None:
            return True
        with self._changed:
            return self._begun.pop(job, None) is not None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _look(self) -> None:
        while (late := self._next_late()) is not None:
            self._on_late(*late)

    def _next_late(self) -> tuple[Job, threading.Thread] | None:
        """Waits for one; None when it was closed."""
        with self._changed:
            while not self._is_closed:
                job, begun = next(iter(self._begun.items()), (None, None))  # (2)
                if job is None or begun is None:
                    self._changed.wait()
                elif (left_s := begun.due - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                else:
                    del self._begun[job]
                    return job, begun.thread
        return None
