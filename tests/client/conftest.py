"""Clusters to test with: impatient ones, so that what must fail fails soon."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from penstock import Broker
from penstock.client import Client, ClientSettings, Cluster

Connect = Callable[..., Cluster]


def impatient(servers: str, **changes: int) -> ClientSettings:
    times = {"request_timeout_ms": 2_000, "retry_for_ms": 5_000, "retry_backoff_ms": 5, **changes}
    return ClientSettings(bootstrap_servers=servers, **times)  # type: ignore[arg-type]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens clusters that are closed after the test."""
    with ExitStack() as stack:

        def open_cluster(servers: str, **changes: int) -> Cluster:
            return stack.enter_context(Cluster(impatient(servers, **changes)))

        yield open_cluster


@pytest.fixture
def cluster(broker: Broker, connect: Connect) -> Cluster:
    return connect(broker.bootstrap_servers)


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
    """A queue that begins with what is in its topic already."""
    name = unique("workers")
    client.admin.create_queue(name)
    return name
