"""`kafka.isolation.level` with real Spark: committed, aborted and open transactions, in batches and in streams."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from penstock import Broker
from penstock.spark.options import parse
from penstock.spark.stream_offset import from_json
from penstock.spark.stream_reader import StreamReader
from tests.transactional import COMMITTED, END, TransactionalTopic

Unique = Callable[[str], str]
Read = Callable[..., DataFrame]
PATIENCE_S = 120
COMMITTED_ONLY = {"kafka__isolation__level": "read_committed"}


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> TransactionalTopic:
    """`fill`, and an open transaction of producer 1 at the end."""
    made = TransactionalTopic(broker, unique("isolated"))
    made.fill()
    made.send(1, "open")
    return made


def values(frame: DataFrame) -> dict[int, str]:
    return {row.offset: row.value.decode() for row in frame.select("offset", "value").collect()}


def test_a_batch_reads_committed_records_up_to_the_open_transaction(
    read: Read, topic: TransactionalTopic
) -> None:
    found = values(read(topic.name, maxRecordsPerPartition="4", **COMMITTED_ONLY))
    assert found == COMMITTED, "in three tasks"


def test_a_stream_waits_at_an_open_transaction_and_continues_when_it_ends(
    spark: SparkSession, broker: Broker, topic: TransactionalTopic, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    frame = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "8")
        .load()
    )

    def drain() -> dict[int, str]:
        writer = frame.writeStream.format("parquet").option("path", out).trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        assert query.awaitTermination(PATIENCE_S)
        return values(spark.read.parquet(out))

    assert drain() == COMMITTED
    topic.end(1, commit=True)
    topic.plain("after")
    assert drain() == {**COMMITTED, END: "open", END + 2: "after"}


def test_a_stream_that_changes_to_committed_records_waits_where_it_is(
    broker: Broker, topic: TransactionalTopic
) -> None:
    """It has read into an open transaction. The last stable offset before that is no sign of lost records."""

    def reader(level: str) -> StreamReader:
        given = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": topic.name,
            "startingOffsets": "earliest",
            "commitProgress": "false",
            "kafka.isolation.level": level,
        }
        return StreamReader(parse(given, streaming=True), StructType())

    every, committed = reader("read_uncommitted"), reader("read_committed")
    try:
        done = every.latestOffset(every.initialOffset(), ReadAllAvailable())
        assert list(from_json(done).positions.values()) == [END + 1]
        assert committed.latestOffset(done, ReadAllAvailable()) == done
    finally:
        every.stop()
        committed.stop()
