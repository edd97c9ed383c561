"""Files of a table to rows, on the executors, for storage that Spark's own reader reaches with a JAR only.

A task reads its files one after the other, all columns of them: Spark tells such a task neither columns nor filters.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.lake.parquet_files import fitted
from penstock.spark.lake.record_columns import DATE
from penstock.spark.lake.storage import LakeStorage

if TYPE_CHECKING:
    from penstock.spark.lake.topic_table import TableFile

TASK_BYTES: Final = 128 << 20
"""The size of the files that one task reads, as Spark's own reader has it. A larger file is a task."""
BATCH_ROWS: Final = 10_000
TASK: Final = "id"
"""The column with a task's number, as `SparkSession.range` names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesToRows:
    """Spark calls this on an executor (`DataFrame.mapInArrow`) with the number of a task."""

    storage: LakeStorage
    """The table's folder."""
    schema: pa.Schema
    tasks: tuple[tuple[tuple[str, str], ...], ...]
    """The files of each task: path in the table, and date."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(TASK).to_pylist():
                for path, day in self.tasks[number]:
                    yield from self._rows(path, day)

    def _rows(self, path: str, day: str) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.storage.reading(path), pre_buffer=True) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from fitted(_dated(batch, day), self.schema).to_batches()


def _dated(batch: pa.RecordBatch, day: str) -> pa.RecordBatch:
    """With the date: files that delta-rs has merged do not have the column."""
    if DATE in batch.schema.names:
        return batch
    days = pa.array([date.fromisoformat(day)] * batch.num_rows, pa.date32())
    return batch.append_column(DATE, days)


def tasks_of(
    files: "Iterable[TableFile]", root: str, *, task_bytes: int = TASK_BYTES
) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Shares the files out, in their order."""
    tasks: list[list[tuple[str, str]]] = []
    left = 0
    for file in files:
        if file.size_bytes > left:
            tasks.append([])
            left = task_bytes
        left -= file.size_bytes
        tasks[-1].append((file.path.removeprefix(f"{root}/"), file.date))
    return tuple(tuple(task) for task in tasks)
