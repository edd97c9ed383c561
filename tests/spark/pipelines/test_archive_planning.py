"""Where an archive continues, and which writer may write to it: decided without a JVM or a broker."""

import json
from typing import Any

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.pipelines.archiving import _check_checkpoint, _check_still, _new_topics, _pinned
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import KEPT_CHANGES, LOG_FOLDER, ArchiveLog
from penstock.spark.pipelines.manifest import DataFile, Manifest, Range, State, TopicFacts
from penstock.spark.pipelines.problems import AnotherWriter, ArchiveError, PipelineError
from penstock.spark.pipelines.resuming import goes_on_at
from penstock.spark.pipelines.staging import Stage
from penstock.spark.pipelines.writer import ArchiveWriter
from penstock.spark.stream_offset import StreamOffset
from penstock.types import TopicPartition

from .fakes import fake_planner, memory_files

LATEST = source_options.parse(
    {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": ".*", "startingOffsets": "latest"},
    streaming=True,
)


def test_a_topic_added_during_a_run_continues_after_its_archived_records() -> None:
    planner = fake_planner({"known": "k", "in-mid-run": "m", "new": "n"}, latest=150)
    state = State(
        topics={"known": TopicFacts(topic_id="k", partitions=1)},
        through={"known": {"0": 7}, "in-mid-run": {"0": 100}},
    )
    assert _pinned(state, planner.layout(require_all=True), planner, LATEST) == {"new": {"0": 150}}


def test_a_repeated_claim_does_not_change_positions_of_another_writer() -> None:
    files = memory_files()
    slow, quick = ArchiveWriter(files), ArchiveWriter(files)
    quick.claim({"orders": TopicFacts(topic_id="o", partitions=2)}, {"orders": {"0": 5}})
    slow.claim({"orders": TopicFacts(topic_id="o", partitions=2)}, {"orders": {"0": 9, "1": 9}})
    assert slow.state.through == {"orders": {"0": 5}}
    assert slow.state.writer == slow.name


def change(sequence: int, writer: str) -> Manifest:
    return Manifest(sequence=sequence, writer=writer, kind="batch", at="")


def test_a_writer_that_was_paused_until_its_sequence_was_free_again_is_refused() -> None:
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


def test_a_change_that_another_writer_already_extended_stays() -> None:
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
"""Stands for Spark and its rows, which are not used here."""


def test_a_topic_added_during_a_run_is_known_from_its_first_batch_on(spark_wrote_orders: DataFile) -> None:
    writer, planner = ArchiveWriter(memory_files()), fake_planner({"orders": "first"})
    writer.claim({}, {})
    added = writer.add(NOTHING, NOTHING, look=lambda: _new_topics(writer.state, planner))
    assert added == [spark_wrote_orders]
    assert ArchiveLog(writer.files).load().topics == {"orders": TopicFacts(topic_id="first", partitions=1)}


def test_a_topic_recreated_during_a_run_ends_it_and_nothing_is_committed(
    spark_wrote_orders: DataFile,
) -> None:
    writer, planner = ArchiveWriter(memory_files()), fake_planner({"orders": "second"})
    writer.claim({"orders": TopicFacts(topic_id="first", partitions=1)}, {})
    with pytest.raises(ArchiveError, match="id first, now second"):
        writer.add(NOTHING, NOTHING, look=lambda: _new_topics(writer.state, planner))
    assert ArchiveLog(writer.files).load().files == {}


ORDERS = TopicPartition("orders", 0)


def checkpoint_at(*positions: int, committed: int) -> Files:
    """Batches with these ends; the first `committed` of them are committed in Spark's log."""
    files = memory_files()
    for number, position in enumerate(positions):
        since = {ORDERS: 3} if number == 0 else {}
        tp = StreamOffset(positions={ORDERS: position}, group="g", since=since).to_json()
        files.write(f"offsets/{number}", f"v1\n{{}}\n{json.dumps(tp)}".encode())
        if number < committed:
            files.write(f"commits/{number}", b"v1\n{}")
    return files


def test_spark_continues_after_its_last_committed_batch() -> None:
    assert goes_on_at(checkpoint_at(5, 9, committed=2)) == {ORDERS: 9}
    assert goes_on_at(checkpoint_at(5, 9, committed=1)) == {ORDERS: 5}
    assert goes_on_at(checkpoint_at(5, committed=0)) == {ORDERS: 3}
    assert goes_on_at(memory_files()) == {}


def test_a_checkpoint_that_is_ahead_of_the_archive_is_refused() -> None:
    planner = fake_planner({"orders": "o"}, earliest=2)
    layout = planner.layout(require_all=True)
    for state in (State(), State(through={"orders": {"0": 4}})):
        with pytest.raises(ArchiveError, match="goes on at offset 5 of orders-0"):
            _check_checkpoint(checkpoint_at(5, committed=1), state, layout, planner)
    _check_checkpoint(checkpoint_at(5, committed=1), State(through={"orders": {"0": 5}}), layout, planner)
    _check_checkpoint(checkpoint_at(2, committed=1), State(), layout, planner)


def test_a_checkpoint_that_cannot_be_read_is_refused() -> None:
    files = checkpoint_at(5, committed=1)
    files.write("offsets/0", b"v1\n{}\n-")
    with pytest.raises(ConfigError, match="checkpoint"):
        goes_on_at(files)


def test_a_topic_added_while_a_run_starts_is_named() -> None:
    planned = fake_planner({"orders": "o"}).layout(require_all=True)
    _check_still(planned, fake_planner({"orders": "o"}))
    with pytest.raises(PipelineError, match="payments-0 was added or deleted while the archive"):
        _check_still(planned, fake_planner({"orders": "o", "payments": "p"}))
