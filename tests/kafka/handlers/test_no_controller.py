"""The controller dies: until the next election, clients use the nodes that they reach, and are not redirected to it.
Elections of a `Trio` take seconds: long enough for the requests before the next controller is elected."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.kafka.requests import ask
from tests.kafka.trio import PATIENCE_SECONDS, Trio


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio() as cluster:
        yield cluster


def kill_controller(trio: Trio) -> int:
    """It hands nothing over. Returns when the other nodes have lost their connections with it."""
    controller = trio.controller()
    trio.node(controller).ready = False
    trio.stop(controller)

    def are_rid_of_it() -> bool:
        links = [trio.node(one).links for one in trio.running]
        return all(link is not None and controller not in link.network.connected() for link in links)

    trio.eventually(are_rid_of_it)
    return controller


def test_the_other_nodes_do_not_name_a_dead_controller(trio: Trio) -> None:
    dead = kill_controller(trio)
    for node_id in trio.running:
        with trio.client(node_id) as client:
            metadata = ask(client, ApiKey.METADATA, 9, MetadataRequest(topics=[]), MetadataResponse)
            cluster = ask(
                client, ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest(), DescribeClusterResponse
            )
        assert dead not in (metadata.controller_id, cluster.controller_id)


def test_a_client_can_create_a_topic_right_after_the_controllers_death(trio: Trio) -> None:
    kill_controller(trio)
    admin = AdminClient({"bootstrap.servers": trio.bootstrap_servers, "log_level": 0})
    created = admin.create_topics([NewTopic("soon", 1, 1)], request_timeout=PATIENCE_SECONDS)
    created["soon"].result()
    trio.eventually(lambda: "soon" in trio.node(trio.running[0]).metadata.state.topics)


def test_all_nodes_name_the_elected_controller(trio: Trio) -> None:
    controller = trio.controller()
    for node_id in trio.running:
        with trio.client(node_id) as client:
            metadata = ask(client, ApiKey.METADATA, 9, MetadataRequest(topics=[]), MetadataResponse)
        assert metadata.controller_id == controller
