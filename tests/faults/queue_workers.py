"""Queue workers that run while nodes fail, and the ledger in which they record their acks."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS
from tests.ports import free_port

Job = TypeVar("Job", int, str)


class Ledger(Generic[Job]):
    """The outcome of each job, as far as workers know it."""

    def __init__(self) -> None:
        self.done: Counter[Job] = Counter()
        self.after_done: Counter[Job] = Counter()
        """Delivered again after a worker's accept was acknowledged, which is a bug."""
        self.unsure: set[Job] = set()
        """Delivered, or accepted without an acknowledgement because the node died: done, or delivered again."""
        self._lock = threading.Condition()

    def record_delivered(self, jobs: Collection[Job]) -> None:
        with self._lock:
            self.after_done.update(job for job in jobs if job in self.done)
            self.unsure.update(jobs)
            self._lock.notify_all()

    def record_done(self, jobs: Collection[Job]) -> None:
        """The accept was answered."""
        with self._lock:
            self.unsure.difference_update(jobs)
            self.done.update(jobs)
            self._lock.notify_all()

    def wait_for(self, count: int) -> None:
        with self._lock:
            settled = self._lock.wait_for(
                lambda: len(self.done.keys() | self.unsure) >= count, PATIENCE_SECONDS * 2
            )
            assert settled, f"{len(self.done)} of {count} jobs are done"


class WorkerThreads(Generic[Job]):
    """Workers in threads of their own, as long as the `with` block lasts. Each is given the ledger and an event that
    tells it to stop."""

    def __init__(self, workers: Iterable[Callable[[Ledger[Job], threading.Event], None]]) -> None:
        self.ledger: Ledger[Job] = Ledger()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=work, args=(self.ledger, self._stopped)) for work in workers]

    def __enter__(self) -> Ledger[Job]:
        for thread in self._threads:
            thread.start()
        return self.ledger

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def assert_each_was_done_once(ledger: Ledger[Job], jobs: Sequence[Job]) -> None:
    assert ledger.done.keys() | ledger.unsure == set(jobs)
    assert len(ledger.done) > len(jobs) / 2
    assert not ledger.after_done, "a job that was done came again"
    assert set(ledger.done.values()) == {1}


def restart(cluster: Cluster, node_id: int) -> None:
    cluster[node_id].start()
    cluster[node_id].wait_ready()


def open_http(cluster: Cluster) -> dict[int, str]:
    """Gives each node of a cluster that is not running an HTTP port: where they can be reached."""
    urls = {}
    for node in cluster.nodes.values():
        address = f"127.0.0.1:{free_port()}"
        node.flags = (*node.flags, "--http", address)
        urls[node.node_id] = f"http://{address}"
    return urls
