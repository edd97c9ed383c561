"""The Iceberg table of one topic. How far it goes are properties of the table, which a commit sets with its snapshot:

    penstock.next-offset.3 = 1200     partition 3 is archived up to offset 1199

(Snapshots have properties too, but they expire.) The catalog makes a commit atomic. A commit is refused if the table
has another newest snapshot than the one on which it was built, so that of two writers one commits.

pyiceberg would by itself put a refused commit on top of the newer snapshot and try again. If that snapshot is
another writer's, its records would be in the table twice. So pyiceberg's tries are turned off; after a refusal the
table is loaded again, and the commit goes on only if the positions are still the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.types import DateType, PrimitiveType, TimestampType, TimestamptzType
from sqlalchemy.exc import SQLAlchemyError

from penstock.spark.lake.parquet_files import EPOCH, WrittenFile
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
from penstock.spark.problems import ArchiveError, PipelineError

NEXT_OFFSET: Final = "penstock.next-offset."
PARTITIONS: Final = "penstock.partitions"
"""The number of partitions that the topic had when it was last looked at."""
NAMESPACE: Final = "penstock"
UNREACHABLE: Final = (OSError, RESTError, SQLAlchemyError)
"""Errors of storage and of catalogs."""
COMMIT_ATTEMPTS: Final = 5
"""Other engines may merge files meanwhile. Each time the commit is built again."""

METRICS: Final = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
OUTERMOST: Final = (date.min.isoformat(), date.max.isoformat())
"""Dates under which times before the year 1 and after 9999 are kept."""

HOUSEKEEPING: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}
"""Every commit writes all of the table's metadata again, and a list of its files: without these, they would pile up."""


class IcebergTopicTable(TopicTable):
    format_name = "iceberg"
    has_dates_in_files = True
    merges_files = False

    def __init__(self, table: Table, storage: LakeStorage) -> None:
        partitions, positions = _read(table.properties)
        super().__init__(storage, partitions=partitions, positions=positions)
        self._table = table

    @property
    def iceberg(self) -> Table:
        """For pyiceberg's own operations."""
        return self._table

    @property
    def version(self) -> int:
        snapshot = self._table.current_snapshot()
        return (snapshot.sequence_number or 0) if snapshot else 0

    @property
    def properties(self) -> Mapping[str, str]:
        return self._table.properties

    def schema(self) -> pa.Schema:
        return schema_to_pyarrow(self._table.schema(), include_field_ids=False)

    def files(self) -> list[TableFile]:
        """ArchiveError if another engine has deleted rows by extra files: Spark's Parquet reader would not see that."""
        found = []
        for task in self._table.scan().plan_files():
            if task.delete_files:
                raise ArchiveError(
                    f"{self.folder} has rows that another engine has marked as deleted. Rewrite its files with that "
                    "engine (rewrite_data_files, OPTIMIZE), or query the table with it"
                )
            found.append(self._file(task.file))
        return sorted(found, key=lambda file: file.path)

    def add_columns(self, fields: Iterable[pa.Field]) -> None:
        wanted = list(fields)
        if wanted:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema([*self.schema(), *wanted]))
            self.refresh()

    def set_properties(self, properties: Mapping[str, str]) -> None:
        with self._table.transaction() as transaction:
            transaction.set_properties(dict(properties))
        self.refresh()

    def merge(self, dates: Sequence[str], *, target_bytes: int) -> int:
        raise PipelineError(
            f"{self.folder} is an Iceberg table, and pyiceberg cannot merge files. Spark (rewrite_data_files) and "
            "Trino (OPTIMIZE) can; an archive may be written meanwhile"
        )

    def vacuum(self, retention_hours: int, *, dry_run: bool, leftovers: bool) -> list[str]:
        """Forgets snapshots. The files that only these have, and leftovers, stay: pyiceberg deletes no data files."""
        oldest_ms = (datetime.now(UTC) - timedelta(hours=retention_hours)).timestamp() * 1000
        current = self._table.current_snapshot()
        kept = {current.snapshot_id if current else None}
        kept |= {ref.snapshot_id for ref in self._table.metadata.refs.values()}
        old = [
            each.snapshot_id
            for each in self._table.snapshots()
            if each.timestamp_ms < oldest_ms and each.snapshot_id not in kept
        ]
        if old and not dry_run:
            self._table.maintenance.expire_snapshots().by_ids(old).commit()
            self._load()
        return sorted(f"snapshot {number}" for number in old)

    def _load(self) -> tuple[int, Positions]:
        try:
            self._table.refresh()
        except UNREACHABLE as problem:
            raise unreachable(self.storage, problem) from None
        return _read(self._table.properties)

    def _commit(self, files: Sequence[WrittenFile], moved: Positions, partitions: int, note: str) -> None:
        for _ in range(COMMIT_ATTEMPTS):
            try:
                self._try_commit(files, _properties(moved, partitions), note)
            except CommitFailedException:
                self.refresh()
            except UNREACHABLE as problem:
                raise unreachable(self.storage, problem) from None
            else:
                return self._sync_metadata()
        raise overtaken(self.folder)

    def _sync_metadata(self) -> None:
        """Before anyone is told that the commit is there: pyiceberg leaves that to the file system."""
        paths = [self._table.metadata_location]
        snapshot = self._table.current_snapshot() if self.storage.is_local else None
        if snapshot is not None:
            manifests = snapshot.manifests(self._table.io)
            new = [each for each in manifests if each.added_snapshot_id == snapshot.snapshot_id]
            paths += [snapshot.manifest_list, *(each.manifest_path for each in new)]
        names = {path.rpartition("/")[2] for path in paths}
        self.storage.sync("metadata", names.__contains__)

    def _try_commit(self, files: Sequence[WrittenFile], properties: dict[str, str], note: str) -> None:
        own = {TableProperties.COMMIT_NUM_RETRIES: "0", **self._without_bounds(files)}
        # In this object alone: the catalog keeps the properties as they are.
        self._table.metadata = self._table.metadata.model_copy(
            update={"properties": {**self._table.properties, **own}}
        )
        with self._table.transaction() as transaction:
            if files:
                paths = [f"{location_of(self.storage)}/{file.path}" for file in files]
                told = {"penstock": note} if note else {}
                transaction.add_files(paths, snapshot_properties=told, check_duplicate_files=False)
            transaction.set_properties(properties)

    def _without_bounds(self, files: Sequence[WrittenFile]) -> dict[str, str]:
        """Properties by which pyiceberg takes no bounds of columns that may have times which Python cannot have. It
        would fail, and one such record would end the archive. Records' own times are such on the outermost dates."""
        schema = self._table.schema()
        times = {
            name
            for name in schema.column_names
            if isinstance(schema.find_type(name), TimestamptzType | TimestampType | DateType)
        }
        if not any(file.date in OUTERMOST for file in files):
            times.discard("timestamp")
        return dict.fromkeys((f"{METRICS}.{name}" for name in sorted(times - {DATE})), "counts")

    def _file(self, file: DataFile) -> TableFile:
        offsets, times = self._bounds(file, "offset"), self._bounds(file, "timestamp")
        return TableFile(
            path=file.file_path.removeprefix("file://"),
            date=(date(1970, 1, 1) + timedelta(days=file.partition[0])).isoformat(),
            size_bytes=file.file_size_in_bytes,
            rows=file.record_count,
            offsets=offsets,
            times=None if times is None else _moments(*times),
        )

    def _bounds(self, file: DataFile, column: str) -> tuple[Any, Any] | None:
        field = self._table.schema().find_field(column)
        low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        kind = field.field_type
        if low is None or high is None or not isinstance(kind, PrimitiveType):
            return None
        return from_bytes(kind, low), from_bytes(kind, high)


