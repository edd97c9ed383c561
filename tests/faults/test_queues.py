"""kill -9 in the middle of the work: accepted jobs are done once, others are delivered again, on one node and across
a failover."""

import threading
from pathlib import Path

from tests.faults.clients import create_topic, leader_of
from tests.faults.nodes import Cluster
from tests.faults.queue_workers import Ledger, WorkerThreads, assert_each_was_done_once, restart
from tests.kafka.clients.queues import commits, configure, publish, worker

TOPIC, GROUP = "jobs", "workers"
SOME = 200
JOBS = [str(number) for number in range(1500)]
WORKERS = 2


def start_workers(cluster: Cluster) -> WorkerThreads[str]:
    """Share consumers, which find the nodes themselves."""

    def work(ledger: Ledger[str], stopped: threading.Event) -> None:
        with worker(cluster.bootstrap_servers, GROUP, TOPIC, **{"max.poll.records": 20}) as consumer:
            while not stopped.is_set():
                messages = [one for one in consumer.poll(0.1) if one.error() is None]
                jobs = [(message.value() or b"").decode() for message in messages]
                ledger.record_delivered(jobs)
                for message in messages:
                    consumer.acknowledge(message)
                if messages and commits(consumer):
                    ledger.record_done(jobs)

    return WorkerThreads([work] * WORKERS)


def test_one_node_killed_in_the_middle_does_every_job_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        [node] = cluster.nodes.values()
        create_topic(cluster, TOPIC, 1, replicas=1)
        configure(node.bootstrap_servers, GROUP, share_auto_offset_reset="earliest")
        publish(node.bootstrap_servers, TOPIC, JOBS, **{"batch.num.messages": 30})
        with start_workers(cluster) as ledger:
            for count in (SOME, 2 * SOME):
                ledger.wait_for(count)
                node.kill()
                restart(cluster, node.node_id)
            ledger.wait_for(len(JOBS))
        assert_each_was_done_once(ledger, JOBS)


def test_the_leader_killed_in_the_middle_does_every_job_once(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, 2)
        configure(cluster.bootstrap_servers, GROUP, share_auto_offset_reset="earliest")
        publish(cluster.bootstrap_servers, TOPIC, JOBS, **{"batch.num.messages": 30})
        with start_workers(cluster) as ledger:
            for count in (SOME, 3 * SOME):
                ledger.wait_for(count)
                victim = leader_of(cluster, TOPIC, 0)
                cluster[victim].kill()
                ledger.wait_for(count + SOME)
                restart(cluster, victim)
            ledger.wait_for(len(JOBS))
        assert_each_was_done_once(ledger, JOBS)
