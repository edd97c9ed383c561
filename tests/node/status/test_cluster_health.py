"""The health of three nodes: a healthy cluster is reported as such, and an unhealthy one with the reason."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import CorruptLog, StorageError
from penstock.node.calls import BROKER
from penstock.node.status.cluster_status import ClusterStatus
from tests.kafka.trio import LOOK_AGAIN_SECONDS, PATIENCE_SECONDS, Trio


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio() as cluster:
        yield cluster


def report(trio: Trio, node: int) -> ClusterStatus:
    return trio.run(trio.node(node).status.snapshot())


def settled(trio: Trio, node: int, *, healthy: bool) -> ClusterStatus:
    """The first report with that health."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := report(trio, node)).healthy is not healthy:
        assert time.monotonic() < deadline, found.troubles
        time.sleep(LOOK_AGAIN_SECONDS)
    return found


def test_three_nodes_in_sync_are_healthy_in_the_report_of_every_node(trio: Trio) -> None:
    for node in (1, 2, 3):
        found = settled(trio, node, healthy=True)
        assert (found.troubles, found.offline, found.metadata.behind) == ((), (), ())


def test_a_dead_node_is_unhealthy_although_it_had_no_partition(trio: Trio) -> None:
    settled(trio, 1, healthy=True)
    trio.stop(3)
    found = settled(trio, 1, healthy=False)
    assert found.partitions == ()
    assert "node 3 is left" in found.troubles
    trio.start(3)
    assert settled(trio, 1, healthy=True).metadata.voters == (1, 2, 3)


def test_a_silent_voter_is_unhealthy_before_gossip_declares_it_dead(trio: Trio) -> None:
    asked = trio.controller()
    settled(trio, asked, healthy=True)
    silent = next(node for node in (1, 2, 3) if node != asked)
    with trio.cut_off(silent):
        found = settled(trio, asked, healthy=False)
        assert found.metadata.behind == (silent,)
    settled(trio, asked, healthy=True)


def test_an_offline_replica_is_reported_by_every_node_with_the_reason(trio: Trio) -> None:
    trio.run(trio.node(1).controller.create_topic("orders", caller=BROKER))
    leader = trio.leader("orders")
    follower = trio.followers("orders")[0]
    trio.call(lambda: trio.replica(follower, "orders").replica.fail(StorageError("the disk said no")))
    for node in (leader, follower):
        found = settled(trio, node, healthy=False)
        [offline] = found.offline
        assert (offline.topic, offline.partition, offline.node_id) == ("orders", 0, follower)
        assert "the disk said no" in offline.reason
        assert [one.offline for one in found.partitions if one.topic == "orders"] == [(follower,)]
        assert "offline replicas: 1" in found.troubles


def test_a_damaged_only_replica_is_reported_as_damaged(trio: Trio) -> None:
    admin = AdminClient({"bootstrap.servers": trio.bootstrap_servers})
    admin.create_topics([NewTopic("lonely", 1, 1)])["lonely"].result(PATIENCE_SECONDS)
    holder = trio.eventually(
        lambda: next((one for one in (1, 2, 3) if trio.node(one).partitions.find("lonely", 0)), None)
    )
    rot = CorruptLog("0.log", 7, "a wrong CRC")
    trio.call(lambda: trio.replica(holder, "lonely").damaged(rot))
    other = next(node for node in (1, 2, 3) if node != holder)
    found = settled(trio, other, healthy=False)
    assert [(one.topic, one.node_id, one.reason) for one in found.damaged] == [("lonely", holder, str(rot))]
    assert found.offline == ()
    assert "damaged replicas: 1" in found.troubles
