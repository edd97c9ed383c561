"""kill -9 under workers over WebSocket: what they were told is done never comes back, and everything else does."""

import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import WebSocketException

from tests.faults.clients import leader_of
from tests.faults.nodes import Cluster, free_port
from tests.faults.patience import PATIENCE_SECONDS
from tests.web.workers import Worker, working

QUEUE = "jobs"
SOME = 300
JOBS = range(3000)
PAUSE_SECONDS = 0.1


class Crew:
    """One worker for each node, which comes back whenever its node does."""

    def __init__(self, urls: Iterable[str]) -> None:
        self.done: Counter[int] = Counter()
        self.after_done: Counter[int] = Counter()
        """Handed out after somebody had been told that they were done: what must not be."""
        self.unsure: set[int] = set()
        """Accepted, but the node died before it said so: done, or they come again."""
        self._lock = threading.Condition()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(url,)) for url in urls]

    def __enter__(self) -> "Crew":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _serve(self, url: str) -> None:
        while not self._stopped.is_set():
            try:
                with working(url, QUEUE, QUEUE, credit=20) as worker:
                    self._work(worker)
            except (OSError, WebSocketException, TimeoutError):
                self._stopped.wait(PAUSE_SECONDS)

    def _work(self, worker: Worker) -> None:
        while not self._stopped.is_set():
            try:
                jobs = worker.hear("jobs", within=PAUSE_SECONDS)["jobs"]
            except TimeoutError:
                continue
            values = [job["value"] for job in jobs]
            with self._lock:
                self.after_done.update(value for value in values if value in self.done)
                self.unsure.update(values)
            [answer] = worker.settle(jobs).values()
            with self._lock:
                if "error" not in answer:
                    self.unsure.difference_update(values)
                    self.done.update(values)
                self._lock.notify_all()

    def wait_for(self, count: int) -> None:
        with self._lock:
            settled = self._lock.wait_for(
                lambda: len(self.done.keys() | self.unsure) >= count, PATIENCE_SECONDS * 2
            )
            assert settled, f"{len(self.done)} of {count} jobs are done"


def assert_each_was_done_once(crew: Crew) -> None:
    assert crew.done.keys() | crew.unsure == set(JOBS)
    assert len(crew.done) > len(JOBS) / 2
    assert not crew.after_done, "a job that was done came again"
    assert set(crew.done.values()) == {1}


def assert_told_where_all_are(urls: list[str]) -> None:
    """Each node says which partitions are here, and where the others are; it may hear of that a moment later."""
    addresses = {url.replace("http://", "ws://") + "/v1/work" for url in urls}
    for url in urls:
        with working(url, "onlookers", QUEUE, credit=0) as worker:
            told = worker.hear("working")
            while None in {row["url"] for row in told["elsewhere"]}:
                told = worker.hear("working")
            assert len(told["partitions"]) + len(told["elsewhere"]) == 3
            assert {row["url"] for row in told["elsewhere"]} <= addresses


def open_http(cluster: Cluster) -> list[str]:
    """Gives each node an HTTP port: where they can be reached."""
    urls = []
    for node in cluster.nodes.values():
        address = f"127.0.0.1:{free_port()}"
        node.flags = (*node.flags, "--http", address)
        urls.append(f"http://{address}")
    return urls


def publish(url: str, **wish: Any) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http:
        http.post("/v1/queues", json={"queue": QUEUE, **wish}).raise_for_status()
        for first in range(0, len(JOBS), 30):
            records = [{"value": value, "key": str(value)} for value in JOBS[first : first + 30]]
            http.post(f"/v1/topics/{QUEUE}/records", json={"records": records}).raise_for_status()


def test_one_node_killed_in_the_middle_does_every_job_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    urls = open_http(cluster)
    with cluster:
        [node] = cluster.nodes.values()
        publish(urls[0], partitions=2)
        with Crew(urls) as crew:
            for count in (SOME, 3 * SOME):
                crew.wait_for(count)
                node.kill()
                node.start()
                node.wait_ready()
            crew.wait_for(len(JOBS))
        assert_each_was_done_once(crew)
        assert cluster.bugs() == []


def test_the_leader_killed_in_the_middle_does_every_job_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    urls = open_http(cluster)
    with cluster:
        publish(urls[0], partitions=3, replication_factor=3)
        assert_told_where_all_are(urls)
        with Crew(urls) as crew:
            for count in (SOME, 3 * SOME):
                crew.wait_for(count)
                victim = leader_of(cluster, QUEUE, 0)
                cluster[victim].kill()
                crew.wait_for(count + SOME)
                cluster[victim].start()
                cluster[victim].wait_ready()
            crew.wait_for(len(JOBS))
        assert_each_was_done_once(crew)
        assert cluster.bugs() == []
