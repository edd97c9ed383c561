"""The seam between the node and its threads: a thread that runs jobs in order, for flushes. The simulator brings its
own, which runs on virtual time."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Job = Callable[[], None]


class JobThread(Protocol):
    """Runs jobs one after the other, off the event loop. A job never raises."""

    def submit(self, job: Job) -> None: ...

    async def stop(self) -> None:
        """Returns when all submitted jobs have run."""
        ...


class SystemThread:
    """A thread of the process, started with the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    async def stop(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            thread, self._thread = self._thread, None
            await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
