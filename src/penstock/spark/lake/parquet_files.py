"""Rows to Parquet files, on the executors. The rows of a task are sorted by topic and date: one file is open at a time.

Nothing that happens here changes a table. A task that fails, or that runs a second time, leaves files that no commit
names: the driver learns of the files from the rows that Spark collects, and Spark takes one attempt of each task.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.record_columns import DATE
from penstock.spark.lake.storage import LakeStorage
from penstock.spark.worker_memory import freeze_once

ROW_GROUP_BYTES: Final = 32 << 20
"""The most that a task holds back before it writes a row group. Readers skip whole row groups by their statistics."""
FILE_BYTES: Final = 512 << 20
"""A larger file is ended: readers share the work by files."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
REPORT_SCHEMA: Final = (
    "topic string, path string, date string, size_bytes long, rows long, stats string, ends string"
)
"""The rows that a task returns, one per file, as Spark's DDL."""


class WrittenFile(NamedTuple):
    """A file that can be committed."""

    topic: str
    path: str
    """Relative to the topic's table."""
    date: str
    size_bytes: int
    rows: int
    stats: str
    """Delta's statistics, in JSON: readers leave a file out by these."""
    ends: str
    """The offset after the last one in the file, by partition, in JSON."""

    def next_offsets(self) -> dict[int, int]:
        return {int(number): offset for number, offset in json.loads(self.ends).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsToFiles:
    """Spark calls this on an executor, with the batches of one task (`DataFrame.mapInArrow`)."""

    storage: LakeStorage
    """The archive's folder."""
    schema: pa.Schema
    compression: str
    row_group_bytes: int = ROW_GROUP_BYTES
    file_bytes: int = FILE_BYTES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in self.files(batches):
            yield pa.RecordBatch.from_pylist([file._asdict()])
        freeze_once()

    def files(self, batches: Iterator[pa.RecordBatch]) -> Iterator[WrittenFile]:
        open_file: _OpenFile | None = None
        for batch in batches:
            for topic, day, rows in _runs(fitted(batch, self.schema)):
                if open_file is not None and not open_file.takes(topic, day):
                    yield open_file.close()
                    open_file = None
                if open_file is None:
                    open_file = _OpenFile(self, topic, day)
                open_file.add(rows)
        if open_file is not None:
            yield open_file.close()


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The columns of the table in its order; a column that the rows do not have is null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _runs(rows: pa.Table) -> Iterator[tuple[str, date, pa.Table]]:
    """The rows cut where the topic or the date changes."""
    if not rows.num_rows:
        return
    days = rows[DATE].combine_chunks().cast(pa.int32()).to_numpy()
    topics = rows["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    changes = np.flatnonzero((np.diff(days) != 0) | (np.diff(topics) != 0)) + 1
    bounds = [0, *(int(at) for at in changes), rows.num_rows]
    for first, end in pairwise(bounds):
        part = rows.slice(first, end - first)
        yield part["topic"][0].as_py(), part[DATE][0].as_py(), part


class _OpenFile:
    def __init__(self, settings: RowsToFiles, topic: str, day: date) -> None:
        self._settings = settings
        self._topic, self._day = topic, day
        self._path = f"{DATE}={day.isoformat()}/part-{uuid4().hex}.{settings.compression}.parquet"
        self._sink = settings.storage.writing(self._full_path)
        self._writer = pq.ParquetWriter(self._sink, settings.schema, compression=settings.compression)
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._facts = _Facts()

    @property
    def _full_path(self) -> str:
        return f"{self._topic}/{self._path}"

    def takes(self, topic: str, day: date) -> bool:
        """Whether rows of this topic and day belong to this file, and it may still grow."""
        return (topic, day) == (self._topic, self._day) and self._sink.tell() < self._settings.file_bytes

    def add(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._settings.row_group_bytes:
            self._write_held()

    def close(self) -> WrittenFile:
        """The file is whole and durable when this returns."""
        self._write_held()
        self._writer.close()
        size_bytes = self._settings.storage.finish(self._sink, self._full_path)
        return WrittenFile(
            topic=self._topic,
            path=self._path,
            date=self._day.isoformat(),
            size_bytes=size_bytes,
            rows=self._facts.rows,
            stats=self._facts.stats(),
            ends=json.dumps(self._facts.ends),
        )

    def _write_held(self) -> None:
        if self._held:
            rows = pa.concat_tables(self._held)
            self._held, self._held_bytes = [], 0
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._facts.add(rows)


class _Facts:
    """Counts, bounds and ends of the rows of a file."""

    def __init__(self) -> None:
        self.rows = 0
        self.ends: dict[int, int] = {}
        self._bounds: dict[str, tuple[int, int]] = {}

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for name in ("partition", "offset", "timestamp"):
            found = pc.min_max(rows[name].cast(pa.int64())).as_py()
            low, high = self._bounds.get(name, (found["min"], found["max"]))
            self._bounds[name] = min(low, found["min"]), max(high, found["max"])
        last = rows.select(["partition", "offset"]).group_by("partition").aggregate([("offset", "max")])
        for row in last.to_pylist():
            number, end = row["partition"], row["offset_max"] + 1
            self.ends[number] = max(self.ends.get(number, 0), end)

    def stats(self) -> str:
        lows: dict[str, Any] = {name: low for name, (low, _) in self._bounds.items() if name != "timestamp"}
        highs: dict[str, Any] = {
            name: high for name, (_, high) in self._bounds.items() if name != "timestamp"
        }
        low_us, high_us = self._bounds["timestamp"]
        low, high = _moment(low_us), _moment(-(-high_us // 1000) * 1000)
        if low and high:
            lows["timestamp"], highs["timestamp"] = low, high
        counts = dict.fromkeys(self._bounds, 0)
        found = {"numRecords": self.rows, "minValues": lows, "maxValues": highs, "nullCount": counts}
        return json.dumps(found)


def _moment(microseconds: int) -> str | None:
    """Delta's statistics have milliseconds. None for a time that the format cannot have: then no file is skipped."""
    try:
        moment = EPOCH + timedelta(milliseconds=microseconds // 1000)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
