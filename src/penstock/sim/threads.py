"""Threads of a simulated process: a job runs inline and whole at a later virtual time; jobs of one thread in order."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.sim.scheduler import Process, Scheduler

Job = Callable[[], None]


class SimThread:
    """One thread of a process, until that crashes. `delay` draws how long a job takes; `aim` may crash the process in
    it."""

    def __init__(
        self,
        scheduler: Scheduler,
        process: Process,
        *,
        delay: Callable[[], float],
        aim: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._process = process
        self._delay = delay
        self._aim = aim
        self._jobs: deque[Job] = deque()
        self._stopping: asyncio.Future[None] | None = None

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._plan()

    def _plan(self) -> None:
        self._aim()
        self._scheduler.after(self._delay(), self._process, self._run)

    def _run(self) -> None:
        self._jobs[0]()
        self._jobs.popleft()
        if self._jobs:
            self._plan()
        elif self._stopping is not None:
            self._stopping.get_loop().call_soon(_end, self._stopping)

    async def stop(self) -> None:
        if self._jobs:
            self._stopping = asyncio.get_running_loop().create_future()
            await self._stopping


def _end(stopping: "asyncio.Future[None]") -> None:
    if not stopping.done():
        stopping.set_result(None)
