"""Counts turns of the event loop that take too long, and logs the request or function that caused them.

The loop runs a timer every TIMER_SECONDS. A thread looks whether the timer is overdue; if it is, the thread reads the
stack of the loop's thread, which is still in the turn that holds the loop. Requests cost nothing extra: no time is
taken around them. On a busy machine the loop's thread may wait for a CPU in the middle of any function: Linux tells how
long it did, and that time does not count.

An idle node wakes up for little else, so each of these turns is short: no file is opened, and the thread waits for a
plain lock.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from penstock.kafka.wire import ApiKey
from penstock.node.limits.limited_log import LimitedLog
from penstock.node.metrics import NodeMetrics

log = logging.getLogger("penstock.node")

SLOW_SECONDS = 0.25
TIMER_SECONDS = 0.2
"""A turn is counted for sure when it takes this much longer than SLOW_SECONDS, and its cause is seen for sure when it
takes twice this much longer."""
SCHEDULER_FILE = "/proc/thread-self/schedstat"
"""Linux: nanoseconds on a CPU, nanoseconds waiting for one, and how often it got one."""
SCHEDULER_BYTES = 128


class LoopWatchdog:
    """Watches the running event loop from `start` to `stop`."""

    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._warnings = LimitedLog(log, time.monotonic)
        self._due = 0.0
        """By `time.monotonic`: the time of uvloop stands still within a turn."""
        self._waited_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._scheduler_fd: int | None = None
        self._running = threading.Lock()
        """Held from `start` to `stop`."""
        self._thread = threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True)
        self.cause: str | None = None
        """Set by the thread while the loop is late."""

    def start(self) -> None:
        with suppress(OSError):
            self._scheduler_fd = os.open(SCHEDULER_FILE, os.O_RDONLY)  # of this thread, which runs the loop
        self._running.acquire()
        self._start_timer()
        self._thread.start()

    def stop(self) -> None:
        self._running.release()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join()  # it waits for nothing but this
        if self._scheduler_fd is not None:
            os.close(self._scheduler_fd)
            self._scheduler_fd = None

    def _start_timer(self) -> None:
        self._waited_before = waited_for_cpu(self._scheduler_fd)
        self._due = time.monotonic() + TIMER_SECONDS
        self._timer = self._loop.call_later(TIMER_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        late = time.monotonic() - self._due
        if late > SLOW_SECONDS:
            late -= waited_for_cpu(self._scheduler_fd) - self._waited_before
        if late > SLOW_SECONDS:
            self._metrics.slow_turns += 1
            self._report(late)
        self.cause = None
        self._start_timer()

    def _report(self, late: float) -> None:
        """Without a cause it is no warning: on a busy machine the whole process may have waited for a CPU."""
        if self.cause is None:
            log.debug(
                "the event loop was late by %.2f seconds: the process may have been without a CPU", late
            )
        else:
            self._warnings.warn(self.cause, f"the event loop was held for {late:.2f} seconds by {self.cause}")

    def _watch(self) -> None:
        while not self._running.acquire(timeout=TIMER_SECONDS):
            due = self._due
            if self.cause is None and time.monotonic() - due > SLOW_SECONDS:
                frame = sys._current_frames().get(self._loop_thread)
                cause = None if frame is None else describe(frame)
                if self._due == due:  # the loop is still in this turn
                    self.cause = cause


def waited_for_cpu(scheduler_fd: int | None) -> float:
    """How many seconds the thread that opened SCHEDULER_FILE was ready to run and had no CPU, since it began; 0 where
    the system does not say."""
    if scheduler_fd is None:
        return 0.0
    try:
        return int(os.pread(scheduler_fd, SCHEDULER_BYTES, 0).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def describe(frame: FrameType) -> str:
    """The innermost function of Penstock on a stack, and the request that it works for."""
    function = request = None
    at: FrameType | None = frame
    while at is not None and request is None:
        if at.f_globals.get("__name__", "").startswith("penstock."):
            function = function or f"{at.f_globals['__name__']}.{at.f_code.co_name}"
            request = _request_of(at)
        at = at.f_back
    where = function or f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
    return where if request is None else f"{request} (in {where})"


def _request_of(frame: FrameType) -> str | None:
    """The request that a function of the Kafka or HTTP port has among its variables."""
    known = frame.f_locals
    header = known.get("header") or getattr(known.get("slot"), "header", None)
    api_key = getattr(header, "api_key", None)
    if isinstance(api_key, int):
        name = ApiKey(api_key).name if api_key in ApiKey.__members__.values() else "unknown"
        return f"API {api_key} ({name})"
    scope = known.get("scope")
    if isinstance(scope, dict) and "path" in scope:
        return f"{scope.get('method', 'WebSocket')} {scope['path']}"
    return None
