"""Which batches retention may delete."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.batch import Record, build_batch
from penstock.config import TopicConfig
from penstock.log import Log
from penstock.sim.disk import SimDisk
from penstock.sim.outcome import Violation
from penstock.sim.policies import Policy
from penstock.sim.retention_checks import check_deletion
from tests.log.tools import append

WRITTEN_MS = 10_000
BATCH = build_batch([Record(0, WRITTEN_MS, None, b"old")])


def leader(now_ms: int, batches: int = 3) -> Any:
    """A replica with so many batches in its log, and with its clock at `now_ms`."""
    log = Log.open(SimDisk(), "p-0", TopicConfig())
    for _ in range(batches):
        append(log, b"v" * 100)
    return SimpleNamespace(
        name="n1", log=log, host=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: now_ms))
    )


def test_batches_older_than_the_retention_may_be_deleted() -> None:
    check_deletion(Policy(retention_ms=500), leader(WRITTEN_MS + 501), [BATCH], 1)


def test_younger_batches_must_stay() -> None:
    with pytest.raises(Violation, match="what it deleted was 500 ms old"):
        check_deletion(Policy(retention_ms=500), leader(WRITTEN_MS + 500), [BATCH], 1)


def test_batches_above_the_size_limit_may_be_deleted_at_any_age() -> None:
    one = leader(WRITTEN_MS)
    left = one.log.size_bytes
    check_deletion(Policy(retention_bytes=left), one, [BATCH], 0)
    with pytest.raises(Violation, match="are left"):
        check_deletion(Policy(retention_bytes=left + 1), one, [BATCH], 0)
