"""Archives that are held at a step of their second batch, in the driver that is to be killed there."""

import os
import threading
from typing import Any, TypedDict

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines import archiving
from penstock.spark.pipelines.writer import ArchiveWriter
from tests.spark.faults.gate import rows_through, waiting_at

TASKS_WRITE = "tasks write"
FILES_WRITTEN = "files are written and not committed"
COMMITTED = "files are committed, and the batch in Spark's checkpoint is not"
STEPS = (TASKS_WRITE, FILES_WRITTEN, COMMITTED)
PER_BATCH = 20
HELD_BATCH = 1


class Job(TypedDict):
    """The settings of one archive."""

    topic: str
    servers: str
    path: str
    checkpoint: str
    table_format: str
    environment: dict[str, str]


class HeldWriter(ArchiveWriter):
    """Stops in its second batch at a step."""

    step = ""
    gate = ""

    def write(self, rows: DataFrame, *arguments: Any) -> Any:
        held = self._is_held()
        if held and self.step == TASKS_WRITE:
            rows = rows.mapInArrow(rows_through(self.gate, 0), rows.schema)
        files = super().write(rows, *arguments)
        if held and self.step == FILES_WRITTEN:
            waiting_at(self.gate)()
        return files

    def commit(self, *arguments: Any, **settings: Any) -> None:
        held = self._is_held()
        super().commit(*arguments, **settings)
        if held and self.step == COMMITTED:
            waiting_at(self.gate)()

    def _is_held(self) -> bool:
        return sum(self.state.positions.values()) == HELD_BATCH * PER_BATCH


def run_archive(spark: SparkSession, job: Job) -> int:
    """Archives all that there is. Returns the number of rows that were added."""
    return _run(spark, job, ArchiveWriter)


def start_archive(spark: SparkSession, job: Job, step: str, gate: str) -> None:
    """Returns at once. The archive runs until it comes to the gate; only then may the next one be started."""
    writer = type("Held", (HeldWriter,), {"step": step, "gate": gate})
    threading.Thread(target=_run, args=(spark, job, writer), daemon=True).start()


def _run(spark: SparkSession, job: Job, writer: type[ArchiveWriter]) -> int:
    os.environ.update(job["environment"])
    archiving.ArchiveWriter = writer  # type: ignore[attr-defined]
    done = archiving.archive(
        spark,
        job["topic"],
        job["path"],
        bootstrap_servers=job["servers"],
        options={"maxOffsetsPerTrigger": str(PER_BATCH)},
        checkpoint=job["checkpoint"],
        compaction=None,
        table_format=job["table_format"],
    )
    return done.rows
