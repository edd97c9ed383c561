"""Nodes that join, and nodes that are restarted one after the other, under load."""

from collections import Counter
from functools import partial
from pathlib import Path

from tests.faults.checks import assert_kept
from tests.faults.clients import create_topic, describe_partitions, wait_in_sync
from tests.faults.load import Load
from tests.faults.nodes import Cluster, Node
from tests.faults.waiting import eventually

TOPIC = "payments"
PARTITIONS = 4
SOME = 100


def test_a_fourth_node_gets_its_share_and_nothing_is_lost_on_the_way(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, PARTITIONS)
        with Load(cluster, TOPIC, partitions=PARTITIONS) as load:
            load.wait_for_more(SOME)
            cluster.join(4)
            # Twelve replicas on four nodes are three each, plus or minus one: a smaller difference is not worth a copy.
            eventually(lambda: 4 in copies(cluster) and set(copies(cluster).values()) <= {2, 3, 4}, "a share")
            load.wait_for_more(SOME)
        assert_kept(cluster, load)
        for partition, one in describe_partitions(cluster, TOPIC).items():
            given_up = next(iter(set(cluster.nodes) - set(one.replicas)))
            eventually(partial(has_let_go, cluster[given_up], partition), f"node {given_up} lets it go")


def has_let_go(node: Node, partition: int) -> bool:
    return not (node.data_dir / "topics" / f"{TOPIC}-{partition}").exists()


def copies(cluster: Cluster) -> dict[int, int]:
    """How many partitions each node has; none while one is on its way."""
    known = list(describe_partitions(cluster, TOPIC).values())
    if len(known) != PARTITIONS or any(len(one.replicas) != 3 for one in known):
        return {}
    return Counter(node for one in known for node in one.replicas)


def test_a_rolling_restart_costs_clients_retries_and_nothing_else(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, PARTITIONS)
        with Load(cluster, TOPIC, partitions=PARTITIONS) as load:
            for node in cluster.nodes.values():
                load.wait_for_more(SOME)
                assert node.stop() == 0
                load.wait_for_more(SOME)
                node.start()
                node.wait_ready()
                wait_in_sync(cluster, TOPIC)
            load.wait_for_more(SOME)
        assert_kept(cluster, load)
