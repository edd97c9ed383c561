"""Two schedulers, and kill -9 of the leader that stores their ticks: each tick is stored once, and none is missing."""

import threading
from collections import Counter
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.client import Client, Job
from tests.faults.clients import leader_of
from tests.faults.nodes import Cluster
from tests.faults.queue_workers import open_http
from tests.faults.waiting import PATIENCE_SECONDS

TOPIC = "schedule.tick"
BEFORE, AFTER = 3, 4
"""Ticks that are handled before the leader is killed, and after that."""


class Ticks:
    """Those that a handler has been called with."""

    def __init__(self) -> None:
        self.handled: Counter[str] = Counter()
        self._changed = threading.Condition()

    def add(self, tick: str) -> None:
        with self._changed:
            self.handled[tick] += 1
            self._changed.notify_all()

    def wait_for_more(self, count: int) -> None:
        with self._changed:
            wanted = len(self.handled) + count
            assert self._changed.wait_for(lambda: len(self.handled) >= wanted, 2 * PATIENCE_SECONDS)


def start_scheduler(cluster: Cluster, ticks: Ticks, stack: ExitStack) -> None:
    """A client that runs the schedule and works on its jobs, until the end of the test."""
    client = stack.enter_context(Client(cluster.bootstrap_servers))

    @client.every("1s", name="tick", backoff=0.1)
    def handle(job: Job) -> None:
        ticks.add(job.json()["tick"])

    runner = threading.Thread(target=lambda: client.run(signals=False))
    runner.start()
    stack.callback(runner.join)
    stack.callback(client.stop)


def stored_ticks(cluster: Cluster) -> list[str]:
    with (
        Client(cluster.bootstrap_servers) as client,
        client.subscribe(TOPIC, name="reader", read_old=True, idle_s=20) as reader,
    ):
        return [message.json()["tick"] for message in reader]


@pytest.mark.timeout(400)
def test_each_tick_is_stored_once_when_the_leader_is_killed(tmp_path: Path) -> None:
    ticks = Ticks()
    cluster = Cluster(tmp_path)
    open_http(cluster)
    with cluster:
        with ExitStack() as stack:
            for _ in range(2):
                start_scheduler(cluster, ticks, stack)
            ticks.wait_for_more(BEFORE)
            cluster[leader_of(cluster, TOPIC, 0)].kill()
            ticks.wait_for_more(AFTER)
        stored = stored_ticks(cluster)
    assert len(stored) == len(set(stored)) >= BEFORE + AFTER
    moments = sorted(map(datetime.fromisoformat, stored))
    assert {(later - earlier).total_seconds() for earlier, later in pairwise(moments)} == {1.0}
    assert set(ticks.handled) <= set(stored)
