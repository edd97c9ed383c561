"""Shared by all tests: brokers in this process, on free ports of 127.0.0.1."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from penstock import Broker

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

HERE = Path(__file__).parent
HEAVY = (HERE / "spark", HERE / "faults")
"""Tests that share a Spark session, or start clusters of processes: one worker runs all of them, one after the other,
and the other worker everything else. Side by side on two cores they would only wait for each other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(folder in item.path.parents for folder in HEAVY):
            item.add_marker(pytest.mark.xdist_group("heavy"))


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
