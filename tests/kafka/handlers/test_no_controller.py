"""The controller dies: until the next one is elected, clients ask whom they reach, and are not sent to the dead."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.config import ClusterSettings
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.kafka.asking import ask
from tests.kafka.trio import PATIENCE_SECONDS, Trio

SLOW = ClusterSettings(election_timeout_ms=3000, heartbeat_interval_ms=100, auto_rebalance=False)
"""There is time to ask before anybody else is elected."""


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio(replication=SLOW) as cluster:
        yield cluster


def kill_controller(trio: Trio) -> int:
    """It hands nothing over. Returns when the others have noticed that their connections with it ended."""
    controller = trio.controller()
    trio.node(controller).ready = False
    trio.stop(controller)

    def are_rid_of_it() -> bool:
        links = [trio.node(one).links for one in trio.running]
        return all(link is not None and controller not in link.network.connected() for link in links)

    trio.eventually(are_rid_of_it)
    return controller


def test_the_others_tell_clients_to_ask_them_instead_of_a_controller_that_is_gone(trio: Trio) -> None:
    dead = kill_controller(trio)
    for node_id in trio.running:
        with trio.client(node_id) as client:
            metadata = ask(client, ApiKey.METADATA, 9, MetadataRequest(topics=[]), MetadataResponse)
            cluster = ask(
                client, ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest(), DescribeClusterResponse
            )
        assert dead not in (metadata.controller_id, cluster.controller_id)


def test_a_client_that_comes_right_after_the_controllers_death_creates_a_topic(trio: Trio) -> None:
    kill_controller(trio)
    admin = AdminClient({"bootstrap.servers": trio.bootstrap_servers, "log_level": 0})
    created = admin.create_topics([NewTopic("soon", 1, 1)], request_timeout=PATIENCE_SECONDS)
    created["soon"].result()
    trio.eventually(lambda: "soon" in trio.node(trio.running[0]).metadata.state.topics)


def test_the_controller_that_is_there_is_told_by_all(trio: Trio) -> None:
    controller = trio.controller()
    for node_id in trio.running:
        with trio.client(node_id) as client:
            metadata = ask(client, ApiKey.METADATA, 9, MetadataRequest(topics=[]), MetadataResponse)
        assert metadata.controller_id == controller
