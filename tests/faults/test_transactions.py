"""Consume, transform, produce in transactions while programs and nodes are killed: every message has exactly one
result."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.cluster import offsets_partition
from tests.faults.billers import CLIENTS, PARTITIONS, RESULTS, SOURCE, TRANSACTIONAL_ID
from tests.faults.clients import create_topic, leader_of, settings
from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).parents[2]
COORDINATORS = 4
FLAGS = (
    "--set",
    f"transactions.topic_partitions={COORDINATORS}",
    "--set",
    "groups.offsets_topic_partitions=4",
)
LAUNCH = """
import sys
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
from tests.faults.billers import main
main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""
EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS)
QUICK_CLIENT = "confluent-kafka"
"""The client of the short test in `make test`; the others run in `make test-long`."""


class Biller:
    """A program of `billers.py`, in all its processes."""

    def __init__(self, client: str, cluster: Cluster, orders: int) -> None:
        self._arguments = (client, cluster.bootstrap_servers, str(orders))
        self._done = -1
        self._said: list[str] = []
        self._progress = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> "Biller":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        if any(exc):
            sys.stdout.write("".join(["--- the program\n", *self._said[-40:]]))

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._reader.start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with self._progress:
                    self._said.append(line)
                    if line.strip().isdigit():
                        self._done = int(line)
                    self._progress.notify_all()

    def wait_for(self, count: int) -> None:
        with self._progress:
            happened = self._progress.wait_for(lambda: self._done >= count, 4 * PATIENCE_SECONDS)
            assert happened, f"{self._done} of {count} are done"

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        assert self._reader is not None
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)


def fill(cluster: Cluster, orders: int) -> None:
    replicas = len(cluster.nodes)
    create_topic(cluster, SOURCE, replicas=replicas)
    create_topic(cluster, RESULTS, PARTITIONS, replicas=replicas)
    producer = Producer(settings(cluster.bootstrap_servers, enable_idempotence=True))
    for number in range(orders):
        producer.produce(SOURCE, str(number))
    assert producer.flush(PATIENCE_SECONDS) == 0


def results(cluster: Cluster) -> list[int]:
    """All committed ones, in the order of each partition."""
    consumer = Consumer(
        settings(
            cluster.bootstrap_servers,
            group_id="audit",
            isolation_level="read_committed",
            enable_partition_eof=True,
        )
    )
    found: list[int] = []
    try:
        consumer.assign([TopicPartition(RESULTS, index, 0) for index in range(PARTITIONS)])
        at_end = set[int]()
        while len(at_end) < PARTITIONS:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            if is_end(message):
                at_end.add(message.partition() or 0)
            elif message.error() is None:
                found.append(int(message.value() or b""))
    finally:
        consumer.close()
    return found


def is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def check_results(cluster: Cluster, orders: int) -> None:
    # The markers of the last transaction come after its commit was answered.
    eventually(lambda: len(results(cluster)) >= orders, "the results of the last transaction")
    found = results(cluster)
    assert sorted(found) == list(range(orders))
    for index in range(PARTITIONS):
        of_partition = [number for number in found if number % PARTITIONS == index]
        assert of_partition == sorted(of_partition)
    assert not cluster.bugs()


@pytest.mark.parametrize(
    "client", [pytest.param(each, marks=pytest.mark.long if each != QUICK_CLIENT else ()) for each in CLIENTS]
)
def test_every_message_has_one_result_although_the_program_and_its_only_node_are_killed(
    tmp_path: Path, client: str
) -> None:
    """Two processes start twice: that takes some seconds."""
    orders = 60
    with Cluster(tmp_path, 1, flags=FLAGS) as cluster:
        fill(cluster, orders)
        with Biller(client, cluster, orders) as biller:
            biller.wait_for(15)
            biller.kill()
            biller.start()
            biller.wait_for(30)
            cluster[1].kill()
            cluster[1].start()
            cluster[1].wait_ready()
            biller.wait_for(orders)
        check_results(cluster, orders)


@pytest.mark.long
@EACH_CLIENT
@pytest.mark.parametrize("nodes", [1, 3])
def test_every_message_has_one_result_although_program_coordinator_and_leader_are_killed(
    tmp_path: Path, client: str, nodes: int
) -> None:
    orders = 600
    with Cluster(tmp_path, nodes, flags=FLAGS) as cluster:
        fill(cluster, orders)
        with Biller(client, cluster, orders) as biller:
            biller.wait_for(50)
            index = offsets_partition(TRANSACTIONAL_ID, COORDINATORS)
            for share, (topic, partition) in enumerate([("__transaction_state", index), (RESULTS, 0)], 1):
                biller.kill()
                biller.start()
                biller.wait_for(150 * share)
                victim = cluster[leader_of(cluster, topic, partition)]
                victim.kill()
                if nodes > 1:  # the others go on
                    biller.wait_for(200 * share)
                victim.start()
                victim.wait_ready()
            biller.wait_for(orders)
        check_results(cluster, orders)
