"""The Iceberg table of a topic: commits, writers that meet, readers of other engines."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from threading import Barrier

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from penstock.errors import ConfigError
from penstock.spark import (
    AnotherWriter,
    ArchiveError,
    PipelineError,
    Selection,
    optimize_archive,
    vacuum_archive,
)
from penstock.spark.lake.folder import Lake, TopicFacts
from penstock.spark.lake.iceberg_table import IcebergTopicTable
from penstock.spark.lake.parquet_files import RowsToFiles
from penstock.spark.lake.record_columns import RECORD_SCHEMA

from .conftest import MIDNIGHT, TOPIC, Write, offsets_in, records
from .rest_catalog import rest_catalog

FACTS = TopicFacts(topic_id="first", partitions=2)


@pytest.fixture
def table(tmp_path: Path) -> IcebergTopicTable:
    """An empty table of a topic with two partitions."""
    return make(Lake(str(tmp_path), table_format="iceberg"))


def make(lake: Lake) -> IcebergTopicTable:
    made = lake.create(TOPIC, RECORD_SCHEMA, FACTS, {}, {})
    assert isinstance(made, IcebergTopicTable)
    return made


def reopened(table: IcebergTopicTable) -> IcebergTopicTable:
    found = Lake(os.path.dirname(table.folder)).table(TOPIC)
    assert isinstance(found, IcebergTopicTable)
    return found


def offsets_by_engine(table: IcebergTopicTable) -> dict[str, list[int]]:
    """The offsets that each engine finds in the table, sorted. A catalog that another program opens is the same."""
    path = os.path.dirname(table.folder)
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{path}/iceberg-catalog.db")
    found = catalog.load_table(("penstock", TOPIC))
    catalog.close()
    rows = found.scan().to_arrow()
    by_duckdb = duckdb.from_arrow(rows).project('"offset"').fetchall()
    return {
        "pyiceberg": sorted(rows["offset"].to_pylist()),
        "duckdb": sorted(offset for (offset,) in by_duckdb),
        "polars": sorted(pl.scan_iceberg(found.metadata_location).collect()["offset"].to_list()),
    }


def everywhere(offsets: list[int]) -> dict[str, list[int]]:
    return {"pyiceberg": offsets, "duckdb": offsets, "polars": offsets}


def test_a_commit_has_the_files_and_the_offsets_that_they_reach(
    table: IcebergTopicTable, write: Write
) -> None:
    table.append(write(records(0, 3), records(0, 2, partition=1)))
    table.append(write(records(3, 2)), note="batch 1")
    found = reopened(table)
    assert (found.positions, found.partitions, found.topic_id) == ({0: 5, 1: 2}, 2, "first")
    assert sum(file.rows for file in found.files()) == 7
    assert {file.date for file in found.files()} == {"2026-01-01"}
    assert found.version > 1


def test_engines_read_each_row_once_while_leftovers_lie_about(table: IcebergTopicTable, write: Write) -> None:
    table.append(write(records(0, 3)))
    write(records(3, 3))  # an attempt that failed
    table.append(write(records(3, 3)))
    assert offsets_by_engine(table) == everywhere(list(range(6)))


def test_times_are_utc_microseconds_and_the_date_is_the_partition(
    table: IcebergTopicTable, write: Write
) -> None:
    table.append(write(records(0, 2, at=MIDNIGHT + timedelta(microseconds=7))))
    frame = pl.scan_iceberg(table.iceberg.metadata_location).collect()
    assert frame.schema["timestamp"] == pl.Datetime("us", "UTC")
    assert frame["timestamp"].to_list()[0] == MIDNIGHT + timedelta(microseconds=7)
    assert [field.name for field in table.iceberg.spec().fields] == ["date"]
    assert table.iceberg.scan(row_filter="date = '2026-01-02'").to_arrow().num_rows == 0


def test_of_two_writers_that_begin_at_the_same_offset_one_commits(
    table: IcebergTopicTable, write: Write
) -> None:
    other = reopened(table)
    table.append(write(records(0, 3)))
    with pytest.raises(AnotherWriter, match="one writer at a time"):
        other.append(write(records(0, 3)))
    assert offsets_by_engine(table) == everywhere([0, 1, 2])


def test_of_writers_that_commit_at_the_same_moment_one_succeeds(
    table: IcebergTopicTable, write: Write
) -> None:
    rivals = [(reopened(table), write(records(0, 3))) for _ in range(4)]
    start = Barrier(len(rivals))

    def commit(number: int) -> str:
        rival, files = rivals[number]
        start.wait(60)
        try:
            rival.append(files)
        except AnotherWriter:
            return "another"
        return "committed"

    with ThreadPoolExecutor(len(rivals)) as pool:
        assert sorted(pool.map(commit, range(len(rivals)))) == ["another"] * 3 + ["committed"]
    assert offsets_in(reopened(table)) == [0, 1, 2]


def test_a_writer_that_is_overtaken_between_look_and_commit_changes_nothing(
    table: IcebergTopicTable, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = reopened(table)
    table.append(write(records(0, 3)))
    looks = iter([other.positions])
    real = other.refresh
    monkeypatch.setattr(other, "refresh", lambda: None if next(looks, None) is not None else real())
    with pytest.raises(AnotherWriter):
        other.append(write(records(0, 3)))
    assert offsets_by_engine(table) == everywhere([0, 1, 2])


def test_a_change_by_another_engine_between_look_and_commit_does_not_disturb_a_writer(
    table: IcebergTopicTable, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(write(records(0, 3)))
    other = reopened(table)
    real = table.refresh
    looks = iter([lambda: (real(), other.iceberg.delete("offset == 1"))])
    monkeypatch.setattr(table, "refresh", lambda: next(looks, real)())
    table.append(write(records(3, 1)))
    assert reopened(table).positions == {0: 4}
    assert offsets_in(reopened(table)) == [0, 2, 3]


def test_offsets_survive_the_expiry_of_snapshots_and_no_property_of_others_is_changed(
    table: IcebergTopicTable, write: Write
) -> None:
    table.iceberg.transaction().set_properties({"commit.retry.num-retries": "7"}).commit_transaction()
    for number in range(3):
        table.append(write(records(number, 1)))
    old = [each.snapshot_id for each in table.iceberg.snapshots()[:-1]]
    table.iceberg.maintenance.expire_snapshots().by_ids(old).commit()
    found = reopened(table)
    assert len(found.iceberg.snapshots()) == 1
    assert found.positions == {0: 3}
    assert found.properties["commit.retry.num-retries"] == "7"
    assert offsets_in(found) == [0, 1, 2]


def test_new_columns_are_null_in_older_rows(table: IcebergTopicTable, write: Write, tmp_path: Path) -> None:
    table.append(write(records(0, 2)))
    place = pa.struct([("city", pa.string()), ("points", pa.list_(pa.float64()))])
    table.add_columns([pa.field("note", pa.string()), pa.field("place", place)])
    table.set_properties({"mine": "kept"})
    rows = records(2, 1).append_column("note", pa.array(["new"]))
    rows = rows.append_column("place", pa.array([{"city": "Bern", "points": [1.5]}], place))
    wide = RowsToFiles(storage=Lake(str(tmp_path)).storage, schema=table.schema(), compression="zstd")
    table.append(list(wide.files(iter([rows]))))
    frame = pl.scan_iceberg(reopened(table).iceberg.metadata_location).collect().sort("offset")
    assert frame["note"].to_list() == [None, None, "new"]
    assert frame["place"].to_list()[2] == {"city": "Bern", "points": [1.5]}
    assert reopened(table).properties["mine"] == "kept"


def test_files_are_skipped_by_the_offsets_and_times_in_them(table: IcebergTopicTable, write: Write) -> None:
    for first in (0, 10, 20):
        table.append(write(records(first, 10)))

    def rows(**bounds: object) -> int:
        return sum(file.rows for file in Selection(**bounds).holding(table.files()))  # type: ignore[arg-type]

    assert rows() == 30
    assert rows(from_offset=5, to_offset=10) == 10
    assert rows(from_time=MIDNIGHT + timedelta(seconds=25)) == 10
    assert rows(to_time=MIDNIGHT + timedelta(seconds=10)) == 10


def test_a_time_that_no_calendar_has_is_kept_in_the_record_and_in_the_value(
    table: IcebergTopicTable, tmp_path: Path
) -> None:
    late = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    table.add_columns([pa.field("due", late.type)])
    columns = {
        **records(0, 1).to_pydict(),
        "timestamp": late,
        "due": late,
        "date": [date.max],  # as the archive has it for times after it
    }
    rows = pa.RecordBatch.from_pydict(columns, schema=table.schema())
    write = RowsToFiles(storage=Lake(str(tmp_path)).storage, schema=table.schema(), compression="zstd")
    table.append(list(write.files(iter([rows]))))
    found = reopened(table)
    for name in ("timestamp", "due"):
        assert found.iceberg.scan().to_arrow()[name].cast(pa.int64()).to_pylist() == [2**62]
    assert [(file.times, file.date) for file in found.files()] == [(None, "9999-12-31")]


def test_optimize_says_that_it_cannot_and_vacuum_forgets_old_snapshots(
    table: IcebergTopicTable, write: Write
) -> None:
    path = os.path.dirname(table.folder)
    for number in range(3):
        table.append(write(records(number, 1)))
    with pytest.raises(PipelineError, match="rewrite_data_files"):
        optimize_archive(path)
    assert vacuum_archive(path) == {TOPIC: []}
    old = sorted(f"snapshot {each.snapshot_id}" for each in table.iceberg.snapshots()[:-1])
    assert table.vacuum(-1, dry_run=True, leftovers=True) == old
    assert len(reopened(table).iceberg.snapshots()) == 3
    assert table.vacuum(-1, dry_run=False, leftovers=True) == old
    assert len(reopened(table).iceberg.snapshots()) == 1
    assert offsets_by_engine(table) == everywhere([0, 1, 2])


@pytest.mark.parametrize("catalog", ["sqlite:////dev/null/x.db", "sqlite:////tmp", "http://127.0.0.1:1"])
def test_a_catalog_that_cannot_be_reached_is_told_of_in_one_line(tmp_path: Path, catalog: str) -> None:
    with pytest.raises(PipelineError, match=f"the catalog {catalog} cannot be reached: .+") as error:
        Lake(str(tmp_path), catalog=catalog)
    assert "\n" not in str(error.value)


def test_snapshots_are_forgotten_while_a_run_moves_the_end(table: IcebergTopicTable, write: Write) -> None:
    for number in range(2):
        table.append(write(records(number, 1)))
    beside = reopened(table)
    table.append(write(records(2, 1)))
    assert len(beside.vacuum(-1, dry_run=False, leftovers=True)) == 1
    assert offsets_by_engine(reopened(table)) == everywhere([0, 1, 2])


def test_rows_that_another_engine_marks_as_deleted_are_an_error_and_not_read(
    table: IcebergTopicTable, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(write(records(0, 2)))
    [task] = table.iceberg.scan().plan_files()
    marked = type(task)(task.file, {task.file})
    scan = type("Scan", (), {"plan_files": lambda self: [marked]})
    monkeypatch.setattr(type(table.iceberg), "scan", lambda self: scan())
    with pytest.raises(ArchiveError, match="marked as deleted"):
        table.files()


def test_a_table_in_a_bucket_has_its_catalog_elsewhere(s3_path: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    lake = Lake(s3_path, table_format="iceberg", catalog=uri)
    table = make(lake)
    write = RowsToFiles(storage=lake.storage, schema=RECORD_SCHEMA, compression="zstd")
    table.append(list(write.files(iter([records(0, 3)]))))
    found = Lake(s3_path, catalog=uri).table(TOPIC)
    assert found is not None
    assert offsets_in(found) == [0, 1, 2]
    assert [file.path.startswith(f"{s3_path}/{TOPIC}/date=") for file in found.files()] == [True]
    with pytest.raises(ConfigError, match="a catalog for Iceberg tables in a bucket"):
        Lake(s3_path, table_format="iceberg")
    with pytest.raises(ArchiveError, match="another path needs another catalog"):
        Lake(f"{s3_path}-2", catalog=uri).table(TOPIC)


def test_a_rest_catalog_takes_the_commits_of_one_writer(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rest_catalog(tmp_path) as uri:
        table = make(Lake(str(tmp_path), table_format="iceberg", catalog=uri))
        other = Lake(str(tmp_path), catalog=uri).table(TOPIC)
        assert other is not None
        table.append(write(records(0, 3)))
        looks = iter(["unseen"])
        real = other.refresh
        monkeypatch.setattr(other, "refresh", lambda: None if next(looks, None) else real())
        with pytest.raises(AnotherWriter):
            other.append(write(records(0, 3)))
        table.append(write(records(3, 2)))
        found = Lake(str(tmp_path), catalog=uri).table(TOPIC)
        assert found is not None
        assert (found.positions, offsets_in(found)) == ({0: 5}, list(range(5)))
        assert Lake(str(tmp_path), catalog=uri).table("payments") is None


def test_an_archive_has_one_format(table: IcebergTopicTable, tmp_path: Path) -> None:
    path = os.path.dirname(table.folder)
    assert Lake(path).format_name == "iceberg"
    with pytest.raises(ConfigError, match="which the tables of"):
        Lake(path, table_format="delta")
    with pytest.raises(ConfigError, match="one of delta, iceberg"):
        Lake(path, table_format="hudi")
    with pytest.raises(ConfigError, match="https://HOST"):
        Lake(path, catalog="postgres://x")
    with pytest.raises(ConfigError, match="without #"):
        Lake(str(tmp_path / "a#b"), table_format="iceberg")
    other = tmp_path / "other"
    Lake(str(other)).create(TOPIC, RECORD_SCHEMA, FACTS, {}, {})
    with pytest.raises(ArchiveError, match="is a Delta table"):
        make(Lake(str(other), table_format="iceberg"))
