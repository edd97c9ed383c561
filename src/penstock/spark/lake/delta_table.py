"""The Delta table of one topic. A commit carries, besides the files, one `txn` action for each partition that it moves:

    appId "penstock/next-offset/3", version 1200     partition 3 is archived up to offset 1199

Delta keeps the newest version of each appId with the table, also in checkpoints. delta-rs refuses a commit if another
one has set one of its appIds since the snapshot on which it was built. Commits that set none, such as `optimize`, do
not disturb a writer.

The table has no deletion vectors, no column mapping and no other feature that an old reader does not know.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from penstock.spark.lake.folder import LOG_FOLDER
from penstock.spark.lake.parquet_files import WrittenFile
from penstock.spark.lake.record_columns import DATE
from penstock.spark.lake.storage import LakeStorage
from penstock.spark.lake.topic_table import (
    TOPIC_ID,
    Positions,
    TableFile,
    TopicTable,
    overtaken,
    unreachable,
)
from penstock.spark.problems import ArchiveError, first_line

NEXT_OFFSET: Final = "penstock/next-offset/"
PARTITIONS: Final = "penstock/partitions"
"""The version of this appId is the number of partitions that the topic had when it was last looked at."""

STATS_STEP: Final = timedelta(milliseconds=1)
"""Statistics have milliseconds, and writers may cut off the rest: a file may hold a time up to this much later."""


class DeltaTopicTable(TopicTable):
    format_name = "delta"
    has_dates_in_files = False  # delta-rs leaves partition columns out of files that it merges
    merges_files = True

    def __init__(self, table: DeltaTable, storage: LakeStorage) -> None:
        partitions, positions = _read(table)
        super().__init__(storage, partitions=partitions, positions=positions)
        self._table = table

    @classmethod
    def open(cls, storage: LakeStorage) -> "DeltaTopicTable | None":
        if not storage.has(LOG_FOLDER):
            return None
        try:
            with _problems_told(storage):
                return cls(_delta(storage), storage)
        except TableNotFoundError:
            return None

    @classmethod
    def create(
        cls,
        storage: LakeStorage,
        schema: pa.Schema,
        *,
        topic_id: str,
        partitions: int,
        positions: Positions,
        properties: Mapping[str, str] | None = None,
    ) -> "DeltaTopicTable":
        storage.make()
        try:
            DeltaTable.create(
                storage.url,
                schema,
                partition_by=[DATE],
                configuration={TOPIC_ID: topic_id, **(properties or {})},
                raise_if_key_not_exists=False,
                commit_properties=_properties(positions, partitions),
                storage_options=storage.delta_options(),
            )
        except OSError as problem:
            raise unreachable(storage, problem) from None
        except DeltaError as problem:
            raise overtaken(storage.url, problem) from None
        _sync_log(storage, since=-1)
        return cls(_delta(storage), storage)

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def properties(self) -> Mapping[str, str]:
        return {name: str(value) for name, value in self._table.metadata().configuration.items()}

    @property
    def delta(self) -> DeltaTable:
        """For delta-rs's own operations. A commit that they make is seen after `refresh`."""
        return self._table

    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def files(self) -> list[TableFile]:
        with _problems_told(self.storage):
            actions = pa.table(self._table.get_add_actions(flatten=True))
        return sorted((_file(self.folder, row) for row in actions.to_pylist()), key=lambda file: file.path)

    def add_columns(self, fields: Iterable[pa.Field]) -> None:
        wanted = Schema.from_arrow(pa.schema(list(fields))).fields
        if wanted:
            with _problems_told(self.storage):
                self._table.alter.add_columns(wanted)
            self.refresh()

    def set_properties(self, properties: Mapping[str, str]) -> None:
        with _problems_told(self.storage):
            self._table.alter.set_table_properties(dict(properties), raise_if_not_exists=False)
        self.refresh()

    def merge(self, dates: Sequence[str], *, target_bytes: int) -> int:
        try:
            with _problems_told(self.storage):
                done = self._table.optimize.compact(
                    partition_filters=[(DATE, "in", list(dates))],
                    target_size=target_bytes,
                    writer_properties=WriterProperties(compression="ZSTD"),
                )
        except CommitFailedError:  # another process has merged the same files
            done = {"numFilesRemoved": 0, "numFilesAdded": 0}
        self._load()
        return int(done["numFilesRemoved"]) - int(done["numFilesAdded"])

    def vacuum(self, retention_hours: int, *, dry_run: bool, leftovers: bool) -> list[str]:
        """For leftovers the whole folder is listed."""
        with _problems_told(self.storage):
            deleted = self._table.vacuum(
                retention_hours=retention_hours,
                dry_run=dry_run,
                enforce_retention_duration=False,
                full=leftovers,
            )
        self._load()
        return sorted(deleted)

    def _load(self) -> tuple[int, Positions]:
        with _problems_told(self.storage):
            self._table.update_incremental()
            return _read(self._table)

    def _commit(self, files: Sequence[WrittenFile], moved: Positions, partitions: int, note: str) -> None:
        try:
            with _problems_told(self.storage):
                self._table.create_write_transaction(
                    [_action(file) for file in files],
                    "append",
                    self._table.schema(),
                    [DATE],
                    commit_properties=_properties(moved, partitions, note),
                )
        except CommitFailedError as problem:
            raise overtaken(self.folder, problem) from None
        _sync_log(self.storage, since=self.version)


