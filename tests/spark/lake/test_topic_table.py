"""The Delta table of a topic: commits, writers that meet, readers of other engines."""

import os
import time
from datetime import timedelta
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import ConfigError
from penstock.spark import AnotherWriter, ArchiveError, Selection, optimize_archive, vacuum_archive
from penstock.spark.lake.delta_table import DeltaTopicTable
from penstock.spark.lake.folder import Lake, TopicFacts
from penstock.spark.lake.maintenance import Compaction
from penstock.spark.lake.record_columns import RECORD_SCHEMA
from penstock.spark.lake.storage import LocalStorage
from penstock.spark.pipelines.writer import ArchiveWriter

from .conftest import MIDNIGHT, TOPIC, Write, records, reopened


def offsets_by_engine(folder: str) -> dict[str, list[int]]:
    """The offsets that each engine finds in the table, sorted."""
    rows = DeltaTable(folder).to_pyarrow_dataset()
    found = duckdb.from_arrow(rows).project('"offset"').fetchall()
    return {
        "deltalake": sorted(rows.to_table()["offset"].to_pylist()),
        "duckdb": sorted(offset for (offset,) in found),
        "polars": sorted(pl.read_delta(folder)["offset"].to_list()),
    }


def everywhere(offsets: list[int]) -> dict[str, list[int]]:
    return {"deltalake": offsets, "duckdb": offsets, "polars": offsets}


def test_a_commit_has_the_files_and_the_offsets_that_they_reach(table: DeltaTopicTable, write: Write) -> None:
    table.append(write(records(0, 3), records(0, 2, partition=1)))
    table.append(write(records(3, 2)))
    found = reopened(table)
    assert (found.positions, found.partitions, found.topic_id) == ({0: 5, 1: 2}, 2, "first")
    assert [file.rows for file in found.files()] == [file.rows for file in table.files()]
    assert sum(file.rows for file in found.files()) == 7


def test_engines_read_each_row_once_while_leftovers_lie_about(table: DeltaTopicTable, write: Write) -> None:
    table.append(write(records(0, 3)))
    write(records(3, 3))  # an attempt that failed
    table.append(write(records(3, 3)))
    Path(table.folder, "date=2026-01-01", "part-torn.parquet").write_bytes(b"PAR1")
    assert offsets_by_engine(table.folder) == everywhere(list(range(6)))
    optimize_archive(os.path.dirname(table.folder))
    assert offsets_by_engine(table.folder) == everywhere(list(range(6)))


def test_old_readers_know_every_feature_of_the_table(table: DeltaTopicTable, write: Write) -> None:
    table.append(write(records(0, 1)))
    protocol = table.delta.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
    assert not protocol.writer_features


def test_of_two_writers_that_begin_at_the_same_offset_one_commits(
    table: DeltaTopicTable, write: Write
) -> None:
    other = reopened(table)
    table.append(write(records(0, 3)))
    with pytest.raises(AnotherWriter, match="one writer at a time"):
        other.append(write(records(0, 3)))
    assert offsets_by_engine(table.folder) == everywhere([0, 1, 2])


def test_a_writer_that_is_overtaken_between_look_and_commit_changes_nothing(
    table: DeltaTopicTable, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = reopened(table)
    table.append(write(records(0, 3)))
    monkeypatch.setattr(DeltaTopicTable, "refresh", lambda self: None)
    with pytest.raises(AnotherWriter, match="Concurrent transaction"):
        other.append(write(records(0, 3)))
    assert offsets_by_engine(table.folder) == everywhere([0, 1, 2])


def test_a_merge_by_another_process_does_not_disturb_a_writer(table: DeltaTopicTable, write: Write) -> None:
    table.append(write(records(0, 3)))
    table.append(write(records(3, 3)))
    assert optimize_archive(os.path.dirname(table.folder)) == 1
    table.append(write(records(6, 1)))
    assert offsets_by_engine(table.folder) == everywhere(list(range(7)))


def test_an_archive_continues_after_others_deleted_rows_and_added_columns(
    table: DeltaTopicTable, write: Write
) -> None:
    table.append(write(records(0, 3)))
    DeltaTable(table.folder).delete('"offset" = 1')
    reopened(table).add_columns([pa.field("note", pa.string())])
    table.append(write(records(3, 1)))
    assert reopened(table).positions == {0: 4}
    assert offsets_by_engine(table.folder) == everywhere([0, 2, 3])


def test_offsets_survive_checkpoints_of_the_log(table: DeltaTopicTable, write: Write) -> None:
    for number in range(4):
        table.append(write(records(number, 1)))
    table.delta.create_checkpoint()
    for name in os.listdir(os.path.join(table.folder, "_delta_log")):
        if name.endswith(".json"):
            os.remove(os.path.join(table.folder, "_delta_log", name))
    assert reopened(table).positions == {0: 4}
    assert reopened(table).topic_id == "first"


def test_a_writer_that_was_killed_while_it_made_a_table_is_followed_by_one_that_makes_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / TOPIC
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / "_commit_1.json.tmp").write_text("{")
    storage = LocalStorage(str(folder))
    assert DeltaTopicTable.open(storage) is None
    made = DeltaTopicTable.create(storage, RECORD_SCHEMA, topic_id="first", partitions=1, positions={0: 7})
    assert reopened(made).positions == {0: 7}


