"""Three nodes with TLS everywhere: between them, encrypted gossip, and a TLS listener for clients."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.swim import PacketRefusal
from tests.kafka.trio import PATIENCE_SECONDS, Trio
from tests.tls import Certificates

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def trio(certificates: Certificates) -> Iterator[Trio]:
    key_file: Path = certificates.folder / "cluster.key"
    key_file.write_text("a key that all nodes share")
    key_file.chmod(0o600)
    settings = {
        "cluster_key_file": str(key_file),
        "inter_node_tls": certificates.inter_node(),
        "tls_cert": certificates.cert,
        "tls_key": certificates.key,
    }
    with Trio(settings=settings) as running:
        yield running


def client(trio: Trio, certificates: Certificates, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": trio.bootstrap_servers,
        "security.protocol": "ssl",
        "ssl.ca.location": certificates.ca,
        "log_level": 0,
        **settings,
    }


def test_records_are_replicated_and_read_by_a_group(
    trio: Trio, certificates: Certificates, unique: Unique
) -> None:
    topic = unique("tls")
    admin = AdminClient(client(trio, certificates))
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(PATIENCE_SECONDS)
    producer = Producer(client(trio, certificates, acks="all"))
    for number in range(300):
        producer.produce(topic, str(number).encode() * 1000)
    assert producer.flush(PATIENCE_SECONDS) == 0
    settings = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
    consumer = Consumer(client(trio, certificates, **settings))
    consumer.subscribe([topic])
    assert len(consumer.consume(300, PATIENCE_SECONDS)) == 300
    consumer.close()


def test_clients_learn_the_addresses_of_all_nodes(trio: Trio, certificates: Certificates) -> None:
    found = AdminClient(client(trio, certificates)).list_topics(timeout=PATIENCE_SECONDS).brokers
    assert {(one.host, one.port) for one in found.values()} == {trio.address(node) for node in (1, 2, 3)}


def test_gossip_is_encrypted_and_all_nodes_believe_each_other(trio: Trio) -> None:
    def refused_and_alive() -> list[tuple[dict[PacketRefusal, int], int]] | None:
        gossips = [trio.node(node).links.gossip for node in (1, 2, 3)]  # type: ignore[union-attr]
        alive = [sum(one.state.is_present for one in gossip.members().values()) for gossip in gossips]
        if alive != [3, 3, 3]:
            return None
        return [({k: v for k, v in gossip.refused.items() if v}, 3) for gossip in gossips]

    for refused, _ in trio.eventually(refused_and_alive):
        assert PacketRefusal.KEY not in refused
    for node in (1, 2, 3):
        links = trio.node(node).links
        assert links is not None
        assert all(hello.decrypts_gossip for hello in links.network.connected().values())


def test_a_node_that_restarts_comes_back(trio: Trio, certificates: Certificates) -> None:
    trio.stop(3)
    trio.start(3)
    trio.eventually(lambda: len(trio.node(3).links.network.connected()) == 2)  # type: ignore[union-attr]
