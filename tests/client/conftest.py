"""A client of the broker that tests share, and topics and queues for it."""

from collections.abc import Callable, Iterator

import pytest

from penstock import Broker
from penstock.client import Client


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """A client of the broker that tests share."""
    with Client(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def topic(client: Client, unique: Callable[[str], str]) -> str:
    """A new topic with one partition."""
    name = unique("orders")
    client.admin.create_topic(name, partitions=1)
    return name


@pytest.fixture
def group(client: Client, unique: Callable[[str], str]) -> str:
    """A queue that begins with the existing messages of its topic."""
    name = unique("workers")
    client.admin.alter_queue(name, {"share.auto.offset.reset": "earliest"})
    return name
