"""`kafka.isolation.level` with real Spark: committed, aborted and open transactions, in batches and in streams."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Broker
from tests.transactional import ALL, COMMITTED, END, TransactionalTopic

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
    assert values(read(topic.name, **COMMITTED_ONLY)) == COMMITTED
    assert values(read(topic.name, maxRecordsPerPartition="1", **COMMITTED_ONLY)) == COMMITTED, (
        "a task an offset"
    )
    assert values(read(topic.name)) == {**ALL, END: "open"}


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
        .option("maxOffsetsPerTrigger", "4")
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
