"""Where an archive goes on, and who may write to it: decided without a JVM or a broker."""

from typing import Any

import msgspec
import pytest

from penstock.spark import options as source_options
from penstock.spark.pipelines.archiving import _new_topics, _pinned
from penstock.spark.pipelines.log import KEPT_CHANGES, LOG_FOLDER, ArchiveLog
from penstock.spark.pipelines.manifest import DataFile, Manifest, Range, State, TopicFacts
from penstock.spark.pipelines.problems import AnotherWriter, ArchiveError
from penstock.spark.pipelines.staging import Stage
from penstock.spark.pipelines.writer import ArchiveWriter

from .fakes import fake_planner, memory_files

LATEST = source_options.parse(
    {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": ".*", "startingOffsets": "latest"},
    streaming=True,
)


def test_a_topic_that_came_in_mid_run_goes_on_where_it_is_archived_to() -> None:
    planner = fake_planner({"known": "k", "in-mid-run": "m", "new": "n"}, latest=150)
    state = State(
        topics={"known": TopicFacts(topic_id="k", partitions=1)},
        through={"known": {"0": 7}, "in-mid-run": {"0": 100}},
    )
    assert _pinned(state, planner.layout(require_all=True), planner, LATEST) == {"new": {"0": 150}}


def test_a_claim_that_is_tried_again_does_not_move_what_another_writer_has_archived() -> None:
    files = memory_files()
    slow, quick = ArchiveWriter(files), ArchiveWriter(files)
    quick.claim({"orders": TopicFacts(topic_id="o", partitions=2)}, {"orders": {"0": 5}})
    slow.claim({"orders": TopicFacts(topic_id="o", partitions=2)}, {"orders": {"0": 9, "1": 9}})
    assert slow.state.through == {"orders": {"0": 5}}
    assert slow.state.writer == slow.name


def change(sequence: int, writer: str) -> Manifest:
    return Manifest(sequence=sequence, writer=writer, kind="batch", at="")


def test_a_writer_that_slept_until_its_number_was_free_again_is_told_that_it_is_not_the_only_one() -> None:
    files = memory_files()
    log = ArchiveLog(files)
    log.append(change(1, "sleeper"))
    for sequence in range(2, KEPT_CHANGES + 51):
        log.append(change(sequence, "busy"))
        log.tidy(log.load())
    before = files.names(LOG_FOLDER)
    assert f"{2:020d}.json" not in [each.name for each in before]
    with pytest.raises(AnotherWriter, match="writer busy"):
        log.append(change(2, "sleeper"))
    assert files.names(LOG_FOLDER) == before


def test_a_change_that_another_writer_built_upon_at_once_stays() -> None:
    files = memory_files()
    log, whole = ArchiveLog(files), files.create

    def overtaken(path: str, content: bytes) -> bool:
        done = whole(path, content)
        whole(f"{LOG_FOLDER}/{2:020d}.json", msgspec.json.encode(change(2, "next")))
        return done

    files.create = overtaken  # type: ignore[method-assign]
    log.append(change(1, "first"))
    assert (log.load().sequence, log.load().writer) == (2, "next")


@pytest.fixture
def spark_wrote_orders(monkeypatch: pytest.MonkeyPatch) -> DataFile:
    """A batch's one file, as if Spark had written it."""
    ranges = (Range(partition=0, first=0, last=4, rows=5),)
    file = DataFile(
        path="topic=orders/date=2026-01-01/x", topic="orders", date="2026-01-01", size_bytes=1, ranges=ranges
    )
    monkeypatch.setattr(Stage, "write", lambda *_: None)
    monkeypatch.setattr(Stage, "found", lambda *_: [("staged", file)])
    monkeypatch.setattr(Stage, "move", lambda *_: None)
    return file


NOTHING: Any = None
"""For Spark and its rows, which nobody looks at here."""


def test_a_topic_that_comes_in_mid_run_is_known_from_its_first_batch_on(spark_wrote_orders: DataFile) -> None:
    writer, planner = ArchiveWriter(memory_files()), fake_planner({"orders": "first"})
    writer.claim({}, {})
    added = writer.add(NOTHING, NOTHING, look=lambda: _new_topics(writer.state, planner))
    assert added == [spark_wrote_orders]
    assert ArchiveLog(writer.files).load().topics == {"orders": TopicFacts(topic_id="first", partitions=1)}


def test_a_topic_that_is_made_again_in_mid_run_ends_it_and_nothing_is_committed(
    spark_wrote_orders: DataFile,
) -> None:
    writer, planner = ArchiveWriter(memory_files()), fake_planner({"orders": "second"})
    writer.claim({"orders": TopicFacts(topic_id="first", partitions=1)}, {})
    with pytest.raises(ArchiveError, match="id first, now second"):
        writer.add(NOTHING, NOTHING, look=lambda: _new_topics(writer.state, planner))
    assert ArchiveLog(writer.files).load().files == {}
