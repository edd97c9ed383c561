"""The health of three nodes: a healthy cluster is reported as such, and an unhealthy one with the reason."""

import time
from collections.abc import Callable, Iterator

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


def first_report(trio: Trio, node: int, holds: Callable[[ClusterStatus], object]) -> ClusterStatus:
    """The first report of which this holds. There may be others before: a machine that stalls is unhealthy, too."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds(found := report(trio, node)):
        assert time.monotonic() < deadline, found.troubles
        time.sleep(LOOK_AGAIN_SECONDS)
    return found


def healthy(trio: Trio, node: int) -> ClusterStatus:
    return first_report(trio, node, lambda found: found.healthy)


def test_three_nodes_in_sync_are_healthy_in_the_report_of_every_node(trio: Trio) -> None:
    for node in (1, 2, 3):
        found = healthy(trio, node)
        assert (found.troubles, found.offline, found.metadata.behind) == ((), (), ())


def test_a_dead_node_is_unhealthy_although_it_had_no_partition(trio: Trio) -> None:
    healthy(trio, 1)
    trio.stop(3)
    found = first_report(trio, 1, lambda found: "node 3 is left" in found.troubles)
    assert (found.healthy, found.partitions) == (False, ())
    trio.start(3)
    assert healthy(trio, 1).metadata.voters == (1, 2, 3)


def test_a_silent_voter_is_unhealthy_before_gossip_declares_it_dead(trio: Trio) -> None:
    asked = trio.controller()
    healthy(trio, asked)
    silent = next(node for node in (1, 2, 3) if node != asked)
    with trio.cut_off(silent):
        found = first_report(trio, asked, lambda found: found.metadata.behind == (silent,))
        assert not found.healthy
    healthy(trio, asked)


def test_an_offline_replica_is_reported_by_every_node_with_the_reason(trio: Trio) -> None:
    trio.run(trio.node(1).controller.create_topic("orders", caller=BROKER))
    leader = trio.leader("orders")
    follower = trio.followers("orders")[0]
    trio.call(lambda: trio.replica(follower, "orders").replica.fail(StorageError("the disk said no")))
    for node in (leader, follower):
        found = first_report(trio, node, lambda found: found.offline)
        assert not found.healthy
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
    found = first_report(trio, other, lambda found: found.damaged)
    assert not found.healthy
    assert [(one.topic, one.node_id, one.reason) for one in found.damaged] == [("lonely", holder, str(rot))]
    assert found.offline == ()
    assert "damaged replicas: 1" in found.troubles
