"""Callers of the web API."""

from collections.abc import Iterator

import httpx
import pytest

from penstock import Broker


@pytest.fixture(scope="session")
def http(broker: Broker) -> Iterator[httpx.Client]:
    """A caller of the broker that tests share."""
    with httpx.Client(base_url=broker.http_url, timeout=30) as client:
        yield client
