"""Workers as tasks: they call a handler with each job until they are stopped."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from random import Random

from penstock.client.aio.streams import AsyncJob, AsyncQueue
from penstock.client.aio.threads import call_in_thread
from penstock.client.handler_checks import discarded, is_coroutine_function
from penstock.client.publishing import OutgoingMessage
from penstock.client.worker_counts import JobCounter
from penstock.client.worker_policy import (
    STUCK_MAX,
    WorkerPlan,
    conclude,
    reply_of,
    too_many_stuck,
)


class AsyncWorkerPool:
    """One handler in `concurrency` tasks that share a queue. A handler that is not a coroutine runs in a thread."""

    def __init__(
        self,
        plan: WorkerPlan,
        open_queue: Callable[[WorkerPlan], AsyncQueue],
        on_end: Callable[[BaseException | None], None],
        send_reply: Callable[[OutgoingMessage], Awaitable[None]],
        counter: JobCounter,
    ) -> None:
        self.plan = plan
        self._counter = counter
        self._send_reply = send_reply
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
                self._counter.begin()
                try:
                    await self._handle(job)
                finally:
                    self._counter.end(job.action)
        except asyncio.CancelledError:
            raise
        except BaseException as problem:  # noqa: BLE001 - SystemExit, or a bug of ours: `run` raises it
            ended = problem  # not from here: it would stop the loop before jobs are given back
        finally:
            self._on_end(ended)

    async def _handle(self, job: AsyncJob) -> None:
        problem: Exception | None = None
        result: object = None
        limit = asyncio.timeout(self.plan.timeout_s)
        try:
            async with limit:
                result = await self._call(job)
            problem = discarded(result)
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
        if (reply := reply_of(job, result, problem, self.plan.policy)) is not None:
            await self._send_reply(reply)
        conclude(job, problem, self.plan.policy, self._random)

    async def _call(self, job: AsyncJob) -> object:
        if is_coroutine_function(self.plan.handler):
            result = self.plan.handler(job)
        else:
            result = await call_in_thread(
                self.plan.handler,
                job,
                name=f"penstock-worker-{self.plan.group}",
                on_abandon=self._count_stuck,
                on_late=self._ended_late,
            )
        # A plain function may have wrapped a coroutine function: what it returns belongs to this loop.
        return await result if inspect.isawaitable(result) else result

    def _count_stuck(self) -> None:
        self._stuck += 1
        if self._stuck >= STUCK_MAX:
            self._on_end(too_many_stuck(self.plan))

    def _ended_late(self, result: object) -> None:
        self._stuck -= 1
        discarded(result)
