"""The archive's log: how changes combine to a state."""

import pytest

from penstock.spark.pipelines.manifest import (
    DataFile,
    Manifest,
    Range,
    State,
    TopicFacts,
    decode,
    ends_of,
)
from penstock.spark.pipelines.problems import ArchiveError
from penstock.types import TopicPartition


def file(
    name: str, *ranges: tuple[int, int, int], topic: str = "orders", date: str = "2026-01-01"
) -> DataFile:
    return DataFile(
        path=f"topic={topic}/date={date}/{name}",
        topic=topic,
        date=date,
        size_bytes=100,
        ranges=tuple(
            Range(partition=partition, first=first, last=last, rows=last - first + 1)
            for partition, first, last in ranges
        ),
    )


def batch(sequence: int, *files: DataFile, removed: tuple[str, ...] = ()) -> Manifest:
    return Manifest(
        sequence=sequence,
        writer="me",
        kind="compaction" if removed else "batch",
        at="",
        added=files,
        removed=removed,
        through={} if removed else ends_of(files),
    )


def test_batches_add_files_and_move_the_end() -> None:
    first, second = file("a", (0, 0, 9)), file("b", (0, 10, 12), (1, 0, 4))
    state = State().after([batch(1, first), batch(2, second)])
    assert state.sequence == 2
    assert state.of_topics(None) == [first, second]
    assert state.positions() == {TopicPartition("orders", 0): 13, TopicPartition("orders", 1): 5}


def test_a_compaction_replaces_files_and_leaves_the_end_where_it_is() -> None:
    first, second, merged = file("a", (0, 0, 9)), file("b", (0, 10, 12)), file("c", (0, 0, 12))
    before = State().after([batch(1, first), batch(2, second)])
    after = before.after([batch(3, merged, removed=(first.path, second.path))])
    assert after.of_topics(None) == [merged]
    assert after.through == before.through


def test_a_missing_change_is_an_error() -> None:
    with pytest.raises(ArchiveError, match="lacks change 2"):
        State().after([batch(1), batch(3)])


def test_removing_a_missing_file_is_an_error() -> None:
    with pytest.raises(ArchiveError, match="nothing-like-it"):
        State().after([batch(1, removed=("nothing-like-it",))])


def test_a_topics_partitions_are_those_it_had_and_never_fewer_than_have_records() -> None:
    facts = TopicFacts(topic_id="x", partitions=6)
    assert State(topics={"orders": facts}).partitions_of("orders") == 6
    assert State(through={"orders": {"7": 1}}, topics={"orders": facts}).partitions_of("orders") == 8
    assert State().partitions_of("orders") == 0


def test_files_are_chosen_by_topic() -> None:
    orders, payments = file("a", (0, 0, 1)), file("a", (0, 0, 1), topic="payments")
    state = State().after([batch(1, orders, payments)])
    assert state.of_topics(["payments"]) == [payments]


def test_a_file_of_the_log_that_is_garbage_is_named() -> None:
    with pytest.raises(ArchiveError, match="change 7"):
        decode(b'{"sequence": "one"}', Manifest, "change 7")


def test_a_log_of_a_newer_format_is_refused() -> None:
    with pytest.raises(ArchiveError, match="format 2"):
        decode(b'{"version": 2}', State, "snapshot 7")
