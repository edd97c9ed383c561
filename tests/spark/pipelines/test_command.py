"""`penstock pipeline`, as people run it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from penstock.cli import pipeline_session
from penstock.cli.app import penstock
from penstock.cli.pipeline_session import OnSpark
from tests.spark.conftest import JVM_OPTIONS

from .conftest import Shop, all_places, topic_partitions


@pytest.fixture
def in_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the existing session instead of starting a JVM."""

    @contextmanager
    def session(self: OnSpark, name: str) -> Iterator[SparkSession]:
        with pipeline_session._explained():
            yield spark

    monkeypatch.setattr(OnSpark, "session", session)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(penstock, ["pipeline", *arguments], prog_name="penstock")


@pytest.mark.long  # a JVM of its own; the other tests of the command share one
def test_an_archive_made_by_the_command_in_a_session_of_its_own(shop: Shop) -> None:
    shop.sell(0, 30)
    line = ["pipeline", "run", "archive", shop.topic, "--to", shop.path, "-b", shop.bootstrap_servers]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *line, "--master", "local[1]", "--json"],
        env={**os.environ, "SPARK_SUBMIT_OPTS": JVM_OPTIONS},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # Spark's own noise is gone
    *batches, last = [json.loads(text) for text in done.stdout.splitlines()]
    assert [batch["total_rows"] for batch in batches] == [30]
    assert batches[0]["lag"] == 0
    assert last["done"]["archived"] == 30
    assert topic_partitions(shop.archived()) == all_places(30)


@pytest.mark.usefixtures("in_session")
def test_history_counts_by_partition_and_source_or_answers_a_query(shop: Shop) -> None:
    shop.sell(0, 9)
    shop.archive()
    shop.sell(9, 3)
    where = ("run", "history", "--from", shop.path, "-b", shop.bootstrap_servers, "--json")
    rows = json.loads(command(*where).stdout)
    assert [(row["partition"], row["source"], row["records"]) for row in rows] == [
        (0, "archive", 3), (0, "live", 1), (1, "archive", 3), (1, "live", 1), (2, "archive", 3), (2, "live", 1),
    ]  # fmt: skip
    asked = command(*where, "--sql", "select count(*) as n, max(value) as v from history")
    assert json.loads(asked.stdout) == [{"n": 12, "v": "v9"}]
    some = command(*where, "--from-offset", "2", "--sql", "select source, offset as o from history")
    assert {(row["source"], row["o"]) for row in json.loads(some.stdout)} == {("archive", 2), ("live", 3)}
    wrong = command(*where, "--sql", "select nothing from history")
    assert wrong.exit_code == 1
    assert "nothing" in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.usefixtures("in_session")
def test_replay_reports_its_result_and_refuses_invalid_requests(shop: Shop) -> None:
    shop.sell(0, 6)
    shop.archive()
    line = ("run", "replay", "--from", shop.path, "-b", shop.bootstrap_servers)
    assert command(*line, "--suffix", ".again").stdout == f"replayed 6 records: 6 to {shop.topic}.again\n"
    refused = command(*line)
    assert (refused.exit_code, "already has records" in refused.stderr) == (1, True)
    unknown = command(*line, "no-such-topic")
    assert (unknown.exit_code, "no-such-topic" in unknown.stderr) == (2, True)


