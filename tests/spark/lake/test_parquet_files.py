"""Rows to Parquet files: where they are cut, and what is said about them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.lake.parquet_files import RowsToFiles
from penstock.spark.lake.record_columns import RECORD_SCHEMA
from penstock.spark.lake.storage import LocalStorage

from .conftest import MIDNIGHT, TOPIC, Write, records


def test_a_file_has_the_rows_of_one_topic_and_date(write: Write, tmp_path: Path) -> None:
    both = pa.Table.from_batches([records(0, 2), records(2, 3, at=MIDNIGHT + timedelta(days=1))])
    first, second = write(*both.combine_chunks().to_batches())
    assert [(file.topic, file.date, file.rows) for file in (first, second)] == [
        (TOPIC, "2026-01-01", 2),
        (TOPIC, "2026-01-02", 3),
    ]
    found = pq.read_table(tmp_path / TOPIC / second.path, partitioning=None)
    assert found.schema.equals(RECORD_SCHEMA)  # the date too: some readers want it in the file
    assert found["offset"].to_pylist() == [2, 3, 4]
    assert second.size_bytes == (tmp_path / TOPIC / second.path).stat().st_size


def test_statistics_and_ends_cover_all_row_groups(write: Write, tmp_path: Path) -> None:
    [file] = write(records(5, 2), records(0, 4, partition=1), row_group_bytes=1)
    assert pq.ParquetFile(tmp_path / TOPIC / file.path).num_row_groups == 2
    assert file.next_offsets() == {0: 7, 1: 4}
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 6
    assert stats["minValues"] == {"partition": 0, "offset": 0, "timestamp": "2026-01-01T00:00:00.000Z"}
    assert stats["maxValues"] == {"partition": 1, "offset": 6, "timestamp": "2026-01-01T00:00:06.000Z"}


def test_a_file_that_is_large_enough_is_followed_by_another(write: Write) -> None:
    assert len(write(records(0, 5), records(5, 5), row_group_bytes=1, file_bytes=1)) == 2
    assert len(write(records(0, 5), records(5, 5))) == 1


def test_a_column_that_the_rows_lack_is_null(write: Write, tmp_path: Path) -> None:
    bare = records(0, 2).drop_columns(["headers"])
    [file] = write(bare)
    assert pq.read_table(tmp_path / TOPIC / file.path, partitioning=None)["headers"].null_count == 2


@pytest.mark.parametrize("microseconds", [2**62, -(2**62)])
def test_a_time_outside_of_all_calendars_is_kept_and_has_no_statistics(
    tmp_path: Path, microseconds: int
) -> None:
    batch = records(0, 1)
    times = pa.array([microseconds], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    odd = batch.set_column(batch.schema.get_field_index("timestamp"), RECORD_SCHEMA.field("timestamp"), times)
    write = RowsToFiles(storage=LocalStorage(str(tmp_path)), schema=RECORD_SCHEMA, compression="zstd")
    [file] = write.files(iter([odd]))
    assert "timestamp" not in json.loads(file.stats)["minValues"]
    found = pq.read_table(tmp_path / TOPIC / file.path, partitioning=None)
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [microseconds]


def test_nothing_is_written_for_no_rows(write: Write, tmp_path: Path) -> None:
    assert write(records(0, 0)) == []
    assert not (tmp_path / TOPIC).exists()


def test_the_latest_time_of_the_statistics_is_never_too_early(write: Write) -> None:
    [file] = write(records(0, 1, at=datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)))
    assert json.loads(file.stats)["maxValues"]["timestamp"] == "2026-01-01T00:00:00.001Z"
