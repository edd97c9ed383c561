"""Counts and sums by window, against values computed by hand."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import Broker
from penstock.errors import ConfigError
from penstock.spark import Aggregation, aggregate
from penstock.spark.pipelines.json_fields import time_of
from penstock.spark.pipelines.topic_stream import check_target
from penstock.spark.read_bounds import Subscription
from penstock.types import TopicPartition

NOON_MS = 1_767_268_800_000
"""2026-01-01T12:00:00Z."""

Totals = dict[tuple[str, str | None], tuple[int, float]]


def sale(minute: float, key: str, amount: object, *, at: object = None) -> dict[str, Any]:
    value = {"customer": {"id": key}, "amount": amount, "at": at}
    return {"key": key, "value": json.dumps(value), "timestamp": NOON_MS + int(minute * 60_000)}


def last_by_window(rows: list[Any]) -> Totals:
    """A topic in update mode: the newest figures of each window and key count."""
    found: Totals = {}
    for row in rows:
        value = json.loads(row.value)
        assert (row.key.decode() if row.key else None) == value["key"]
        found[value["window_start"], value["key"]] = (value["count"], value["sum_amount"])
    return found


def test_results_match_a_manual_count_and_late_records_count_until_the_watermark(
    spark: SparkSession,
    broker: Broker,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    read: Callable[..., Any],
    checkpoint: str,
) -> None:
    sales, totals = make_topic("sales"), make_topic("totals")

    def run() -> Any:
        return aggregate(
            spark,
            sales,
            Aggregation(window="5 minutes", watermark="10 minutes", sums=("amount",)),
            bootstrap_servers=broker.bootstrap_servers,
            checkpoint=checkpoint,
            to_topic=totals,
        )

    produce(sales, [sale(0, "ann", 1.5), sale(1, "ann", 2), sale(4.9, "bob", 3), sale(5, "ann", "none")])
    run()
    noon, five, forty = (f"2026-01-01T12:{minute}:00.000Z" for minute in ("00", "05", "40"))
    expected: Totals = {(noon, "ann"): (2, 3.5), (noon, "bob"): (1, 3.0), (five, "ann"): (1, 0.0)}
    assert last_by_window(read(totals).orderBy("offset").collect()) == expected

    produce(sales, [sale(2, "bob", 10), sale(40, "ann", 7)])  # late by three minutes: it counts
    run()
    expected |= {(noon, "bob"): (2, 13.0), (forty, "ann"): (1, 7.0)}
    assert last_by_window(read(totals).orderBy("offset").collect()) == expected

    produce(sales, [sale(3, "bob", 100), sale(41, "ann", 1)])  # the watermark is at 12:30 now: too late
    assert run().late_rows == 1
    expected |= {(forty, "ann"): (2, 8.0)}
    assert last_by_window(read(totals).orderBy("offset").collect()) == expected


def test_a_table_gets_final_figures_by_fields_of_the_value(
    spark: SparkSession,
    broker: Broker,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    sales = make_topic("sales")
    # The record's own time is not used here, except for the one whose field cannot be read.
    produce(
        sales,
        [
            sale(500, "ann", 2, at="2026-01-01T12:01:00Z"),
            sale(500, "ann", 3, at=NOON_MS + 240_000),
            sale(30, "bob", 4, at="no time at all"),
        ],
    )
    aggregate(
        spark,
        sales,
        Aggregation(key="customer.id", time="at", sums=("amount:long",), watermark="1 minute"),
        bootstrap_servers=broker.bootstrap_servers,
        to_path=str(tmp_path / "table"),
    )
    assert (tmp_path / "table" / "_checkpoint" / "commits").is_dir()
    [row] = spark.read.parquet(str(tmp_path / "table")).collect()  # bob's window is not over yet
    for file in (tmp_path / "table").glob("*.parquet"):
        assert pq.read_schema(file).field("window_start").type == pa.timestamp("us", tz="UTC")
    assert (row.key, row["count"], row.sum_amount) == ("ann", 2, 5)
    assert (row.window_start.minute, row.window_end.minute) == (0, 5)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Aggregation(window="soon"), "window"),
        (Aggregation(watermark="10"), "watermark"),
        (Aggregation(sums=("amount:text",)), "double"),
        (Aggregation(sums=("a", "a:long")), "each field once"),
        (Aggregation(key="$.."), "key"),
        (Aggregation(window="0 seconds"), "window"),
        (
            Aggregation(window="1 hour", slide="61 minutes"),
            "slide='61 minutes': .*at most the window's 1 hour",
        ),
        (Aggregation(slide="0 minutes"), "slide"),
    ],
)
def test_an_invalid_aggregation_is_refused(wish: Aggregation, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        wish.validate()


def test_invalid_times_are_replaced_by_those_of_the_record(spark: SparkSession) -> None:
    record = datetime(2026, 1, 1, tzinfo=UTC)
    far = [2**63 - 1, -(2**63) + 1, NOON_MS * 1000, "+55000-01-01T00:00:00Z", 10**30, "no time at all"]
    values = [json.dumps({"at": at}).encode() for at in [*far, NOON_MS, "2026-01-01T12:00:00Z"]]
    rows = spark.createDataFrame([(value, record) for value in values], "value binary, timestamp timestamp")
    found = [row.ms for row in rows.select(F.unix_millis(time_of("at")).alias("ms")).collect()]
    assert found == [int(record.timestamp() * 1000)] * len(far) + [NOON_MS] * 2


def test_a_target_that_the_pipeline_also_reads_is_detected_for_every_kind_of_subscription() -> None:
    check_target(Subscription(pattern="sales"), "sales-totals")
    for subscription, target in (
        (Subscription(pattern="sales.*"), "sales-totals"),
        (Subscription(topics=("a", "b")), "b"),
        (Subscription(partitions=(TopicPartition("a", 0),)), "a"),
    ):
        with pytest.raises(ConfigError, match="a topic that this pipeline does not read"):
            check_target(subscription, target)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "either to_topic or to_path"),
        ({"to_topic": "a", "to_path": "b"}, "either to_topic or to_path"),
        ({"to_path": "b", "mode": "update"}, "append"),
        ({"to_topic": "x"}, "does not read"),
        ({"to_topic": "y", "checkpoint": None}, "checkpoint=None: expected a folder"),
        ({"topics": (), "to_topic": "xy", "options": {"subscribePattern": "x.*"}}, "does not read"),
        ({"to_topic": "y", "options": {"valueFormat": "json"}}, "raw"),
    ],
)
def test_an_invalid_target_is_refused(
    spark: SparkSession, broker: Broker, settings: dict[str, Any], said: str, checkpoint: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        aggregate(
            spark,
            aggregation=Aggregation(),
            bootstrap_servers=broker.bootstrap_servers,
            **{"topics": "x", "checkpoint": checkpoint, **settings},
        )
