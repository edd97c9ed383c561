"""The driver of archives is killed with SIGKILL at every step of a batch, and the archives are run again.

One driver runs an archive for each step and each kind of table, and each is held at its step: one kill hits them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import Broker
from penstock.spark.lake.folder import Lake
from tests.spark.faults.archive_steps import COMMITTED, PER_BATCH, STEPS, Job
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import DriverProcess
from tests.spark.faults.records import create, fill
from tests.spark.lake.conftest import offsets_in
from tests.spark.s3_server import S3Server

BEFORE = 2 * PER_BATCH
MORE = 5
"""Records that come while no driver runs."""


@dataclass(frozen=True)
class Archive:
    job: Job
    step: str
    gate: Gate

    def offsets(self) -> list[int]:
        table = Lake(self.job["path"]).table(self.job["topic"])
        assert table is not None
        return offsets_in(table)


@pytest.mark.long  # a minute; lake/test_killed_writer.py is the short one
def test_an_archive_whose_driver_is_killed_at_any_step_has_each_record_once(
    driver: DriverProcess,
    broker: Broker,
    unique: Callable[[str], str],
    make_gate: Callable[[], Gate],
    tmp_path: Path,
    s3_path: str,
    s3_server: S3Server,
) -> None:
    servers = broker.bootstrap_servers
    topic = create(servers, unique("archived"), 1)
    archives = [
        Archive(
            job={
                "topic": topic,
                "servers": servers,
                "path": f"{place}/{number}",
                "checkpoint": str(tmp_path / f"checkpoint-{kind}-{number}"),
                "table_format": table_format,
                "environment": s3_server.variables(),
            },
            step=step,
            gate=make_gate(),
        )
        for kind, place, table_format in (
            ("disk", tmp_path, "delta"),
            ("s3", s3_path, "delta"),
            ("iceberg", tmp_path / "iceberg", "iceberg"),
        )
        for number, step in enumerate(STEPS)
    ]
    fill(servers, topic, range(BEFORE), 1)
    for each in archives:
        driver.ask("start_archive", job=each.job, step=each.step, gate=str(each.gate.folder))
        driver.until(each.gate.held, f"{each.job['path']} is held: {each.step}")
    driver.kill()
    for each in archives:
        there = BEFORE if each.step == COMMITTED else PER_BATCH
        assert each.offsets() == list(range(there)), each.step

    fill(servers, topic, range(BEFORE, BEFORE + MORE), 1)
    driver.run()
    for each in archives:
        added = driver.ask("run_archive", job=each.job)
        assert added == MORE + (0 if each.step == COMMITTED else PER_BATCH), each.step
        assert each.offsets() == list(range(BEFORE + MORE)), each.step