@pytest.mark.usefixtures("in_session")
def test_pipelines_to_topics_report_their_results(shop: Shop, tmp_path: Path) -> None:
    shop.sell(0, 6)
    shop.archive()
    servers = ("-b", shop.bootstrap_servers)
    state = str(tmp_path / "state")
    line = ("run", "dedupe", shop.topic, *servers, "--to-topic", f"{shop.topic}.once", "--checkpoint", state)
    assert command(*line).stdout.startswith("read 6 records in ")
    line = (
        "run",
        "enrich",
        shop.topic,
        *servers,
        "--table",
        f"{shop.topic}.once",
        "--to-topic",
        f"{shop.topic}.full",
    )
    assert command(*line, "--checkpoint", f"{state}-2").stdout == "read 6 records in 1 batches\n"
    line = ("run", "mirror", shop.topic, *servers, "--from", shop.bootstrap_servers, "--prefix", "copy.")
    assert command(*line, "--checkpoint", f"{state}-3").stdout == f"copied 6 records to copy.{shop.topic}\n"
    name = "tests.spark.pipelines.test_reprocess:values_only"
    line = (
        "run",
        "reprocess",
        "--from",
        shop.path,
        *servers,
        "--to-topic",
        f"{shop.topic}.new",
        "--function",
    )
    assert command(*line, name).stdout == f"wrote 6 records to {shop.topic}.new\n"
    for wrong in ("nothing:here", "json:nothing", "json", "json:decoder.x"):
        refused = command(*line, wrong)
        assert (refused.exit_code, "--function" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.usefixtures("in_session")
def test_an_invalid_archive_location_is_refused_in_one_sentence(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shop.sell(0, 1)
    line = ("run", "archive", shop.topic, "-b", shop.bootstrap_servers, "--to")
    for path, code, said in (
        (f"{tmp_path}/file", 1, "Not a directory"),
        ("/proc/nowhere", 1, f"/proc/nowhere/{shop.topic} cannot be made"),
        ("hdfs://lake/archive", 2, "path='hdfs://lake/archive': expected a folder on a disk"),
    ):
        refused = command(*line, path)
        assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr


@pytest.mark.usefixtures("in_session")
def test_the_care_of_tables_needs_no_spark(shop: Shop, tmp_path: Path) -> None:
    shop.sell(0, 9)
    shop.archive(options={"maxOffsetsPerTrigger": "3"}, compaction=None)
    assert json.loads(command("optimize", shop.path, "--json").stdout)["files_merged_away"] > 0
    assert topic_partitions(shop.archived()) == all_places(9)
    vacuumed = command("vacuum", shop.path, "--retain-hours", "24")
    assert vacuumed.stdout == "0 files were deleted\n"
    for name, said in (("optimize", "an archive"), ("vacuum", "an archive"), ("convert", "old format")):
        refused = command(name, str(tmp_path / "nothing"))
        assert (refused.exit_code, said in refused.stderr) == (2, True)


@pytest.mark.usefixtures("in_session")
def test_archives_of_iceberg_tables_by_the_command(shop: Shop, tmp_path: Path) -> None:
    shop.sell(0, 6)
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    line = ("run", "archive", shop.topic, "-b", shop.bootstrap_servers, "--to", shop.path)
    done = command(*line, "--format", "iceberg", "--catalog", catalog, "-o", "maxOffsetsPerTrigger=3")
    assert done.stdout.startswith("archived 6 records")
    line = ("run", "history", "--from", shop.path, "-b", shop.bootstrap_servers, "--catalog", catalog)
    counted = command(*line, "--sql", "select count(*) as n from history", "--json")
    assert json.loads(counted.stdout) == [{"n": 6}]
    vacuumed = command("vacuum", shop.path, "--catalog", catalog)
    assert vacuumed.stdout == "0 files were deleted\n"
    refused = command("optimize", shop.path, "--catalog", catalog)
    assert (refused.exit_code, "cannot merge files" in refused.stderr) == (1, True)


@pytest.mark.usefixtures("in_session")
def test_aggregate_prints_a_line_for_each_batch(shop: Shop, checkpoint: str) -> None:
    shop.sell(0, 6)
    result = command(
        "run", "aggregate", shop.topic, "--to-topic", f"{shop.topic}.totals", "--checkpoint", checkpoint,
        "-b", shop.bootstrap_servers,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "batch 0: 6 rows in " in result.stderr
    assert result.stdout.startswith("read 6 records in ")


def test_without_java_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_session, "why_not", lambda: "there is no Java: install one")
    result = command("run", "history", "--from", "x")
    assert (result.exit_code, result.stderr) == (1, "error: there is no Java: install one\n")


def test_without_a_broker_the_command_says_so_before_it_starts_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_session, "why_not", lambda: "")
    result = command("run", "history", "--from", "x", "-b", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "no broker answers at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archive", "--to", "x"), "--pattern"),
        (("archive", "a", "--pattern", "b", "--to", "x"), "--pattern"),
        (("archive", "a"), "--to"),
        (("archive", "a", "--to", "x", "--value-format", "json"), "--value-schema"),
        (("archive", "a", "--to", "x", "--once", "--every", "1s"), "exclude"),
        (("archive", "a", "--to", "x", "--conf", "spark.master"), "NAME=VALUE"),
        (("archive", "a", "--to", "x", "--master", "sc://host"), "--master"),
        (("replay", "--from", "x", "--from-time", "yesterday"), "ISO 8601"),
        (("aggregate", "a"), "--to-topic"),
        (("aggregate", "a", "--to-topic", "b"), "--checkpoint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_command_line_ends_with_2_and_says_why(arguments: tuple[str, ...], said: str) -> None:
    result = command("run", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_command_line_works_without_pyspark() -> None:
    code = (
        "import sys\n"
        "from penstock.cli.app import run\n"
        "assert run(['pipeline', 'list']) == 0\n"
        "assert not {'pyspark', 'pyarrow', 'deltalake'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "aggregate" in done.stdout


def test_executors_do_not_load_the_pipelines() -> None:
    code = "import sys, pyspark_penstock\nassert 'penstock.spark.pipelines' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
