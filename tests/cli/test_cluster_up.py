"""`penstock cluster up` with real processes: they serve together, and none outlives the command."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .conftest import Cli, succeeded

WAIT_SECONDS = 60
COMMAND = [sys.executable, "-m", "penstock.cli", "cluster", "up"]
QUICK = ("--set", "replication.election_timeout_ms=600", "--set", "replication.fence_after_ms=1500")


class Up:
    """The command, and its output so far. A cluster in memory keeps its files in `folder`, also when it is killed."""

    def __init__(self, folder: Path, *flags: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        clean["TMPDIR"] = str(folder)
        self.process = subprocess.Popen(
            [*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean
        )
        self.rows: list[list[str]] = []
        self.bootstrap = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words and words[0].isdigit():
                self.rows.append(words)
            if line.startswith("bootstrap servers: "):
                self.bootstrap = words[-1]
                return
        raise AssertionError(self.process.communicate()[1])

    @property
    def http(self) -> str:
        return self.rows[0][2]

    def child(self, node: int) -> psutil.Process:
        return psutil.Process(int(self.rows[node - 1][4]))

    def said(self, wanted: str) -> str:
        """The next line of stderr with this in it."""
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if wanted in line)

    def end(self, number: signal.Signals) -> str:
        """Its output until its end."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=WAIT_SECONDS)[1]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*flags: str) -> Up:
        started.append(Up(tmp_path, *flags))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Four nodes in memory; the topic `orders` has two partitions of three replicas each."""
    running = Up(tmp_path_factory.mktemp("cluster"), "--memory", "--nodes", "4", *QUICK)
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    [made] = admin.create_topics([NewTopic("orders", 2)]).values()
    made.result(WAIT_SECONDS)
    producer = Producer({"bootstrap.servers": running.bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce("orders", str(number))
    assert producer.flush(WAIT_SECONDS) == 0
    yield running
    running.process.kill()
    running.process.communicate()


def status(cli: Cli, running: Up, *flags: str) -> Any:
    return json.loads(succeeded(cli("cluster", "status", "--json", *flags, "--http", running.http)).stdout)


def test_metadata_of_any_node_names_all_nodes(cluster: Up) -> None:
    first_only = cluster.bootstrap.split(",")[0]
    assert len(AdminClient({"bootstrap.servers": first_only}).list_topics(timeout=WAIT_SECONDS).brokers) == 4


def eventually(check: Callable[[], None]) -> None:
    """A new topic has no leader for a moment, and on a busy machine leaders change and nodes answer late."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def test_status_shows_nodes_leaders_and_replicas(cluster: Up, plain_cli: Cli) -> None:
    def is_shown() -> None:
        shown = succeeded(plain_cli("cluster", "status", "--check", "--http", cluster.http)).stdout
        assert shown.count("alive") == 4
        assert "controller" in shown

    def is_in_json() -> None:
        found = status(plain_cli, cluster, "--topic", "orders")
        assert [len(one["replicas"]) for one in found["partitions"]] == [3, 3]
        assert all(one["leader"] in one["in_sync"] for one in found["partitions"])
        assert {node["metadata_role"] for node in found["nodes"]} == {"voter", "learner"}

    eventually(is_shown)
    eventually(is_in_json)


def test_every_node_knows_the_lag_of_partitions_that_others_lead(cluster: Up, plain_cli: Cli) -> None:
    def is_known(http: str) -> None:
        result = plain_cli("cluster", "status", "--json", "--topic", "orders", "--http", http)
        found = json.loads(succeeded(result).stdout)
        assert [one["lag"] for one in found["partitions"]] == [0, 0]
        assert found["unanswered"] == []

    for row in cluster.rows:
        eventually(partial(is_known, row[2]))


