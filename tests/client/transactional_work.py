"""Work in transactions that tests interrupt: jobs of a queue, one result for each, and a worker process to kill."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client import Client
from tests.client.committed import committed_values
from tests.faults.waiting import PATIENCE_SECONDS, eventually

TOPIC: Final = "orders"
QUEUE: Final = "workers"
RESULTS: Final = "invoices"
TRANSACTIONAL_ID: Final = "worker-1"


class WorkerProcess:
    """A process of `transactional_worker`, which can be killed and started again."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._done = 0
        self._progress = threading.Condition()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.client.transactional_worker"]
        self._process = subprocess.Popen(
            [*command, self._servers, TOPIC, QUEUE, RESULTS, TRANSACTIONAL_ID],
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._count, args=(self._process,), daemon=True).start()

    def _count(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            with self._progress:
                self._done += line == "done\n"
                self._progress.notify_all()

    def wait_for(self, count: int) -> None:
        """So many transactions were committed, as far as the worker heard of it."""
        with self._progress:
            assert self._progress.wait_for(lambda: self._done >= count, 3 * PATIENCE_SECONDS), self._done

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)


@contextmanager
def working(servers: str, jobs: int, **topic: int) -> Iterator[WorkerProcess]:
    """A worker is busy with so many jobs. `topic`: settings of both topics."""
    with Client(servers) as client:
        client.admin.create_topic(TOPIC, **topic)
        client.admin.create_topic(RESULTS, **topic)
        client.admin.create_queue(QUEUE, topic=TOPIC, max_deliveries=100)
        for number in range(jobs):
            client.publish_soon(TOPIC, str(number))
        client.flush()
    worker = WorkerProcess(servers)
    worker.start()
    try:
        yield worker
    finally:
        worker.kill()


def check_each_once(servers: str, jobs: int, partitions: int = 1) -> None:
    """Waits until all jobs are done: each has one committed result."""

    def found() -> list[int]:
        return sorted(map(int, committed_values(servers, RESULTS, partitions)))

    with Client(servers) as client:
        eventually(lambda: client.admin.queue(QUEUE).undone == 0, "all jobs to be done", 3 * PATIENCE_SECONDS)
    eventually(lambda: len(found()) >= jobs, "the results of all jobs")
    assert found() == list(range(jobs))
