"""Tables in a bucket: commits that are atomic because the server refuses a second put of the same object."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from penstock.errors import ConfigError
from penstock.spark import AnotherWriter, PipelineError, optimize_archive, vacuum_archive
from penstock.spark.lake.delta_table import DeltaTopicTable
from penstock.spark.lake.file_rows import tasks_of
from penstock.spark.lake.folder import Lake
from penstock.spark.lake.parquet_files import RowsToFiles, WrittenFile
from penstock.spark.lake.record_columns import RECORD_SCHEMA
from penstock.spark.lake.s3_settings import S3Settings
from penstock.spark.lake.storage import LakeStorage, local_folder, storage_at
from penstock.spark.lake.topic_table import TableFile
from tests.ports import free_port
from tests.spark.s3_server import S3Server

from .conftest import TOPIC, records, reopened

WRITERS = 6


def new_table(path: str) -> DeltaTopicTable:
    folder = storage_at(path).below(TOPIC)
    return DeltaTopicTable.create(folder, RECORD_SCHEMA, topic_id="first", partitions=1, positions={})


def written(path: str, first: int, count: int) -> list[WrittenFile]:
    write = RowsToFiles(storage=storage_at(path), schema=RECORD_SCHEMA, compression="zstd")
    return list(write.files(iter([records(first, count)])))


def test_the_server_of_these_tests_refuses_a_second_put_that_wants_to_be_the_first(
    s3_server: S3Server,
) -> None:
    bucket = s3_server.make_bucket()
    assert s3_server.put(f"/{bucket}/a", b"first", If_None_Match="*") == 200
    assert s3_server.put(f"/{bucket}/a", b"second", If_None_Match="*") == 412
    assert s3_server.put(f"/{bucket}/a", b"unconditional") == 200
    start = Barrier(WRITERS)

    def put(number: int) -> int:
        start.wait(60)
        return s3_server.put(f"/{bucket}/b", b"%d" % number, If_None_Match="*")

    with ThreadPoolExecutor(WRITERS) as pool:
        assert sorted(pool.map(put, range(WRITERS))) == [200] + [412] * (WRITERS - 1)


def test_of_writers_that_commit_at_the_same_moment_one_succeeds(s3_path: str) -> None:
    table = new_table(s3_path)
    for first in (0, 3, 6):
        rivals = [(reopened(table), written(s3_path, first, 3)) for _ in range(WRITERS)]
        start = Barrier(WRITERS)

        def commit(rival: tuple[DeltaTopicTable, list[WrittenFile]], start: Barrier = start) -> str:
            start.wait(60)
            try:
                rival[0].append(rival[1])
            except AnotherWriter:
                return "another"
            return "committed"

        with ThreadPoolExecutor(WRITERS) as pool:
            assert sorted(pool.map(commit, rivals)) == ["another"] * (WRITERS - 1) + ["committed"]
    found = reopened(table)
    assert found.positions == {0: 9}
    assert sorted(found.delta.to_pyarrow_table()["offset"].to_pylist()) == list(range(9))


def test_engines_read_a_table_in_a_bucket(s3_path: str, s3_server: S3Server) -> None:
    table = new_table(s3_path)
    table.append(written(s3_path, 0, 3))
    written(s3_path, 3, 3)  # an attempt that failed
    table.append(written(s3_path, 3, 2))
    options = {**s3_server.variables(), "AWS_ALLOW_HTTP": "true"}
    rows = DeltaTable(f"{s3_path}/{TOPIC}", storage_options=options).to_pyarrow_dataset()
    assert duckdb.from_arrow(rows).aggregate('count(*), max("offset")').fetchall() == [(5, 4)]
    frame = pl.read_delta(f"{s3_path}/{TOPIC}", storage_options=options)
    assert sorted(frame["offset"].to_list()) == list(range(5))


def test_files_in_a_bucket_are_merged_and_old_ones_deleted(s3_path: str) -> None:
    table = new_table(s3_path)
    for first in (0, 3):
        table.append(written(s3_path, first, 3))
    assert optimize_archive(s3_path) == 1
    assert [file.rows for file in reopened(table).files()] == [6]
    assert vacuum_archive(s3_path) == {TOPIC: []}  # the merged files are young
    table.refresh()
    table.append(written(s3_path, 6, 1))
    assert reopened(table).positions == {0: 7}


def test_a_path_in_a_bucket_is_found_by_both_schemes(s3_path: str) -> None:
    new_table(s3_path.replace("s3:", "s3a:") + "/")
    assert set(Lake(s3_path).tables()) == {TOPIC}
    assert Lake(f"{s3_path}-2").tables() == {}


def test_a_bucket_that_is_not_there_is_an_error(s3_path: str) -> None:
    assert Lake("s3://no-such-bucket/lake").tables() == {}
    with pytest.raises(PipelineError, match="no bucket no-such-bucket"):
        new_table("s3://no-such-bucket/lake")


@pytest.mark.long  # AWS's library tries for ten seconds
def test_a_server_that_does_not_answer_is_an_error(s3_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(PipelineError, match="cannot be reached"):
        Lake(s3_path).tables()


def test_settings_come_from_the_variables_that_other_tools_know() -> None:
    settings = S3Settings.from_environment(
        {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
            "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9001",
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "hidden",
        }
    )
    options = settings.delta_options()
    assert options["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9001"
    assert (options["AWS_ALLOW_HTTP"], options["aws_conditional_put"]) == ("true", "etag")
    assert "hidden" not in repr(settings)
    assert S3Settings.from_environment({}).delta_options().keys() == {
        "aws_conditional_put",
        "timeout",
        "connect_timeout",
    }
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL"):
        S3Settings.from_environment({"AWS_ENDPOINT_URL": "127.0.0.1:9000"})


def test_paths_of_disks_and_buckets_are_told_apart(tmp_path: Path) -> None:
    assert local_folder(f"file:{tmp_path}") == local_folder(f"file://{tmp_path}") == str(tmp_path)
    url: LakeStorage = storage_at("s3a://lake/a/b=c/")
    assert (url.url, url.is_local) == ("s3://lake/a/b=c", False)
    assert storage_at("s3://lake").below("orders").url == "s3://lake/orders"
    for wrong in ("", "hdfs:///lake", "gs://lake/a", "/data/*", "s3://", "s3:lake", "s3://Lake/a"):
        with pytest.raises(ConfigError):
            storage_at(wrong)
    for wrong in ("s3://lake/a b", "s3://lake/a?b", "s3://lake/a%20b", "s3://lake/a//b", "s3://lake/../b"):
        with pytest.raises(ConfigError):
            storage_at(wrong)


def test_files_are_shared_out_to_tasks_by_size() -> None:
    def file(name: str, size_bytes: int) -> TableFile:
        return TableFile(
            path=f"s3://lake/t/{name}", date="d", size_bytes=size_bytes, rows=1, offsets=None, times=None
        )

    files = [file("a", 4), file("b", 6), file("c", 20), file("d", 1), file("e", 1)]
    tasks = tasks_of(files, "s3://lake/t", task_bytes=10)
    assert [[path for path, _ in task] for task in tasks] == [["a", "b"], ["c"], ["d", "e"]]
