"""Nodes that do not belong connect to a cluster under load: they are refused, both sides' logs say why, and the load
goes on."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.node.peers.handshake import MAGIC
from penstock.swim import GossipEndpoint, MemberMeta
from penstock.swim.packets import ANY_RECEIVER, Alive, Envelope, encode_message, pack
from penstock.swim.seal import Seal
from penstock.types import NodeId, Replica
from tests.faults.checks import assert_kept
from tests.faults.clients import create_topic, settings
from tests.faults.load import Load
from tests.faults.nodes import Cluster, Node
from tests.faults.waiting import PATIENCE_SECONDS
from tests.ports import free_port

TOPIC = "payments"
SOME = 50
SALT = bytes(16)
KEY, OTHER_KEY = "a" * 64, "b" * 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guarded")
    (made / "cluster.key").write_text(KEY)
    (made / "other.key").write_text(OTHER_KEY)
    return made


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[tuple[Cluster, Load]]:
    """Three nodes with a key, and clients at work from the first test to the last. Then the checks."""
    with Cluster(folder, flags=["--cluster-key-file", str(folder / "cluster.key")]) as cluster:
        create_topic(cluster, TOPIC)
        with Load(cluster, TOPIC) as load:
            yield cluster, load
        assert_kept(cluster, load)


@pytest.fixture
def cluster(guarded: tuple[Cluster, Load]) -> Iterator[Cluster]:
    """The same; after each test the clients must have made progress."""
    yield guarded[0]
    guarded[1].wait_for_more(SOME)


@pytest.fixture
def stranger(cluster: Cluster, folder: Path, tmp_path: Path) -> Iterator[Node]:
    """A node with the cluster's key and seeds, and with an id of its own; not started."""
    node = Node(9, tmp_path, seeds=cluster.seeds)
    node.flags = ("--cluster-key-file", str(folder / "cluster.key"))
    yield node
    if node.is_running:
        node.kill()


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: penstock\r\n\r\n", "not Penstock's inter-node protocol"),
        (bytes(100_000), "not Penstock's inter-node protocol"),
        (MAGIC + bytes([7, 9, 1, 0]) + bytes(32), "it speaks versions 7 to 9 of the inter-node protocol"),
    ],
    ids=["http", "zeros", "another version"],
)
def test_garbage_on_the_inter_node_port_is_closed_and_logged(
    cluster: Cluster, garbage: bytes, said: str
) -> None:
    for node in cluster.nodes.values():
        with socket.create_connection(("127.0.0.1", node.cluster_port), PATIENCE_SECONDS) as client:
            client.sendall(garbage)
            client.settimeout(PATIENCE_SECONDS)
            wait_closed(client)
            node.wait_said("refused 127.0.0.1", said)


def wait_closed(client: socket.socket) -> None:
    with suppress(ConnectionError):
        while client.recv(65536):
            pass


def test_forged_gossip_changes_no_nodes_membership(cluster: Cluster) -> None:
    """A sender without the key claims that node 1 has another address."""
    lies = [b"\xff" * 1200, b"", forged_news(None), forged_news(OTHER_KEY.encode())]
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for _ in range(20):
            for node in cluster.nodes.values():
                for lie in lies:
                    sender.sendto(lie, ("127.0.0.1", node.cluster_port))
    for node in cluster.nodes.values():
        node.wait_said("gossip from", "refused")
    assert not any("two nodes have" in line for node in cluster.nodes.values() for line in node.lines)


def forged_news(key: bytes | None) -> bytes:
    """A valid gossip packet, sealed with a key of the stranger's choice or with none."""
    elsewhere = GossipEndpoint("127.0.0.1", free_port())
    news = Alive(7, MemberMeta(node=1, folder_incarnation=7, cluster=elsewhere, kafka=elsewhere))
    sender = Replica(NodeId(1), 7)
    return Seal(key, SALT).close(Envelope("", sender, ANY_RECEIVER, 2**60, 1, pack([encode_message(news)])))


def test_a_node_with_another_key_is_refused_and_both_logs_say_so(
    cluster: Cluster, stranger: Node, folder: Path
) -> None:
    stranger.flags = ("--cluster-key-file", str(folder / "other.key"))
    stranger.start()
    stranger.wait_said("the cluster keys differ")
    cluster[1].wait_said("refused", "the cluster keys differ")
    assert not any(line.startswith("ready") for line in stranger.lines)


def test_a_node_without_a_key_is_refused_and_both_logs_say_so(cluster: Cluster, stranger: Node) -> None:
    stranger.flags = ()
    stranger.start()
    stranger.wait_said("it has a cluster key and this node has none")
    # The cluster logs one line for many refusals of one kind and one host: the test before this one had it.


def test_a_node_of_another_cluster_is_refused_and_both_logs_say_so(cluster: Cluster, stranger: Node) -> None:
    stranger.seeds = ""
    stranger.start()
    stranger.wait_ready()  # a cluster of its own
    stranger.stop()
    stranger.seeds = cluster.seeds
    stranger.start()
    stranger.wait_said("refused", "node 9 is of cluster")
    cluster[1].wait_said("refused", "node 9 is of cluster")


def test_a_second_node_with_the_same_id_is_refused_and_both_logs_say_so(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    twin = Node(2, tmp_path, seeds=cluster.seeds)
    twin.flags = ("--cluster-key-file", str(folder / "cluster.key"))
    twin.start()
    try:
        refused = twin.wait_said("was refused by", "two nodes have the id 2")
        refuser = next(node for node in cluster.nodes.values() if str(node.cluster_port) in refused)
        refuser.wait_said("refused", "two nodes have the id 2")
        assert not any(line.startswith("ready") for line in twin.lines)
    finally:
        twin.kill()
    assert cluster[2].is_running


def test_a_node_whose_seeds_are_unreachable_logs_that_and_waits(stranger: Node) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    stranger.seeds = nowhere
    stranger.start()
    stranger.wait_said("no cluster yet", f"waiting for seed {nowhere}")
    stranger.wait_said(nowhere, "connection refused")
    assert stranger.stop() == 0


def test_more_replicas_than_nodes_are_refused_with_both_numbers(cluster: Cluster) -> None:
    admin = AdminClient(settings(cluster.bootstrap_servers))
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("too-many", 1, 4)])["too-many"].result(PATIENCE_SECONDS)
    assert "INVALID_REPLICATION_FACTOR" in str(refused.value)
    assert "4" in str(refused.value)
    assert "3" in str(refused.value)


def test_a_node_with_one_unreachable_seed_joins_through_the_others(cluster: Cluster) -> None:
    """The last one: it stays in the cluster."""
    node = cluster.join(4, seeds=f"127.0.0.1:{free_port()},{cluster.seeds}")
    node.wait_said("connection refused")
