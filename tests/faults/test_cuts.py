"""Nodes that cannot reach one another while clients reach all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from tests.faults.checks import assert_kept, read_all
from tests.faults.clients import create_topic, describe_partitions, leader_of, raw
from tests.faults.load import Load
from tests.faults.network_cuts import NetworkCuts
from tests.faults.nodes import Cluster
from tests.faults.raw_requests import list_latest, produce
from tests.faults.waiting import eventually

TOPIC = "payments"
SOME = 60


@contextmanager
def cut_cluster(folder: Path) -> Iterator[tuple[Cluster, NetworkCuts]]:
    with NetworkCuts([1, 2, 3]) as cuts:
        cluster = Cluster(folder, advertise=cuts.ports)
        cuts.watch(cluster.nodes)
        with cluster:
            create_topic(cluster, TOPIC)
            yield cluster, cuts


def test_a_leader_cut_from_its_peers_acks_nothing_and_steps_down(tmp_path: Path) -> None:
    with cut_cluster(tmp_path) as (cluster, cuts), Load(cluster, TOPIC) as load:
        load.wait_for_more(SOME)
        leader = leader_of(cluster, TOPIC)
        with raw(cluster, leader) as client:
            acked = produce(client, TOPIC, b"before:0")
            assert acked.error == ErrorCode.NONE
            cuts.isolate(leader)
            # It was written here, and no other node will ever have it: no answer may be an ack.
            assert produce(client, TOPIC, b"cut off:0").error != ErrorCode.NONE
            eventually(
                lambda: produce(client, TOPIC, b"cut off:1").error == ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the cut leader steps down",
            )
            assert list_latest(client, TOPIC).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert leader_of(cluster, TOPIC, other_than=leader) != leader
        load.wait_for_more(SOME)  # the clients have found the next leader
        cuts.heal()
        load.wait_for_more(SOME)
        load.stop()
        assert_kept(cluster, load)
        stored = read_all(cluster.bootstrap_servers, TOPIC, 1)[0]
        assert stored[acked.offset] == b"before:0"


@pytest.mark.parametrize("how", ["deafen", "mute"])
def test_a_leader_with_one_way_cut_is_replaced_and_nothing_acked_is_lost(tmp_path: Path, how: str) -> None:
    with cut_cluster(tmp_path) as (cluster, cuts), Load(cluster, TOPIC) as load:
        load.wait_for_more(SOME)
        leader = leader_of(cluster, TOPIC)
        (cuts.deafen if how == "deafen" else cuts.mute)(leader)
        load.wait_for_more(SOME)
        assert leader_of(cluster, TOPIC, other_than=leader) != leader
        cuts.heal()
        load.wait_for_more(SOME)
        load.stop()
        assert_kept(cluster, load)


def test_a_cut_between_a_leader_and_one_follower_does_not_stop_acks(tmp_path: Path) -> None:
    """The third node reaches both. The majority is there all the time, and so are acks, late ones too."""
    with cut_cluster(tmp_path) as (cluster, cuts), Load(cluster, TOPIC) as load:
        load.wait_for_more(SOME)
        leader = leader_of(cluster, TOPIC)
        other = next(node for node in cluster.nodes if node != leader)
        cuts.close_pair(leader, other)

        def is_felt() -> bool:
            now = leader_of(cluster, TOPIC)
            known = describe_partitions(cluster, TOPIC, now).get(0)
            return now != leader or (known is not None and other not in known.in_sync)

        eventually(is_felt, "the cut is felt")
        load.wait_for_more(SOME)
        cuts.delay(0.05)
        load.wait_for_more(SOME)
        cuts.heal()
        load.wait_for_more(SOME)
        load.stop()
        assert_kept(cluster, load)