def test_a_table_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / TOPIC / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("not JSON")
    with pytest.raises(ArchiveError, match="cannot be read"):
        DeltaTopicTable.open(LocalStorage(str(tmp_path / TOPIC)))


def test_a_file_that_is_gone_before_its_commit_is_an_error(table: DeltaTopicTable, write: Write) -> None:
    [file] = write(records(0, 1))
    os.remove(os.path.join(table.folder, file.path))
    with pytest.raises(ArchiveError, match="is gone before it was committed"):
        table.append([file])
    assert reopened(table).positions == {}


def test_files_are_skipped_by_the_offsets_and_times_in_them(table: DeltaTopicTable, write: Write) -> None:
    for first in (0, 10, 20):
        table.append(write(records(first, 10)))

    def rows(**bounds: object) -> int:
        return sum(file.rows for file in Selection(**bounds).holding(table.files()))  # type: ignore[arg-type]

    assert rows() == 30
    assert rows(from_offset=10) == 20
    assert rows(from_offset=5, to_offset=10) == 10
    assert rows(from_time=MIDNIGHT + timedelta(seconds=25)) == 10
    assert rows(to_time=MIDNIGHT + timedelta(seconds=10)) == 10
    optimize_archive(os.path.dirname(table.folder))
    table.refresh()
    assert [file.offsets for file in table.files()] == [(0, 29)]


def test_vacuum_deletes_old_leftovers_and_nothing_else(table: DeltaTopicTable, write: Write) -> None:
    table.append(write(records(0, 3)))
    [old] = write(records(3, 3))
    [fresh] = write(records(3, 3))
    two_hours_ago = time.time() - 7200
    for file in [old.path, *(file.path for file in table.files())]:
        os.utime(os.path.join(table.folder, file), (two_hours_ago, two_hours_ago))
    path = os.path.dirname(table.folder)
    assert vacuum_archive(path, retention_hours=1, dry_run=True) == {TOPIC: [old.path]}
    assert vacuum_archive(path, retention_hours=1) == {TOPIC: [old.path]}
    assert os.path.exists(os.path.join(table.folder, fresh.path))
    assert offsets_by_engine(table.folder) == everywhere([0, 1, 2])
    with pytest.raises(ConfigError, match="retention_hours"):
        vacuum_archive(path, retention_hours=0)


def test_an_archive_of_the_old_format_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "_penstock" / "log").mkdir(parents=True)
    with pytest.raises(ArchiveError, match="penstock pipeline convert"):
        Lake(str(tmp_path))


def test_files_are_merged_and_vacuumed_while_a_run_moves_the_end(
    table: DeltaTopicTable, write: Write
) -> None:
    table.append(write(records(0, 3)))
    table.append(write(records(3, 3)))
    run = reopened(table)
    run.append(write(records(6, 3)))
    assert table.merge(["2026-01-01"], target_bytes=1 << 27) > 0
    run.append(write(records(9, 3)))
    assert table.vacuum(1, dry_run=True, leftovers=True) == []
    assert offsets_by_engine(table.folder) == everywhere(list(range(12)))
    with pytest.raises(AnotherWriter):  # it does not know what the run has written
        table.append(write(records(6, 3)))


def test_a_table_that_somebody_else_made_is_left_alone(
    table: DeltaTopicTable, write: Write, tmp_path: Path
) -> None:
    table.append(write(records(0, 3)))
    table.append(write(records(3, 3)))
    DeltaTable.create(str(tmp_path / "customers"), pa.schema([("id", pa.int64())]))
    assert list(Lake(str(tmp_path)).tables()) == [TOPIC]
    assert optimize_archive(str(tmp_path)) == 1
    assert list(vacuum_archive(str(tmp_path), dry_run=True)) == [TOPIC]
    with pytest.raises(ArchiveError, match="customers is a table that no archive has made"):
        Lake(str(tmp_path)).create("customers", RECORD_SCHEMA, TopicFacts(topic_id="1", partitions=1), {}, {})
    assert DeltaTable(tmp_path / "customers").version() == 0


def test_a_run_cares_for_the_tables_of_its_own_topics(
    table: DeltaTopicTable, write: Write, tmp_path: Path
) -> None:
    table.append(write(records(0, 3)))
    table.append(write(records(3, 3)))
    run = ArchiveWriter(Lake(str(tmp_path)))
    run.begin({"payments": TopicFacts(topic_id="1", partitions=1)}, {})
    assert run.optimize(Compaction()) == 0
    assert len(reopened(table).files()) == 2
    run.begin({TOPIC: TopicFacts(topic_id="first", partitions=2)}, {})
    assert run.optimize(Compaction()) == 1
