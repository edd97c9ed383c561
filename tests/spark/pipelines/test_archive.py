"""Topics to Delta tables: each record once, under any failure."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark import (
    AnotherWriter,
    ArchiveError,
    BatchProgress,
    PipelineError,
    Schedule,
    read_archive,
)
from penstock.spark.lake.delta_table import DeltaTopicTable
from penstock.spark.lake.folder import Lake
from penstock.spark.pipelines.writer import ArchiveWriter

from .conftest import Shop, all_places, plain, topic_partitions


def test_an_archive_has_the_unchanged_records_by_utc_date(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 12)
    done = shop.archive()
    assert (done.rows, done.totals.rows) == (12, 12)
    assert plain(shop.archived()) == plain(read(shop.topic, includeHeaders="true"))
    dates = {row.date.isoformat() for row in shop.archived().select("date").collect()}
    assert dates == {"2025-12-31", "2026-01-01"}
    assert {Path(path).parent.name for path in shop.data_files()} == {f"date={date}" for date in dates}


STAGES: dict[str, tuple[type, str, bool]] = {
    "before the tasks": (ArchiveWriter, "write", False),
    "after the tasks": (ArchiveWriter, "write", True),
    "before the commit": (DeltaTopicTable, "append", False),
    "after the commit, before Spark's": (DeltaTopicTable, "append", True),
}


def crash(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, works_first: bool) -> None:
    """Makes the method raise: at once, or after it has done its work."""
    whole = getattr(owner, method)

    def broken(*arguments: Any, **settings: Any) -> None:
        if works_first:
            whole(*arguments, **settings)
        raise RuntimeError("the machine is gone")

    monkeypatch.setattr(owner, method, broken)


@pytest.mark.parametrize(
    "own_checkpoint", [False, True], ids=["Spark's checkpoint", "a new checkpoint each run"]
)
def test_runs_that_crash_at_any_stage_lose_nothing_and_write_nothing_twice(
    shop: Shop, own_checkpoint: bool, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"compaction": None, "checkpoint": None if own_checkpoint else checkpoint}
    sold = 0
    for stage in STAGES.values():
        shop.sell(sold, 9)
        sold += 9
        with monkeypatch.context() as patch:
            crash(patch, *stage)
            with pytest.raises(RuntimeError, match="the machine is gone"):
                shop.archive(**settings)
        there = len(topic_partitions(shop.archived()))
        assert there in (0, sold if own_checkpoint else 9)  # all of a batch, or nothing
        assert topic_partitions(shop.archived()) == all_places(there)

    shop.sell(sold, 3)
    shop.archive(**settings)

    assert topic_partitions(shop.archived()) == all_places(sold + 3)
    assert shop.data_files() > shop.committed_files()  # the leftovers are still there, and do not count


def test_without_or_with_an_old_checkpoint_nothing_is_lost_or_written_twice(
    shop: Shop, checkpoint: str
) -> None:
    shop.sell(0, 6)
    shop.archive(checkpoint=checkpoint)
    shop.sell(6, 6)
    shop.archive()  # with a checkpoint of its own, so that the first one is behind the archive
    shop.sell(12, 6)
    done = shop.archive(checkpoint=checkpoint)
    assert (done.totals.rows, done.rows) == (12, 6)
    shutil.rmtree(checkpoint)
    shop.sell(18, 6)
    done = shop.archive(checkpoint=checkpoint)
    assert (done.totals.rows, done.rows) == (6, 6)
    assert topic_partitions(shop.archived()) == all_places(24)


def test_of_two_runs_that_write_the_same_records_one_ends_with_a_clear_error(shop: Shop) -> None:
    shop.sell(0, 3)
    shop.archive()
    slow = ArchiveWriter(Lake(shop.path))
    rows = shop.archived()
    shop.sell(3, 3)
    shop.archive()
    with pytest.raises(AnotherWriter, match="one writer at a time"):
        slow.commit(slow.write(rows))
    assert topic_partitions(shop.archived()) == all_places(6)


def test_latest_means_the_end_of_the_topic_at_the_first_archive_run(shop: Shop) -> None:
    shop.sell(0, 6)
    assert shop.archive(options={"startingOffsets": "latest"}).rows == 0
    shop.sell(6, 6)
    assert shop.archive(options={"startingOffsets": "latest"}).rows == 6
    assert (
        topic_partitions(shop.archived()) == all_places(12)[2:4] + all_places(12)[6:8] + all_places(12)[10:]
    )


def test_a_recreated_topic_is_refused(shop: Shop, make_topic: Callable[..., str]) -> None:
    shop.sell(0, 3)
    shop.archive()
    admin = AdminClient({"bootstrap.servers": shop.bootstrap_servers})
    admin.delete_topics([shop.topic])[shop.topic].result(60)
    shop.sell(0, 3)
    with pytest.raises(ArchiveError, match="deleted and created again"):
        shop.archive()


def test_a_stream_runs_until_it_is_stopped_and_reports_every_batch(shop: Shop) -> None:
    shop.sell(0, 9)
    seen: list[BatchProgress] = []
    done = shop.archive(schedule=Schedule(every="100ms", on_batch=seen.append, stop=lambda: bool(seen)))
    assert done.rows == 9
    assert seen[0].rows == 9
    assert seen[0].lag == 0
    assert topic_partitions(shop.archived()) == all_places(9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"valueFormat": "json"}, "valueSchema"),
        ({"valueFormat": "json", "valueSchema": "offset bigint"}, "fields with other names"),
        ({"valueFormat": "json", "valueSchema": "a timestamp_ntz"}, "all readers of Delta"),
        ({"assign": '{"a": [0]}'}, "assign"),
        ({"startingOffsets": '{"a": {"0": 1}}'}, "startingOffsets"),
        ({"maxOffsetPerTrigger": "5"}, "maxOffsetsPerTrigger"),
    ],
)
def test_an_option_that_an_archive_cannot_have_is_refused(
    shop: Shop, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        shop.archive(options=options)


def test_a_folder_that_is_no_archive_is_reported_as_such(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline run archive"):
        read_archive(spark, str(tmp_path))
    with pytest.raises(ConfigError, match="without any of"):
        read_archive(spark, str(tmp_path / "a*"))
    with pytest.raises(ConfigError, match="a folder on a disk"):
        read_archive(spark, "hdfs:///lake/archive")


def test_a_connect_session_is_refused_with_the_alternative() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(PipelineError, match="classic Spark session"):
        read_archive(remote, "/somewhere")
