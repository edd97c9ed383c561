"""Fixtures for tests that need a real broker: installed with Penstock, found by pytest by itself.

def test_orders(penstock_broker, penstock_topic):
    producer = Producer({"bootstrap.servers": penstock_broker.bootstrap_servers})
    producer.produce(penstock_topic, b"one")
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from penstock.embedded import Broker


@pytest.fixture(scope="session")
def penstock_broker() -> "Iterator[Broker]":
    """One in-memory broker for the whole test session."""
    from penstock.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def penstock_tls_broker() -> "Iterator[Broker]":
    """The same with TLS on both ports: `.client_settings()` and `.tls_ca_file` are for clients."""
    from penstock.embedded import Broker

    with Broker(tls=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def penstock_secure_broker() -> "Iterator[Broker]":
    """The same with TLS and logins: `admin` may do everything, `alice` and `bob` nothing until a test allows it.
    `.client_settings("alice")` are for librdkafka, `.client_arguments("alice")` for `Client`."""
    from secrets import token_urlsafe

    from penstock.embedded import Broker

    users = {name: token_urlsafe(12) for name in ("admin", "alice", "bob")}
    with Broker(tls=True, users=users) as broker:
        yield broker


@pytest.fixture
def penstock_topic(penstock_broker: "Broker") -> str:
    """The name of a fresh topic with one partition, ready for use."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"test-{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": penstock_broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result()
    return name
