"""Where an archive continues: decided without a JVM or a broker."""

import json

import pytest

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.lake.folder import ArchiveState, TopicFacts
from penstock.spark.pipelines.archiving import _check_checkpoint, _check_still, _new_topics, _pinned
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.resuming import goes_on_at
from penstock.spark.problems import ArchiveError, PipelineError
from penstock.spark.stream_offset import StreamOffset
from penstock.types import TopicPartition

from .fakes import MemoryFiles, as_files, fake_planner

LATEST = source_options.parse(
    {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": ".*", "startingOffsets": "latest"},
    streaming=True,
)
ORDERS = TopicPartition("orders", 0)


def test_only_a_topic_without_a_table_begins_at_its_end() -> None:
    planner = fake_planner({"known": "k", "in-mid-run": "m", "new": "n"}, latest=150)
    facts = TopicFacts(topic_id="k", partitions=1)
    state = ArchiveState(topics={"known": facts, "in-mid-run": facts})
    pinned = _pinned(state, planner.layout(require_all=True), planner, LATEST)
    assert pinned == {TopicPartition("new", 0): 150}


def test_a_topic_added_during_a_run_is_found() -> None:
    found = _new_topics(ArchiveState(), fake_planner({"orders": "first"}))
    assert found == {"orders": TopicFacts(topic_id="first", partitions=1)}


def test_a_topic_recreated_during_a_run_ends_it() -> None:
    state = ArchiveState(topics={"orders": TopicFacts(topic_id="first", partitions=1)})
    with pytest.raises(ArchiveError, match="id first, now second"):
        _new_topics(state, fake_planner({"orders": "second"}))


def checkpoint_at(*positions: int, committed: int) -> Files:
    """Batches with these ends; the first `committed` of them are committed in Spark's log."""
    files = MemoryFiles()
    for number, position in enumerate(positions):
        since = {ORDERS: 3} if number == 0 else {}
        tp = StreamOffset(positions={ORDERS: position}, group="g", since=since).to_json()
        files.write(f"offsets/{number}", f"v1\n{{}}\n{json.dumps(tp)}".encode())
        if number < committed:
            files.write(f"commits/{number}", b"v1\n{}")
    return as_files(files)


def test_spark_continues_after_its_last_committed_batch() -> None:
    assert goes_on_at(checkpoint_at(5, 9, committed=2)) == {ORDERS: 9}
    assert goes_on_at(checkpoint_at(5, 9, committed=1)) == {ORDERS: 5}
    assert goes_on_at(checkpoint_at(5, committed=0)) == {ORDERS: 3}
    assert goes_on_at(as_files(MemoryFiles())) == {}


def test_a_checkpoint_that_is_ahead_of_the_archive_is_refused() -> None:
    planner = fake_planner({"orders": "o"}, earliest=2)
    layout = planner.layout(require_all=True)
    for state in (ArchiveState(), ArchiveState(positions={ORDERS: 4})):
        with pytest.raises(ArchiveError, match="goes on at offset 5 of orders-0"):
            _check_checkpoint(checkpoint_at(5, committed=1), state, layout, planner)
    _check_checkpoint(checkpoint_at(5, committed=1), ArchiveState(positions={ORDERS: 5}), layout, planner)
    _check_checkpoint(checkpoint_at(2, committed=1), ArchiveState(), layout, planner)


def test_a_checkpoint_that_cannot_be_read_is_refused() -> None:
    files = MemoryFiles()
    files.write("offsets/0", b"v1\n{}\n-")
    files.write("commits/0", b"v1\n{}")
    with pytest.raises(ConfigError, match="checkpoint"):
        goes_on_at(as_files(files))


def test_a_topic_added_while_a_run_starts_is_named() -> None:
    planned = fake_planner({"orders": "o"}).layout(require_all=True)
    _check_still(planned, fake_planner({"orders": "o"}))
    with pytest.raises(PipelineError, match="payments-0 was added or deleted while the archive"):
        _check_still(planned, fake_planner({"orders": "o", "payments": "p"}))
