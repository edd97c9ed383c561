"""Clusters that the tests of this folder share."""

from collections.abc import Callable, Iterator

import pytest

from tests.kafka.requests import create
from tests.kafka.trio import Trio


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    """Three nodes that a file's tests share: each uses topics of its own and leaves all three running."""
    with Trio() as running:
        yield running


@pytest.fixture
def topic(trio: Trio, unique: Callable[[str], str]) -> str:
    """One partition on all three nodes, which know its leader."""
    name = unique("replicated")
    with trio.client(1) as client:
        create(client, name)
    trio.leader(name)
    return name
