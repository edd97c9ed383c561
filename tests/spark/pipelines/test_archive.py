"""Topics to Parquet: each record once, under any failure."""

import os
import shutil
import stat
import threading
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
from penstock.spark.pipelines import log
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import ArchiveLog
from penstock.spark.pipelines.manifest import Manifest
from penstock.spark.pipelines.staging import Stage
from penstock.spark.pipelines.writer import ArchiveWriter

from .conftest import Shop, all_places, plain, topic_partitions


def test_an_archive_has_the_unchanged_records_by_topic_and_utc_date(
    shop: Shop, read: Callable[..., Any]
) -> None:
    shop.sell(0, 12)
    done = shop.archive()
    assert (done.rows, done.totals.rows) == (12, 12)
    assert plain(shop.archived()) == plain(read(shop.topic, includeHeaders="true"))
    dates = {row.date.isoformat() for row in shop.archived().select("date").collect()}
    assert dates == {"2025-12-31", "2026-01-01"}
    assert {path.split("/")[1] for path in shop.data_files()} == {f"date={date}" for date in dates}
    assert topic_partitions(shop.spark.read.parquet(shop.path)) == all_places(
        12
    )  # a reader that ignores the log


STAGES = {
    "before staging": (Stage, "write", None),
    "after staging": (Stage, "found", None),
    "in the middle of the moves": (Files, "move", 1),
    "after the moves, before the log has it": (ArchiveLog, "append", None),
    "after the log has it, before Spark's commit": (Stage, "clear", None),
}


def crash(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, passes: int | None) -> None:
    """Makes the method raise: at once, or after it has worked some times. Claims are let through."""
    whole = getattr(owner, method)
    calls = []

    def broken(self: Any, *arguments: Any) -> Any:
        if arguments and isinstance(arguments[0], Manifest) and arguments[0].kind == "claim":
            return whole(self, *arguments)
        calls.append(arguments)
        if passes is not None and len(calls) <= passes:
            return whole(self, *arguments)
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
    assert shop.data_files() == set(shop.state().files)
    assert shop.staged() == []


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


def test_the_newer_of_two_writers_wins_and_the_older_leaves_nothing_behind(shop: Shop) -> None:
    shop.sell(0, 6)
    shop.archive()
    rows = shop.archived()
    files = Files(shop.spark, shop.path)
    older, newer = ArchiveWriter(files), ArchiveWriter(files)
    older.claim({}, {})
    newer.claim({}, {})
    with pytest.raises(AnotherWriter, match="one writer at a time"):
        older.add(shop.spark, rows)
    assert shop.data_files() == set(shop.state().files)
    assert shop.staged() == []
    assert shop.state().writer == newer.name


def test_a_stream_ends_with_a_clear_error_when_another_run_takes_over(shop: Shop) -> None:
    shop.sell(0, 3)
    begun = threading.Event()

    def take_over() -> None:
        begun.wait(120)
        shop.sell(3, 3)
        shop.archive(compaction=None)
        shop.sell(6, 3)

    other = threading.Thread(target=take_over)
    other.start()
    with pytest.raises(AnotherWriter, match="another writer has taken over"):
        shop.archive(schedule=Schedule(every="100ms", on_batch=lambda _: begun.set()))
    other.join()
    shop.archive(compaction=None)
    assert topic_partitions(shop.archived()) == all_places(9)


def test_only_one_of_two_writers_creates_a_file(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path))
    assert files.create("one.json", b"first")
    assert not files.create("one.json", b"second")
    assert files.read("one.json") == b"first"
    assert [each.name for each in files.names("")] == ["one.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_is_when_create_returns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, bool]] = []  # whether it is a folder, and whether the name is there yet

    def fsync(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), (tmp_path / "log" / "one.json").exists()))

    files = Files(spark, str(tmp_path))
    files.make_folder("log")
    monkeypatch.setattr("os.fsync", fsync)
    assert files.create("log/one.json", b"first")
    assert synced == [(False, False), (True, True)]


def test_without_hard_links_a_rename_is_used(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError("not on this file system")

    monkeypatch.setattr("os.link", refuse)
    test_only_one_of_two_writers_creates_a_file(spark, tmp_path)


def test_a_long_log_is_read_from_its_snapshot(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SNAPSHOT_EVERY", 4)
    monkeypatch.setattr(log, "KEPT_CHANGES", 2)
    shop.sell(0, 12)
    shop.archive(options={"maxOffsetsPerTrigger": "3"}, compaction=None)
    names = sorted(path.name for path in Path(shop.path, "_penstock", "log").glob("0*"))
    assert names == [f"{3:020d}.json", f"{4:020d}.json", f"{4:020d}.snapshot.json", f"{5:020d}.json"]
    assert topic_partitions(shop.archived()) == all_places(12)


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
    admin.delete_topics([shop.topic])[shop.topic].result(20)
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
        ({"valueFormat": "json"}, "valueFormat"),
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


def test_a_connect_session_is_refused_with_the_alternative() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(PipelineError, match="classic Spark session"):
        read_archive(remote, "/somewhere")
