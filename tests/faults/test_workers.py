"""kill -9 under workers over WebSocket: acknowledged jobs are never delivered again, and all others are."""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import WebSocketException

from tests.faults.clients import leader_of
from tests.faults.nodes import Cluster
from tests.faults.queue_workers import Ledger, WorkerThreads, assert_each_was_done_once, open_http, restart
from tests.faults.waiting import PATIENCE_SECONDS
from tests.web.workers import Worker, working

QUEUE = "jobs"
SOME = 300
JOBS = range(3000)
PAUSE_SECONDS = 0.1


def start_workers(urls: Collection[str]) -> WorkerThreads[int]:
    """One worker for each node, which reconnects whenever its node is back."""
    return WorkerThreads([_worker(url) for url in urls])


def _worker(url: str) -> Callable[[Ledger[int], threading.Event], None]:
    def serve(ledger: Ledger[int], stopped: threading.Event) -> None:
        while not stopped.is_set():
            try:
                with working(url, QUEUE, QUEUE, credit=20) as worker:
                    _work(worker, ledger, stopped)
            except (OSError, WebSocketException, TimeoutError):
                stopped.wait(PAUSE_SECONDS)

    return serve


def _work(worker: Worker, ledger: Ledger[int], stopped: threading.Event) -> None:
    while not stopped.is_set():
        try:
            jobs = worker.hear("jobs", within=PAUSE_SECONDS)["jobs"]
        except TimeoutError:
            continue
        values = [job["value"] for job in jobs]
        ledger.record_delivered(values)
        [answer] = worker.settle(jobs).values()
        if "error" not in answer:
            ledger.record_done(values)


def assert_all_partitions_are_named(urls: Collection[str]) -> None:
    """Each node says which partitions it has, and where the others are; it may learn that a moment later."""
    addresses = {url.replace("http://", "ws://") + "/v1/work" for url in urls}
    for url in urls:
        with working(url, "onlookers", QUEUE, credit=0) as worker:
            told = worker.hear("working")
            while None in {row["url"] for row in told["elsewhere"]}:
                told = worker.hear("working")
            assert len(told["partitions"]) + len(told["elsewhere"]) == 3
            assert {row["url"] for row in told["elsewhere"]} <= addresses


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
        publish(urls[1], partitions=2)
        with start_workers(urls.values()) as ledger:
            for count in (SOME, 3 * SOME):
                ledger.wait_for(count)
                node.kill()
                restart(cluster, node.node_id)
            ledger.wait_for(len(JOBS))
        assert_each_was_done_once(ledger, JOBS)
        assert cluster.bugs() == []


def test_the_leader_killed_in_the_middle_does_every_job_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    urls = open_http(cluster)
    with cluster:
        publish(urls[1], partitions=3, replication_factor=3)
        assert_all_partitions_are_named(urls.values())
        with start_workers(urls.values()) as ledger:
            for count in (SOME, 3 * SOME):
                ledger.wait_for(count)
                victim = leader_of(cluster, QUEUE, 0)
                cluster[victim].kill()
                ledger.wait_for(count + SOME)
                restart(cluster, victim)
            ledger.wait_for(len(JOBS))
        assert_each_was_done_once(ledger, JOBS)
        assert cluster.bugs() == []
