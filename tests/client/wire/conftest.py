"""Clusters with short timeouts, so that tests of failures end soon."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from penstock import Broker
from penstock.client.wire import ClientSettings, Cluster

Connect = Callable[..., Cluster]


def impatient(servers: str, **changes: int) -> ClientSettings:
    """Repeats at once. Requests have a minute, unless a test is about the time that they have."""
    times = {"request_timeout_ms": 60_000, "retry_for_ms": 60_000, "retry_backoff_ms": 5, **changes}
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
