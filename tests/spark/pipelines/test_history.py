"""Archive plus live tail: every record once, on one side of the boundary."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from penstock import Broker
from penstock.errors import ConfigError
from penstock.spark import Selection, history
from penstock.spark.data_loss import DataLoss
from penstock.spark.pipelines.tail import _range, _source_options
from penstock.spark.read_limits import OffsetRange
from penstock.types import TopicPartition
from tests.transactional import ALL, TransactionalTopic

from .conftest import Shop, all_places, plain, topic_partitions

PLACE = TopicPartition("orders", 0)


def whole(shop: Shop, **settings: Any) -> DataFrame:
    return history(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers, **settings)


def test_history_is_the_archive_and_later_records(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 9)
    shop.archive()
    shop.sell(9, 6)
    found = whole(shop, with_source=True)
    assert plain(found) == plain(read(shop.topic, includeHeaders="true"))
    counts = {row.source: row["count"] for row in found.groupBy("source").count().collect()}
    assert counts == {"archive": 9, "live": 6}


def test_a_selection_reads_no_file_without_a_wanted_record(shop: Shop) -> None:
    for first in (0, 9):
        shop.sell(first, 9)
        shop.archive(compaction=None)
    shop.sell(18, 3)
    found = whole(shop, selection=Selection(from_offset=4))
    assert topic_partitions(found) == [place for place in all_places(21) if place[1] >= 4]
    read = {path.rpartition("/")[2] for path in found.inputFiles()}
    unread = {Path(file.path).name for file in shop.table().files() if file.offsets[1] < 4}
    assert unread
    assert not read & unread


def test_history_has_each_record_once_where_markers_take_offsets(
    shop: Shop, broker: Broker, unique: Callable[[str], str]
) -> None:
    """Markers are at the start, at the end and around the boundary between archive and tail."""
    topic = TransactionalTopic(broker, unique("transactional"))
    marked = replace(shop, topic=topic.name)
    topic.fill()
    marked.archive()
    topic.end(1, commit=True)
    at = topic.send(1, "live")
    topic.end(1, commit=True)
    expected = [(0, offset) for offset in sorted([*ALL, at])]
    assert topic_partitions(whole(marked, with_source=True)) == expected
    marked.archive()
    assert topic_partitions(whole(marked)) == expected


def test_history_without_a_tail_is_parquet_alone(shop: Shop) -> None:
    shop.sell(0, 9)
    shop.archive()
    found = whole(shop)
    assert "penstock" not in found._jdf.queryExecution().executedPlan().toString().lower().replace(
        shop.path.lower(), ""
    )
    assert topic_partitions(found) == all_places(9)


def test_history_of_a_topic_that_is_not_archived_yet_is_all_live(shop: Shop) -> None:
    shop.sell(0, 9)
    assert topic_partitions(whole(shop, topics=shop.topic)) == all_places(9)


def test_there_is_no_gap_and_no_overlap_while_records_come_in_and_are_archived(shop: Shop) -> None:
    shop.sell(0, 9)
    shop.archive()
    enough = threading.Event()
    sold = [9]

    def keep_selling() -> None:
        while not enough.is_set() and sold[0] < 3_000:
            shop.sell(sold[0], 30)
            sold[0] += 30

    seller = threading.Thread(target=keep_selling)
    seller.start()
    try:
        before = whole(shop)
        shop.archive(compaction=None)
        for found in (before, whole(shop)):
            there = topic_partitions(found)
            for partition in range(3):
                offsets = [offset for number, offset in there if number == partition]
                assert offsets == list(range(len(offsets)))
    finally:
        enough.set()
        seller.join()
    assert topic_partitions(whole(shop)) == all_places(sold[0])


def test_the_tail_begins_where_the_archive_ends() -> None:
    assert _range(PLACE, 5, 2, 9, fail=True) == OffsetRange(topic_partition=PLACE, start=5, end=9)
    assert _range(PLACE, None, 2, 9, fail=True) == OffsetRange(topic_partition=PLACE, start=2, end=9)


def test_records_that_were_deleted_before_they_were_archived_are_reported_as_missing() -> None:
    with pytest.raises(DataLoss, match="archived up to offset 4, and the log begins at 7"):
        _range(PLACE, 5, 7, 9, fail=True)
    assert _range(PLACE, 5, 7, 9, fail=False) == OffsetRange(topic_partition=PLACE, start=7, end=9)


def test_a_log_that_ends_before_the_archive_is_an_error() -> None:
    with pytest.raises(DataLoss, match="the log ends at 2"):
        _range(PLACE, 5, 0, 3, fail=True)


@pytest.mark.parametrize(
    "name",
    ["startingTimestamp", "endingtimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"],
)
def test_times_that_would_move_the_boundary_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the archive's end decides"):
        _source_options(["orders"], "127.0.0.1:1", {name: "1"})


def test_an_unknown_topic_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="no-such-topic"):
        whole(shop, topics="no-such-topic")
    with pytest.raises(ConfigError, match="startingOffsets"):
        whole(shop, topics=shop.topic, options={"startingOffsets": "earliest"})
