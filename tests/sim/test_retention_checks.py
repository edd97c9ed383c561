"""What retention may delete, judged from outside."""

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
    """A replica with so many batches in its log, and what its clock says."""
    log = Log.open(SimDisk(), "p-0", TopicConfig())
    for _ in range(batches):
        append(log, b"v" * 100)
    return SimpleNamespace(
        name="n1", log=log, host=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: now_ms))
    )


def test_what_is_older_than_the_retention_may_go() -> None:
    check_deletion(Policy(retention_ms=500), leader(WRITTEN_MS + 501), [BATCH], 1)


def test_what_is_younger_must_stay() -> None:
    with pytest.raises(Violation, match="what it deleted was 500 ms old"):
        check_deletion(Policy(retention_ms=500), leader(WRITTEN_MS + 500), [BATCH], 1)


def test_what_is_too_much_may_go_however_young_it_is() -> None:
    one = leader(WRITTEN_MS)
    left = one.log.size_bytes
    check_deletion(Policy(retention_bytes=left), one, [BATCH], 0)
    with pytest.raises(Violation, match="are left"):
        check_deletion(Policy(retention_bytes=left + 1), one, [BATCH], 0)
