"""Disks for the tests of the log: each test runs on all three."""

from pathlib import Path

import pytest

from penstock.log import Disk, MemoryDisk, maintenance
from penstock.log.os_disk import OsDisk
from penstock.sim import SimDisk


@pytest.fixture(params=["os", "memory", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Disk = {"os": lambda: OsDisk(tmp_path), "memory": MemoryDisk, "sim": SimDisk}[request.param]()
    made.make_dir("topics")
    return made


@pytest.fixture
def sim() -> SimDisk:
    made = SimDisk(1)
    made.make_dir("topics")
    made.sync_dir("")
    return made


@pytest.fixture
def small_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and snapshots come every few batches instead of every few megabytes."""
    monkeypatch.setattr(maintenance, "CHECKPOINT_INTERVAL_BYTES", 600)
    monkeypatch.setattr(maintenance, "SNAPSHOT_INTERVAL_BYTES", 2500)
