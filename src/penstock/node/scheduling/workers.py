"""Threads for blocking work: compaction and the deletion of files, and loading old records from the disk."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

WORKER_THREADS = 2
"""One may compact a large partition for minutes; the other continues with deletions meanwhile."""


class Workers:
    """A pool that starts its threads only when there is work."""

    def __init__(self, threads: int = WORKER_THREADS, name: str = "penstock-worker") -> None:
        self._threads = threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, job: Callable[[], T]) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._pool, job)

    def stop(self) -> None:
        """Waits for running jobs; each is bounded by one segment or one file."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
