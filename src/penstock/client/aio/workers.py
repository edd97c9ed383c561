"""Workers as tasks: they call a handler with each job until they are stopped."""

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
    conclude,
    discarded,
    is_coroutine_function,
    too_many_stuck,
)


class AsyncWorkerPool:
    """One handler in `concurrency` tasks that share a queue. A handler that is not a coroutine runs in a thread."""

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
        """Handlers in threads that have timed out and not ended."""
        self._queue = open_queue(plan)
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(plan.concurrency)]

    def drain(self) -> None:
        """Takes no more jobs; running handlers go on."""
        self._queue.drain()

    async def close(self, deadline: float) -> bool:
        """Waits for handlers until the deadline (the loop's time), then cancels them and disconnects: other consumers
        get the jobs that are not done. Returns whether all handlers have finished."""
        loop = asyncio.get_running_loop()
        self._queue.drain()
        late = set(self._tasks)
        try:
            _done, late = await asyncio.wait(self._tasks, timeout=max(0.0, deadline - loop.time()))
        finally:  # also if the caller is cancelled: then no handler may go on in the background
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
            ended = problem  # not from here: it would stop the loop before jobs are given back
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
                problem = self.plan.timeout_error()
                problem.__cause__ = late  # shows where it hung
        except Exception as raised:  # noqa: BLE001 - a handler's errors are about the job, not about the worker
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
            result = await self._call_in_thread(job)
        # A plain function may have wrapped a coroutine function: what it returns belongs to this loop.
        return await result if inspect.isawaitable(result) else result

    async def _call_in_thread(self, job: AsyncJob) -> object:
        """In a thread of its own: a handler that hangs must neither block one of the loop's few threads nor keep the
        process from ending. Its result is dropped if it comes after the timeout."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
        context = copy_context()

        def report(result: object, problem: BaseException | None) -> None:
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
            except BaseException as raised:  # noqa: BLE001 - raised below, on the loop
                problem = raised
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(report, result, problem)

        threading.Thread(target=call, name=f"penstock-worker-{self.plan.group}", daemon=True).start()
        try:
            result, problem = await outcome
        finally:
            if outcome.cancelled():
                self._count_stuck()
        if problem is not None:
            raise problem
        return result

    def _count_stuck(self) -> None:
        self._stuck += 1
        if self._stuck >= STUCK_MAX:
            self._on_end(too_many_stuck(self.plan))


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`; a second one of them does what it did before. Only in the main thread, where the
    loop can handle signals."""
    loop = asyncio.get_running_loop()
    replaced: dict[int, Any] = {}

    def restore(number: int) -> None:
        loop.remove_signal_handler(number)
        before = replaced.pop(number)
        if before is not None:  # None: not set from Python, and cannot be set again
            signal.signal(number, before)

    def on_signal(number: int) -> None:
        restore(number)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, on_signal, number)
            replaced[number] = before
    try:
        yield
    finally:
        for left in list(replaced):
            restore(left)
