"""Workers as tasks: handlers called with jobs until they are told to stop."""

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from random import Random
from typing import Any

from penstock.client.aio.streams import AsyncJob, AsyncQueue
from penstock.client.worker_policy import (
    STUCK_MAX,
    WorkerPlan,
    discarded,
    is_coroutine_function,
    too_many_stuck,
)
from penstock.client.workers import conclude


class AsyncWorkerPool:
    """One handler in `concurrency` tasks that share a queue. A handler that is no coroutine is called in a thread."""

    def __init__(
        self,
        plan: WorkerPlan,
        open_queue: Callable[[WorkerPlan], AsyncQueue],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self.plan = plan
        self._on_end = on_end
        self._random = Random()
        self._stuck = 0
        """Calls in threads that are late and have not ended."""
        self._queue = open_queue(plan)
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(plan.concurrency)]

    def drain(self) -> None:
        """Takes no more jobs; those in hand go on."""
        self._queue.drain()

    async def close(self, deadline: float) -> bool:
        """Waits for handlers until the deadline (the loop's time), then cancels them and hangs up: what is not done
        goes to others. Whether all were done."""
        loop = asyncio.get_running_loop()
        self._queue.drain()
        late = set(self._tasks)
        try:
            _done, late = await asyncio.wait(self._tasks, timeout=max(0.0, deadline - loop.time()))
        finally:  # also if whoever waits for the end is cancelled: nothing goes on behind their back
            for task in late:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._queue.close(timeout=max(1.0, deadline - loop.time()))
        return not late

    async def _work(self) -> None:
        ended: BaseException | None = None
        try:
            async for job in self._queue:
                await self._handle(job)
        except asyncio.CancelledError:
            raise
        except BaseException as problem:  # noqa: BLE001 - SystemExit, or a bug of ours: `run` raises it
            ended = problem  # not from here: it would stop the loop, and nothing would be given back
        finally:
            self._on_end(ended)

    async def _handle(self, job: AsyncJob) -> None:
        problem: Exception | None = None
        limit = asyncio.timeout(self.plan.timeout_s)
        try:
            async with limit:
                problem = discarded(await self._call(job))
        except TimeoutError as late:
            problem = late
            if limit.expired():
                problem = self.plan.late()
                problem.__cause__ = late  # shows where it hung
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is about the job, not about the worker
            problem = raised
        except (SystemExit, KeyboardInterrupt):
            if not job.settled:
                job.retry()
            raise
        conclude(job, problem, self.plan.policy, self._random)

    async def _call(self, job: AsyncJob) -> object:
        if is_coroutine_function(self.plan.handler):
            result = self.plan.handler(job)
        elif self.plan.timeout_s is None:
            result = await asyncio.to_thread(self.plan.handler, job)
        else:
            result = await self._call_aside(job)
        # A plain function may have wrapped a coroutine function: what it returns belongs to this loop.
        return await result if inspect.isawaitable(result) else result

    async def _call_aside(self, job: AsyncJob) -> object:
        """In a thread of its own: one that hangs must not keep a place of the loop's few threads, nor the process from
        ending. What comes of it when nobody waits any more is dropped."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
        context = copy_context()

        def tell(result: object, problem: BaseException | None) -> None:
            if outcome.done():
                self._stuck -= 1
                discarded(result)
            else:
                outcome.set_result((result, problem))

        def call() -> None:
            result: object = None
            problem: BaseException | None = None
            try:
                result = context.run(self.plan.handler, job)
            except BaseException as raised:  # noqa: BLE001 - it is raised where it is waited for
                problem = raised
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(tell, result, problem)

        threading.Thread(target=call, name=f"penstock-worker-{self.plan.group}", daemon=True).start()
        try:
            result, problem = await outcome
        finally:
            if outcome.cancelled():
                self._leave_behind()
        if problem is not None:
            raise problem
        return result

    def _leave_behind(self) -> None:
        self._stuck += 1
        if self._stuck >= STUCK_MAX:
            self._on_end(too_many_stuck(self.plan))


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a graceful end; a second one of them does what it did before. Where the loop can have
    signals: in the main thread."""
    loop = asyncio.get_running_loop()
    heard: dict[int, Any] = {}

    def leave(number: int) -> None:
        loop.remove_signal_handler(number)
        before = heard.pop(number)
        if before is not None:  # None: not set from Python, and cannot be set again
            signal.signal(number, before)

    def hear(number: int) -> None:
        leave(number)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, hear, number)
            heard[number] = before
    try:
        yield
    finally:
        for left in list(heard):
            leave(left)
