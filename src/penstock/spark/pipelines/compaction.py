"""Small files into large ones. Which, is decided here without touching any; `ArchiveWriter.replace` commits it.

Files below the target size are merged with others of their topic and date, rows in order of partition and offset. While
a date is still growing, a file is left alone until the smaller ones together come near its size: merging it with every
batch would write the same rows over and over. A date that is over merges all that is small.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.manifest import DataFile
from penstock.spark.pipelines.reading import committed
from penstock.spark.pipelines.writer import ArchiveWriter

GROWTH: Final = 4
"""A file waits until the smaller ones together have a quarter of its size."""
LEAST_FILES: Final = 4
MOST_FILES: Final = 1_000
"""The most files in one merge: a task opens them all."""
GROUPS_AT_ONCE: Final = 16
"""Merges in one change: each is one task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compaction:
    target_bytes: int = 128 << 20
    """The size that merged files reach. Larger files are not merged."""
    every_batches: int = 20

    def validate(self) -> None:
        if self.target_bytes < 1:
            raise ConfigError("target_bytes", self.target_bytes, "a size of at least 1 byte")
        if self.every_batches < 1:
            raise ConfigError("every_batches", self.every_batches, "at least 1")


DEFAULT_COMPACTION: Final = Compaction()


def compact_archive(spark: SparkSession, path: str, compaction: Compaction = DEFAULT_COMPACTION) -> int:
    """Merges all small files of an archive that no run is writing to. Returns how many files fewer there are."""
    compaction.validate()
    writer = ArchiveWriter(Files(spark, path))
    if not writer.state.sequence:
        raise ConfigError(
            "path", path, "an archive. `penstock pipeline run archive TOPIC --to PATH` makes one"
        )
    writer.claim({}, {})
    return compact(spark, writer, compaction, everything=True)


def compact(spark: SparkSession, writer: ArchiveWriter, settings: Compaction, *, everything: bool) -> int:
    """Returns how many files fewer there are."""
    own = spark.newSession()  # its settings are for the merges only
    # Spark would make one task of a union of single partitions.
    own.conf.set("spark.sql.unionOutputPartitioning", "false")
    groups = choose(
        writer.state.files.values(), target_bytes=settings.target_bytes, today=_today(), everything=everything
    )
    fewer = 0
    for first in range(0, len(groups), GROUPS_AT_ONCE):
        chosen = groups[first : first + GROUPS_AT_ONCE]
        old = [file for group in chosen for file in group]
        added = writer.replace(own, old, _merged(own, writer.files, chosen))
        fewer += len(old) - len(added)
    return fewer


def choose(
    files: Iterable[DataFile], *, target_bytes: int, today: str, everything: bool
) -> list[list[DataFile]]:
    """Groups of files, each to become one file."""
    small = sorted((file for file in files if file.size_bytes < target_bytes), key=_day)
    groups: list[list[DataFile]] = []
    for (_, date), same_day in groupby(small, key=_day):
        candidates = list(same_day)
        if not everything and date >= today:
            candidates = _worth_it(candidates)
        groups += _cut(sorted(candidates, key=_place), target_bytes)
    return groups


def _worth_it(files: Sequence[DataFile]) -> list[DataFile]:
    picked: list[DataFile] = []
    total = 0
    for file in sorted(files, key=lambda file: file.size_bytes):
        if len(picked) >= LEAST_FILES and file.size_bytes > total * GROWTH:
            break
        picked.append(file)
        total += file.size_bytes
    return picked if len(picked) >= LEAST_FILES else []


def _cut(files: list[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """The files in order, grouped up to the target size; a file that would be alone stays as it is."""
    groups: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        if groups[-1] and (size + file.size_bytes > target_bytes or len(groups[-1]) >= MOST_FILES):
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size_bytes
    return [group for group in groups if len(group) > 1]


def _merged(spark: SparkSession, files: Files, groups: list[list[DataFile]]) -> DataFrame:
    """One task for each group, so one file."""
    frames = [committed(spark, files, group).coalesce(1) for group in groups]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _day(file: DataFile) -> tuple[str, str]:
    return file.topic, file.date


def _place(file: DataFile) -> tuple[int, int]:
    return file.ranges[0].partition, file.ranges[0].first


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
