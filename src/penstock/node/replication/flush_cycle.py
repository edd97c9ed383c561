"""Group commit: one flush at a time in a thread, each for everything that was requested before it started.

A cycle starts at the end of the turn of the event loop in which it was requested, so that all requests of a turn share
it. Requests that arrive while a cycle runs share the next one. There is no timer: an idle node flushes a single write
at once, and under load the duration of a flush decides how many writes share it.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from penstock.errors import StorageError
from penstock.node.scheduling.threads import JobThread

log = logging.getLogger("penstock.node")

Work = TypeVar("Work")
Outcome = TypeVar("Outcome")


class FlushCycle(Generic[Work, Outcome]):
    """Decides when to flush. Its owner keeps the pending work and supplies three steps:

    `begin` runs on the loop, takes all pending work and returns it, or returns None if no thread is needed.
    `flush` runs in the thread. It must not raise: see `attempt`.
    `finish` runs on the loop, with the work and with what `flush` returned.
    """

    def __init__(
        self,
        thread: JobThread,
        *,
        begin: Callable[[], Work | None],
        flush: Callable[[Work], Outcome],
        finish: Callable[[Work, Outcome], None],
    ) -> None:
        self._thread = thread
        self._begin = begin
        self._flush = flush
        self._finish = finish
        self._requested = False
        self._scheduled = False
        self._running = False
        self._idle: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()

    def request(self, delay_seconds: float = 0.0) -> None:
        """There is pending work: the next cycle takes it. One call per cycle is enough. A delayed cycle also delays
        requests that come after it."""
        self._requested = True
        if self._running or self._scheduled:
            return
        self._scheduled = True
        if delay_seconds:
            self._loop.call_later(delay_seconds, self._start)
        else:
            self._loop.call_soon(self._start)

    async def drain(self) -> None:
        """Returns when there is no pending work and no cycle runs."""
        while self._requested or self._running:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future

    async def stop(self) -> None:
        await self.drain()
        await self._thread.stop()

    def _start(self) -> None:
        self._scheduled = self._requested = False
        work = self._begin()
        if work is None:
            self._ended()
        else:
            self._running = True
            self._thread.submit(partial(self._run, work))

    def _run(self, work: Work) -> None:
        outcome = self._flush(work)
        try:
            self._loop.call_soon_threadsafe(self._complete, work, outcome)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # Requested after `stop`, and the loop has ended: its waiters ended with it.

    def _complete(self, work: Work, outcome: Outcome) -> None:
        self._running = False
        self._finish(work, outcome)
        self._ended()

    def _ended(self) -> None:
        if self._requested:
            self.request()
            return
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)


def attempt(flush: Callable[[], None]) -> StorageError | None:
    """Calls `flush` and returns why the data may not be on the disk. An unforeseen error counts as a failed flush: a
    cycle that never ended would prevent every later flush."""
    try:
        flush()
    except StorageError as error:
        return error
    except Exception as surprise:
        log.exception("a bug in flushing")
        return StorageError(f"flush failed: {surprise!r}")
    return None