@contextmanager
def _problems_told(storage: LakeStorage) -> Iterator[None]:
    """A table that cannot be reached, or that somebody has broken, is an ArchiveError. Two errors are
    passed on, for the caller to decide: that there is no table, and that another commit came first."""
    try:
        yield
    except OSError as problem:
        raise unreachable(storage, problem) from None
    except (TableNotFoundError, CommitFailedError):
        raise
    except DeltaError as problem:
        raise ArchiveError(
            f"the Delta table {storage.url} cannot be read or changed: {first_line(problem)}"
        ) from None


def _delta(storage: LakeStorage) -> DeltaTable:
    return DeltaTable(storage.url, storage_options=storage.delta_options())


def _read(table: DeltaTable) -> tuple[int, dict[int, int]]:
    partitions = table.transaction_version(PARTITIONS) or 0
    found = {number: table.transaction_version(f"{NEXT_OFFSET}{number}") for number in range(partitions)}
    return partitions, {number: offset for number, offset in found.items() if offset is not None}


def _properties(positions: Positions, partitions: int, note: str = "") -> CommitProperties:
    versions = {
        PARTITIONS: partitions,
        **{f"{NEXT_OFFSET}{number}": end for number, end in positions.items()},
    }
    return CommitProperties(
        app_transactions=[Transaction(name, version) for name, version in sorted(versions.items())],
        custom_metadata={"penstock": note} if note else None,
    )


def _action(file: WrittenFile) -> AddAction:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    return AddAction(file.path, file.size_bytes, {DATE: file.date}, now_ms, True, file.stats)


def _file(folder: str, row: Mapping[str, Any]) -> TableFile:
    offsets, times = _bounds(row, "offset"), _bounds(row, "timestamp")
    return TableFile(
        path=f"{folder}/{row['path']}",
        date=row[f"partition.{DATE}"].isoformat(),
        size_bytes=row["size_bytes"],
        rows=row["num_records"] or 0,
        offsets=offsets,
        times=None if times is None else (times[0], times[1] + STATS_STEP),
    )


def _bounds(row: Mapping[str, Any], column: str) -> tuple[Any, Any] | None:
    low, high = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if low is None or high is None else (low, high)


def _sync_log(storage: LakeStorage, *, since: int) -> None:
    """Before anyone is told that the commit is there: delta-rs leaves that to the file system."""

    def is_new(name: str) -> bool:
        number = name.removesuffix(".json")
        return number.isdecimal() and int(number) > since

    storage.sync(LOG_FOLDER, is_new)
