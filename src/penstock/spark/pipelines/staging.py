"""New files of an archive, before they belong to it.

    PATH/_penstock/staging/SEQUENCE-WRITER/data/topic=T/date=D/part-....parquet    what Spark wrote
    PATH/_penstock/staging/SEQUENCE-WRITER/plan.json                              what is to become of it

Spark writes a folder; what is in it is read back for its ranges; a plan names every file that the change will put into
the archive or take out of it; then files are moved, the change is appended to the log, and what was taken out is
deleted. A run that finds a staging folder deletes, of the files in its plan, those that the log does not name: that
is right whether the change was committed or not.
"""

from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import OWN_FOLDER
from penstock.spark.pipelines.manifest import DataFile, Range, State

STAGING_FOLDER: Final = f"{OWN_FOLDER}/staging"
PLAN: Final = "plan.json"

TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""Spark's default, INT96, has no statistics, so that a time range would read every file."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    adds: tuple[str, ...]
    removes: tuple[str, ...]


class Stage:
    """The place of one change."""

    def __init__(self, files: Files, sequence: int, writer: str) -> None:
        self._files = files
        self.name = f"{sequence:020d}-{writer}"
        self.folder = f"{STAGING_FOLDER}/{self.name}"

    def write(self, rows: DataFrame, compression: str) -> None:
        """Rows in offset order within each file: each task's partitions are sorted, none is moved to another."""
        rows.sparkSession.conf.set(*TIMESTAMPS)
        ordered = rows.sortWithinPartitions("topic", "date", "partition", "offset")
        writer = (
            ordered.write.mode("overwrite").partitionBy("topic", "date").option("compression", compression)
        )
        writer.parquet(self._files.absolute(self._data))

    def found(self, spark: SparkSession) -> list[tuple[str, DataFile]]:
        """The files that Spark wrote, as (present path, final path)."""
        if not any(each.is_folder for each in self._files.names(self._data)):
            return []  # no rows
        written = spark.read.schema("partition int, offset long").parquet(self._files.absolute(self._data))
        found = written.groupBy("_metadata.file_path", "_metadata.file_size", "partition").agg(
            F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("rows")
        )
        ranges: dict[tuple[str, int], list[Range]] = {}
        for row in found.collect():
            tp = row.file_path.rpartition(f"/{self.name}/data/")[2]
            one = Range(partition=row.partition, first=row.first, last=row.last, rows=row.rows)
            ranges.setdefault((tp, row.file_size), []).append(one)
        return [self._file(number, *key, ranges[key]) for number, key in enumerate(sorted(ranges))]

    def move(self, found: list[tuple[str, DataFile]], removes: tuple[str, ...]) -> None:
        """Moves the files to their folders. They are not read there before the log names them."""
        plan = Plan(adds=tuple(file.path for _, file in found), removes=removes)
        self._files.write(f"{self.folder}/{PLAN}", msgspec.json.encode(plan))
        for folder in sorted({file.path.rpartition("/")[0] for _, file in found}):
            self._files.make_folder(folder)
        for source, file in found:
            self._files.move(source, file.path)

    def clear(self, state: State) -> None:
        clear(self._files, self.folder, state)

    @property
    def _data(self) -> str:
        return f"{self.folder}/data"

    def _file(self, number: int, tp: str, size_bytes: int, ranges: list[Range]) -> tuple[str, DataFile]:
        topic, date, _ = tp.split("/")
        file = DataFile(
            path=f"{topic}/{date}/{self.name}-{number:05d}.parquet",
            topic=topic.removeprefix("topic="),
            date=date.removeprefix("date="),
            size_bytes=size_bytes,
            ranges=tuple(sorted(ranges, key=lambda one: one.partition)),
        )
        return f"{self._data}/{tp}", file


def clear_all(files: Files, state: State) -> None:
    """Deletes the leftovers of changes that ended early. For the one writer, after its claim."""
    for each in files.names(STAGING_FOLDER):
        clear(files, f"{STAGING_FOLDER}/{each.name}", state)


def clear(files: Files, folder: str, state: State) -> None:
    content = files.read(f"{folder}/{PLAN}")
    if content is not None:
        plan = _decoded(content)
        for path in (*plan.adds, *plan.removes):
            if path not in state.files:
                files.delete(path)
    files.delete(folder)


def _decoded(content: bytes) -> Plan:
    """A plan that is not whole was never acted upon: nothing is moved before it is written."""
    try:
        return msgspec.json.decode(content, type=Plan)
    except msgspec.MsgspecError:
        return Plan(adds=(), removes=())
