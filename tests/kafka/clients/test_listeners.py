"""Three nodes with two listeners each: clients stay on the listener by which they came."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.config import Address, Listener, NodeConfig
from tests.kafka.trio import PATIENCE_SECONDS, Trio
from tests.tls import Certificates

ANY_PORT = Address("127.0.0.1", 0)
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("certificates")
    return Certificates(folder)


@pytest.fixture(scope="module")
def trio(certificates: Certificates) -> Iterator[Trio]:
    listeners = (
        Listener(name="internal", bind=ANY_PORT),
        Listener(name="external", bind=ANY_PORT, tls=certificates.settings()),
    )
    with Trio(settings={"kafka": NodeConfig().kafka, "listeners": listeners}) as running:
        yield running


def addresses(trio: Trio, listener: str) -> list[str]:
    services = [trio._services[node] for node in (1, 2, 3)]
    return [str(one.bind) for service in services for one in service.listeners if one.name == listener]


def settings(trio: Trio, certificates: Certificates, listener: str, **more: Any) -> dict[str, Any]:
    tls = {"security.protocol": "ssl", "ssl.ca.location": certificates.ca}
    return {
        "bootstrap.servers": addresses(trio, listener)[0],
        "log_level": 0,
        **(tls if listener == "external" else {}),
        **more,
    }


@pytest.mark.parametrize("listener", ["internal", "external"])
def test_metadata_and_coordinators_name_the_addresses_of_the_client_s_listener(
    trio: Trio, certificates: Certificates, unique: Unique, listener: str
) -> None:
    admin = AdminClient(settings(trio, certificates, listener))
    found = admin.list_topics(timeout=PATIENCE_SECONDS).brokers.values()
    assert sorted(f"{one.host}:{one.port}" for one in found) == sorted(addresses(trio, listener))
    topic = unique("listeners")
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(PATIENCE_SECONDS)
    producer = Producer(settings(trio, certificates, listener))
    for number in range(30):
        producer.produce(topic, str(number).encode(), partition=number % 3)
    assert producer.flush(PATIENCE_SECONDS) == 0
    group = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
    consumer = Consumer(settings(trio, certificates, listener, **group))
    consumer.subscribe([topic])
    assert len(consumer.consume(30, PATIENCE_SECONDS)) == 30
    consumer.close()
    groups = admin.describe_consumer_groups([group["group.id"]])
    coordinator = groups[group["group.id"]].result(PATIENCE_SECONDS).coordinator
    assert f"{coordinator.host}:{coordinator.port}" in addresses(trio, listener)