class IcebergFormat:
    """The tables of a catalog, in one namespace."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def open(self, storage: LakeStorage) -> IcebergTopicTable | None:
        try:
            table = self._catalog.load_table(_identifier(storage))
        except NoSuchTableError:
            return None
        except UNREACHABLE as problem:
            raise unreachable(storage, problem) from None
        if table.location().rstrip("/") != location_of(storage):
            raise ArchiveError(
                f"the catalog has a table {'.'.join(_identifier(storage))} at {table.location()}, and not at "
                f"{location_of(storage)}: an archive at another path needs another catalog"
            )
        return IcebergTopicTable(table, storage)

    def create(
        self,
        storage: LakeStorage,
        schema: pa.Schema,
        *,
        topic_id: str,
        partitions: int,
        positions: Positions,
        properties: Mapping[str, str] | None = None,
    ) -> IcebergTopicTable:
        storage.make()
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        told = {
            TOPIC_ID: topic_id,
            **_properties(positions, partitions),
            **HOUSEKEEPING,
            **(properties or {}),
        }
        try:
            with (
                self._catalog.create_table_transaction(
                    _identifier(storage), schema, location=location_of(storage), properties=told
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                spec.add_identity(DATE)
        except UNREACHABLE as problem:
            raise unreachable(storage, problem) from None
        except (CommitFailedException, TableAlreadyExistsError) as problem:
            raise overtaken(storage.url, problem) from None
        return IcebergTopicTable(self._catalog.load_table(_identifier(storage)), storage)


def location_of(storage: LakeStorage) -> str:
    return f"file://{storage.url}" if storage.is_local else storage.url


def _identifier(storage: LakeStorage) -> tuple[str, str]:
    return NAMESPACE, storage.url.rpartition("/")[2]


def _read(properties: Mapping[str, str]) -> tuple[int, dict[int, int]]:
    found = {
        int(name.removeprefix(NEXT_OFFSET)): int(value)
        for name, value in properties.items()
        if name.startswith(NEXT_OFFSET)
    }
    return int(properties.get(PARTITIONS, "0")), found


def _properties(positions: Positions, partitions: int) -> dict[str, str]:
    ends = {f"{NEXT_OFFSET}{number}": str(end) for number, end in sorted(positions.items())}
    return {PARTITIONS: str(partitions), **ends}


def _moments(low_us: int, high_us: int) -> tuple[datetime, datetime] | None:
    """None for times that Python cannot have: then no file is skipped."""
    try:
        return EPOCH + timedelta(microseconds=low_us), EPOCH + timedelta(microseconds=high_us)
    except OverflowError:
        return None
