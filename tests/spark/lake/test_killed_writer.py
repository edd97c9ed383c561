"""A writer that is killed with SIGKILL while it commits: the next one goes on at the table's offsets."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.spark.lake.folder import Lake, TopicFacts
from penstock.spark.lake.parquet_files import RowsToFiles
from penstock.spark.lake.record_columns import RECORD_SCHEMA

from .conftest import TOPIC, offsets_in, records

WRITER = """
import sys
from tests.spark.lake.conftest import TOPIC, records
from penstock.spark.lake.folder import Lake
from penstock.spark.lake.parquet_files import RowsToFiles
from penstock.spark.lake.record_columns import RECORD_SCHEMA

lake = Lake(sys.argv[1])
table = lake.table(TOPIC)
write = RowsToFiles(storage=lake.storage, schema=RECORD_SCHEMA, compression="zstd")
while True:
    begin = table.positions.get(0, 0)
    files = list(write.files(iter([records(begin, 2)])))
    print("written", flush=True)
    table.append(files)
    print("committed", flush=True)
"""


@contextmanager
def writer(path: str) -> Iterator[Iterator[str]]:
    """The lines of a process that writes and commits until it is killed."""
    repository = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        yield iter(process.stdout)
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()


@pytest.fixture(params=["delta", "delta in S3", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "delta in S3":
        return Lake(request.getfixturevalue("s3_path"))
    return Lake(str(tmp_path), table_format=request.param)


def test_a_killed_writer_loses_nothing_and_writes_nothing_twice(lake: Lake) -> None:
    lake.create(TOPIC, RECORD_SCHEMA, TopicFacts(topic_id="first", partitions=1), {}, {})
    for lines in (1, 4):  # after "written": in the middle of a commit, or before it; and after one
        with writer(lake.storage.url) as said:
            for _ in range(lines):
                assert next(said, "") != ""
    table = lake.table(TOPIC)
    assert table is not None
    end = table.positions[0]
    write = RowsToFiles(storage=lake.storage, schema=RECORD_SCHEMA, compression="zstd")
    table.append(list(write.files(iter([records(end, 1)]))))
    assert offsets_in(table) == list(range(end + 1))
