"""Java's clients and franz-go speak the newer dialect of transactions. They read, transform and write while client,
coordinator and leader are killed: every message has exactly one result."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cluster import offsets_partition
from tests.faults.checks import read_all
from tests.faults.clients import create_topic, leader_of
from tests.faults.load import Load
from tests.faults.nodes import Cluster
from tests.faults.results_topic import ResultsTopic
from tests.kafka.programs.builds import franz_go_client, java_client
from tests.kafka.programs.pipe import Program

pytestmark = pytest.mark.long

PROGRAMS = {"java": java_client, "franz-go": franz_go_client}
SOURCE, RESULTS, GROUP, TRANSACTIONAL_ID = "orders", "invoices", "billing", "billing-1"
PARTITIONS = 2
COORDINATORS = 4
SETTINGS = {
    "transactions.topic_partitions": COORDINATORS,
    "groups.offsets_topic_partitions": COORDINATORS,
    "groups.consumer_session_timeout_ms": 6000,
    "groups.consumer_heartbeat_interval_ms": 1000,
}
FLAGS = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
BETWEEN_FAULTS = 300
"""Records that the results grow by before the next fault: several transactions."""


@contextmanager
def transforming(
    command: list[str], cluster: Cluster, log: Path, settings: dict[str, str]
) -> Iterator[Program]:
    with Program(command, log) as program:
        client = program.connect(bootstrap=cluster.bootstrap_servers, **settings)
        client.transform(TRANSACTIONAL_ID, SOURCE, RESULTS, group=GROUP)
        yield program


def kill_and_restart(cluster: Cluster, topic: str, partition: int, results: ResultsTopic) -> None:
    """Kills the leader. A cluster works on without it; a lone node is started again first."""
    victim = cluster[leader_of(cluster, topic, partition)]
    victim.kill()
    if cluster.running:
        results.wait_for_more(BETWEEN_FAULTS)
    victim.start()
    victim.wait_ready()
    results.wait_for_more(BETWEEN_FAULTS)


def assert_one_result_each(cluster: Cluster, results: ResultsTopic) -> None:
    """Each partition of the results has its share of the source, in the source's order."""
    [rows] = read_all(cluster.bootstrap_servers, SOURCE, 1).values()
    source = list(rows.values())
    found = [[message.value() for message in each] for each in results.wait_for_records(len(source))]
    assert sum(map(len, found)) == len(source)
    for of_partition in found:
        share = set(of_partition)
        assert of_partition == [value for value in source if value in share]


@pytest.mark.parametrize(
    ("nodes", "settings"),
    [(1, {}), (3, {}), (3, {"protocol": "consumer"})],
    ids=["one node", "three nodes", "three nodes and a group of KIP-848"],
)
@pytest.mark.parametrize("client", PROGRAMS)
def test_every_message_has_one_result_although_client_coordinator_and_leader_are_killed(
    client: str, nodes: int, settings: dict[str, str], tmp_path: Path
) -> None:
    command = PROGRAMS[client]()
    with Cluster(tmp_path, nodes, flags=FLAGS) as cluster:
        create_topic(cluster, SOURCE, replicas=nodes)
        create_topic(cluster, RESULTS, PARTITIONS, replicas=nodes)
        results = ResultsTopic(cluster, RESULTS, PARTITIONS)
        with Load(cluster, SOURCE, producers=1) as load:
            with transforming(command, cluster, tmp_path / "first.log", settings) as program:
                results.wait_for_more(BETWEEN_FAULTS)
                program.kill()
            with transforming(command, cluster, tmp_path / "second.log", settings):
                results.wait_for_more(BETWEEN_FAULTS)
                coordinator = offsets_partition(TRANSACTIONAL_ID, COORDINATORS)
                kill_and_restart(cluster, "__transaction_state", coordinator, results)
                kill_and_restart(cluster, RESULTS, 0, results)
                load.stop()
                assert_one_result_each(cluster, results)
        assert not cluster.bugs()
