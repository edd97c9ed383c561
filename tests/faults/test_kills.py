"""kill -9 of one node, of two, of all: acked records survive."""

from pathlib import Path

from tests.faults.checks import assert_kept
from tests.faults.clients import create_topic, leader_of, leaders
from tests.faults.load import Load
from tests.faults.nodes import Cluster
from tests.faults.waiting import eventually

TOPIC = "payments"
PARTITIONS = 4
SOME = 150


def test_nothing_acked_is_lost_when_leaders_and_followers_are_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, PARTITIONS)
        with Load(cluster, TOPIC, partitions=PARTITIONS) as load:
            for partition in range(2):
                load.wait_for_more(SOME)
                victim = leader_of(cluster, TOPIC, partition)
                cluster[victim].kill()
                assert leader_of(cluster, TOPIC, partition, other_than=victim) != victim
                load.wait_for_more(SOME)
                cluster[victim].start()
                cluster[victim].wait_ready()
            at_work = set(leaders(cluster, TOPIC).values())  # by now each node may lead again
            follower = next((node for node in cluster.nodes if node not in at_work), victim)
            cluster[follower].kill()
            load.wait_for_more(SOME)
            cluster[follower].start()
            cluster[follower].wait_ready()
            load.wait_for_more(SOME)
        assert_kept(cluster, load)


def test_five_nodes_lose_two_at_once_and_nothing_else(tmp_path: Path) -> None:
    with Cluster(tmp_path, 5) as cluster:
        create_topic(cluster, TOPIC, PARTITIONS, replicas=5)
        with Load(cluster, TOPIC, partitions=PARTITIONS) as load:
            load.wait_for_more(SOME)
            first = leader_of(cluster, TOPIC, 0)
            others: list[int] = []

            def is_known() -> bool:
                others[:] = [node for node in leaders(cluster, TOPIC).values() if node not in (first, -1)]
                return bool(others)

            eventually(is_known, "another leader")
            second = others[0]
            cluster[first].kill()
            cluster[second].kill()
            load.wait_for_more(SOME)
            for victim in (first, second):
                cluster[victim].start()
            cluster.wait_ready()
            load.wait_for_more(SOME)
        assert_kept(cluster, load)


def test_all_nodes_killed_at_once_come_back_with_everything(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, PARTITIONS)
        with Load(cluster, TOPIC, partitions=PARTITIONS) as load:
            load.wait_for_more(SOME)
            for node in cluster.running:
                node.kill()
            for node in cluster.nodes.values():
                node.start()
            cluster.wait_ready()
            load.wait_for_more(SOME)
        assert_kept(cluster, load)


def test_a_node_that_lost_its_disk_is_filled_again_from_the_others(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, PARTITIONS)
        with Load(cluster, TOPIC, partitions=PARTITIONS) as load:
            load.wait_for_more(SOME)
            victim = cluster[leader_of(cluster, TOPIC)]
            victim.kill()
            victim.wipe()
            load.wait_for_more(SOME)
            victim.start()
            victim.wait_ready()
            load.wait_for_more(SOME)
        assert_kept(cluster, load)
        # Now the new copies are needed: another node dies, and the refilled one is part of the majority.
        other = next(node for node in cluster.nodes if node != victim.node_id)
        cluster[other].kill()
        with Load(cluster, TOPIC, partitions=PARTITIONS, producers=1, name="later") as more:
            more.wait_for_more(SOME)
        cluster[other].start()
        cluster[other].wait_ready()
        assert_kept(cluster, more)
