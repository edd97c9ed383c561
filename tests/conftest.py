"""Shared by all tests: brokers in this process, on free ports of 127.0.0.1."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from penstock import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One in-memory broker that tests share: each uses topics and groups of its own."""
    with Broker() as running:
        yield running


@pytest.fixture
def disk_broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as running:
        yield running


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test uses."""
    return lambda prefix: f"{prefix}-{uuid4().hex[:10]}"
