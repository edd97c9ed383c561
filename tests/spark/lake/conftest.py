"""Tables that are written without Spark."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.spark.lake.delta_table import DeltaTopicTable
from penstock.spark.lake.iceberg_table import IcebergTopicTable
from penstock.spark.lake.parquet_files import RowsToFiles, WrittenFile
from penstock.spark.lake.record_columns import RECORD_SCHEMA
from penstock.spark.lake.storage import LocalStorage
from penstock.spark.lake.topic_table import TopicTable

TOPIC = "orders"
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def records(first: int, count: int, *, partition: int = 0, at: datetime = MIDNIGHT) -> pa.RecordBatch:
    """Records of one partition, a second apart, all on one date."""
    numbers = range(first, first + count)
    columns = {
        "key": [b"k"] * count,
        "value": [b"v%d" % number for number in numbers],
        "topic": [TOPIC] * count,
        "partition": [partition] * count,
        "offset": list(numbers),
        "timestamp": [at + timedelta(seconds=number) for number in numbers],
        "timestampType": [0] * count,
        "headers": [None] * count,
        "date": [at.date()] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)


Write = Callable[..., list[WrittenFile]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes batches to files that no commit names yet."""

    def files(*batches: pa.RecordBatch, **limits: int) -> list[WrittenFile]:
        writer = RowsToFiles(
            storage=LocalStorage(str(tmp_path)), schema=RECORD_SCHEMA, compression="zstd", **limits
        )
        return list(writer.files(iter(batches)))

    return files


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    """An empty table of a topic with two partitions."""
    return DeltaTopicTable.create(
        LocalStorage(str(tmp_path / TOPIC)), RECORD_SCHEMA, topic_id="first", partitions=2, positions={}
    )


def offsets_in(table: TopicTable) -> list[int]:
    """By the format's own library, sorted."""
    if isinstance(table, DeltaTopicTable):
        rows = table.delta.to_pyarrow_table()
    else:
        assert isinstance(table, IcebergTopicTable)
        rows = table.iceberg.scan().to_arrow()
    return sorted(rows["offset"].to_pylist())


def reopened(table: DeltaTopicTable) -> DeltaTopicTable:
    found = DeltaTopicTable.open(table.storage)
    assert found is not None
    return found