def test_a_decommissioned_node_has_no_replicas_and_is_removed(cluster: Up, plain_cli: Cli) -> None:
    assert status(plain_cli, cluster)["nodes"][-1]["hosts"]
    result = succeeded(plain_cli("cluster", "decommission", "4", "--http", cluster.rows[3][2]))
    assert "node 4 is removed from the cluster" in result.stderr
    found = status(plain_cli, cluster)
    assert [node["node_id"] for node in found["nodes"]] == [1, 2, 3]
    assert all(4 not in one["replicas"] for one in found["partitions"])


def test_a_node_is_not_decommissioned_if_its_replicas_would_not_fit(cluster: Up, plain_cli: Cli) -> None:
    for node in status(plain_cli, cluster)["nodes"][3:]:
        succeeded(plain_cli("cluster", "decommission", str(node["node_id"]), "--http", cluster.http))
    result = plain_cli("cluster", "decommission", "3", "--http", cluster.http)
    assert result.exit_code == 1
    assert "3 replicas" in result.stderr
    assert "start another node" in result.stderr


def test_a_missing_node_cannot_be_decommissioned(cluster: Up, plain_cli: Cli) -> None:
    result = plain_cli("cluster", "decommission", "9", "--http", cluster.http)
    assert result.exit_code == 1
    assert "there is no node 9" in result.stderr


def test_a_balanced_cluster_has_nothing_to_rebalance(cluster: Up, plain_cli: Cli) -> None:
    def is_balanced() -> None:
        """A node that gets no CPU for a moment loses the leadership of its partitions."""
        succeeded(plain_cli("cluster", "rebalance", "--http", cluster.http))
        result = succeeded(plain_cli("cluster", "rebalance", "--dry-run", "--http", cluster.http))
        assert "nothing to do" in result.stderr

    eventually(is_balanced)


def test_a_dead_node_is_reported_and_fails_the_check(cluster: Up, plain_cli: Cli) -> None:
    """The last one on this cluster."""
    cluster.child(2).kill()
    assert "SIGKILL" in cluster.said("node 2 was killed")
    assert "--node-id 2" in cluster.said("start it again")
    check = ("cluster", "status", "--check", "--trouble", "--http", cluster.http)
    while "under-replicated" not in (result := plain_cli(*check)).stdout:  # until the others suspect it
        pass
    assert result.exit_code == 3


def test_ctrl_c_stops_the_nodes_one_after_the_other(up: Callable[..., Up]) -> None:
    running = up("--memory", "--nodes", "2")
    children = [running.child(1), running.child(2)]
    said = running.end(signal.SIGINT)
    assert said.index("stopping node 1") < said.index("stopping node 2") < said.index("stopped\n")
    assert "killed" not in said
    assert running.process.returncode == 0
    assert not any(child.is_running() for child in children)


def test_no_node_outlives_a_command_that_was_killed(up: Callable[..., Up]) -> None:
    running = up("--memory", "--nodes", "2")
    children = [running.child(1), running.child(2)]
    running.end(signal.SIGKILL)
    _, left = psutil.wait_procs(children, timeout=WAIT_SECONDS)
    assert left == []


def test_the_same_folder_is_the_same_cluster_on_the_same_ports_and_can_grow(
    up: Callable[..., Up], tmp_path: Path, plain_cli: Cli
) -> None:
    first = up("--nodes", "1", "--data-dir", str(tmp_path))
    before = status(plain_cli, first)
    producer = Producer({"bootstrap.servers": first.bootstrap, "enable.idempotence": True})
    producer.produce("orders", b"kept")
    assert producer.flush(WAIT_SECONDS) == 0
    again = plain_cli("cluster", "up", "--data-dir", str(tmp_path))
    assert (again.exit_code, "is running already" in again.stderr) == (1, True)
    first.end(signal.SIGTERM)

    second = up("--nodes", "2", "--data-dir", str(tmp_path))
    assert second.rows[0][1:4] == first.rows[0][1:4]
    after = status(plain_cli, second)
    assert after["cluster_id"] == before["cluster_id"]
    assert [node["node_id"] for node in after["nodes"]] == [1, 2]
    assert _first_message(second.bootstrap, "orders") == b"kept"


def _first_message(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None
        return message.value()
    finally:
        consumer.close()
