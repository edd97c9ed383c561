"""Small files into large ones, and the deletion of files that no snapshot needs: the format's library does both.

`optimize` merges the small files of a date. While a date still grows, that would write the same rows over and over: it
waits until the files other than the largest have together a quarter of its size. A date that is over is merged whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.spark.lake.folder import known_tables

if TYPE_CHECKING:
    from penstock.spark.lake.topic_table import TableFile, TopicTable

GROWTH: Final = 4
"""A growing date waits until its smaller files together have a quarter of the largest one's size."""
LEAST_FILES: Final = 4
"""A growing date is not worth a merge with fewer files."""

WEEK_HOURS: Final = 7 * 24
"""Delta's own default. A query that began on an older snapshot still finds the files that a merge replaced since."""
LEAST_RETENTION_HOURS: Final = 1
"""A run that is writing has files which are not committed yet, and to a vacuum these look like leftovers."""


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


def optimize_archive(
    path: str, compaction: Compaction = DEFAULT_COMPACTION, *, catalog: str | None = None
) -> int:
    """Merges all small files of an archive, of the present day too. Returns how many files fewer there are.
    PipelineError for Iceberg tables, whose library cannot merge files."""
    compaction.validate()
    tables = known_tables(path, catalog)
    return sum(optimize(table, compaction, everything=True) for table in tables.values())


def vacuum_archive(
    path: str, *, retention_hours: int = WEEK_HOURS, dry_run: bool = False, catalog: str | None = None
) -> dict[str, list[str]]:
    """Deletes files that no snapshot of the last hours has: files that were merged into others, and leftovers of runs
    that ended early. Of Iceberg tables it forgets older snapshots, and deletes no data files. Returns what it deleted,
    by topic."""
    if retention_hours < LEAST_RETENTION_HOURS:
        raise ConfigError(
            "retention_hours",
            retention_hours,
            f"at least {LEAST_RETENTION_HOURS}, and longer than any batch takes",
        )
    return {
        topic: table.vacuum(retention_hours, dry_run=dry_run, leftovers=True)
        for topic, table in known_tables(path, catalog).items()
    }


def care_for(table: "TopicTable", settings: Compaction) -> int:
    """A run calls this now and then: it merges files, and deletes those that were merged a week ago. Where files
    cannot be merged, it forgets snapshots that are a week old. Returns how many files fewer there are."""
    fewer = optimize(table, settings, everything=False) if table.merges_files else 0
    if fewer or not table.merges_files:
        table.vacuum(WEEK_HOURS, dry_run=False, leftovers=False)
    return fewer


def optimize(table: "TopicTable", settings: Compaction, *, everything: bool) -> int:
    """Returns how many files fewer there are."""
    dates = choose_dates(
        table.files(), target_bytes=settings.target_bytes, today=_today(), everything=everything
    )
    return table.merge(dates, target_bytes=settings.target_bytes) if dates else 0


def choose_dates(
    files: Iterable["TableFile"], *, target_bytes: int, today: str, everything: bool
) -> list[str]:
    """The dates whose small files are to be merged."""
    small = sorted((file for file in files if file.size_bytes < target_bytes), key=lambda file: file.date)
    chosen = []
    for date, same_day in groupby(small, key=lambda file: file.date):
        sizes = sorted(file.size_bytes for file in same_day)
        if len(sizes) > 1 and (everything or date < today or _is_worth_it(sizes)):
            chosen.append(date)
    return chosen


def _is_worth_it(sizes: list[int]) -> bool:
    *smaller, largest = sizes
    return len(sizes) >= LEAST_FILES and sum(smaller) * GROWTH >= largest


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
