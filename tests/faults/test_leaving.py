"""A node that dies while partitions move to it, and other moves that replace these, under load."""

from pathlib import Path

from penstock.cli.cluster_api import ClusterApi
from penstock.errors import ErrorCode
from tests.faults.checks import assert_kept
from tests.faults.clients import create_topic, raw
from tests.faults.load import Load
from tests.faults.nodes import Cluster
from tests.faults.waiting import eventually
from tests.kafka.requests import reassign
from tests.ports import free_port

TOPIC = "payments"
SOME = 100
STAYING = {1, 2, 3}


def replicas(api: ClusterApi, partition: int) -> set[int]:
    """The replicas of the topic, with those that are being added."""
    return next(
        set(one.replicas)
        for one in api.snapshot().partitions
        if (one.topic, one.partition) == (TOPIC, partition)
    )


def begun(api: ClusterApi) -> list[int]:
    """Partitions whose leader reports how far the new replica is behind."""
    return [move.partition for move in api.snapshot().moves if move.bytes_behind is not None]


def test_moves_to_a_dead_node_are_replaced_and_it_can_be_decommissioned(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, flags=("--set", "replication.auto_rebalance=false"))
    http = f"127.0.0.1:{free_port()}"
    cluster[1].flags += ("--http", http)
    api = ClusterApi(lambda: [f"http://{http}"])
    with cluster:
        create_topic(cluster, TOPIC, 2)
        with Load(cluster, TOPIC, partitions=2) as load, raw(cluster, 1) as client:
            load.wait_for_more(SOME)
            cluster.join(4).kill()
            for partition in (0, 1):
                assert reassign(client, TOPIC, [1, 2, 4], partition=partition) == ErrorCode.NONE
            eventually(lambda: begun(api) == [0, 1], "the leaders wait for node 4")
            assert reassign(client, TOPIC, [1, 2], partition=0) == ErrorCode.NONE
            eventually(lambda: replicas(api, 0) == {1, 2}, "what was asked for instead")
            api.decommission(4, on=True)
            eventually(lambda: {node.node_id for node in api.snapshot().nodes} == STAYING, "node 4 is out")
            assert replicas(api, 1) == STAYING
            assert reassign(client, TOPIC, [1, 2, 3], partition=0) == ErrorCode.NONE
            eventually(lambda: replicas(api, 0) == STAYING, "three copies again")
            load.wait_for_more(SOME)
        assert_kept(cluster, load)
