"""Callers of the web API."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock import Broker

Unique = Callable[[str], str]
Create = Callable[..., str]


@pytest.fixture(scope="session")
def http(broker: Broker) -> Iterator[httpx.Client]:
    """A caller of the broker that tests share."""
    with httpx.Client(base_url=broker.http_url, timeout=60) as client:
        yield client


@pytest.fixture
def create(http: httpx.Client, unique: Unique) -> Create:
    """Creates a queue on a topic of its own, and returns the name of both."""

    def make(**settings: Any) -> str:
        name = unique("work")
        http.post("/v1/queues", json={"queue": name, **settings}).raise_for_status()
        return name

    return make
