"""kill -9 in the middle of the work: what was accepted is done once, what was not comes again, on one node and across
a failover."""

import threading
from collections import Counter
from pathlib import Path

from tests.clients.queues import PATIENCE_SECONDS, commits, configure, publish, worker
from tests.faults.clients import create_topic, leader_of
from tests.faults.nodes import Cluster

TOPIC, GROUP = "jobs", "workers"
SOME = 200
JOBS = [str(number) for number in range(1500)]


class Crew:
    """Workers that note which jobs they were told are done, and which they were handed."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.done: Counter[str] = Counter()
        self.handed: Counter[str] = Counter()
        self.after_done: Counter[str] = Counter()
        """Handed out after somebody had been told that they were done: what must not be."""
        self.unsure: set[str] = set()
        """Accepted, but the node died before it said so: done, or they come again."""
        self._lock = threading.Condition()
        self._stopped = threading.Event()
        servers = ",".join(node.bootstrap_servers for node in cluster.nodes.values())
        self._threads = [threading.Thread(target=self._work, args=(servers,)) for _ in range(count)]

    def __enter__(self) -> "Crew":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self, servers: str) -> None:
        with worker(servers, GROUP, TOPIC, **{"max.poll.records": 20}) as consumer:
            while not self._stopped.is_set():
                messages = [one for one in consumer.poll(0.1) if one.error() is None]
                jobs = [(message.value() or b"").decode() for message in messages]
                with self._lock:
                    self.handed.update(jobs)
                    self.after_done.update(job for job in jobs if job in self.done)
                for message in messages:
                    consumer.acknowledge(message)
                certain = not messages or commits(consumer)
                with self._lock:
                    if certain:
                        self.done.update(jobs)
                    else:
                        self.unsure.update(jobs)
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


def test_one_node_killed_in_the_middle_does_every_job_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        [node] = cluster.nodes.values()
        create_topic(cluster, TOPIC, 1, replicas=1)
        configure(node.bootstrap_servers, GROUP, share_auto_offset_reset="earliest")
        publish(node.bootstrap_servers, TOPIC, JOBS, **{"batch.num.messages": 30})
        with Crew(cluster, 2) as crew:
            for count in (SOME, 2 * SOME):
                crew.wait_for(count)
                node.kill()
                node.start()
                node.wait_ready()
            crew.wait_for(len(JOBS))
        assert_each_was_done_once(crew)


def test_the_leader_killed_in_the_middle_does_every_job_once(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, 2)
        servers = ",".join(node.bootstrap_servers for node in cluster.nodes.values())
        configure(servers, GROUP, share_auto_offset_reset="earliest")
        publish(servers, TOPIC, JOBS, **{"batch.num.messages": 30})
        with Crew(cluster, 2) as crew:
            for count in (SOME, 3 * SOME):
                crew.wait_for(count)
                victim = leader_of(cluster, TOPIC, 0)
                cluster[victim].kill()
                crew.wait_for(count + SOME)
                cluster[victim].start()
                cluster[victim].wait_ready()
            crew.wait_for(len(JOBS))
        assert_each_was_done_once(crew)
