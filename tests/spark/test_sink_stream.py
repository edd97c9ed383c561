"""The sink in streaming queries, and with a broker that is killed during writes."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from penstock import Broker
from penstock.client.wire import ClientSettings, Cluster
from penstock.spark.sink import PenstockStreamArrowWriter
from penstock.spark.sink_options import SinkOptions
from tests.client.wire.test_producer import BrokerProcess, broker_process
from tests.spark.test_sink import read_topic

MakeTopic = Callable[..., str]
PATIENCE_SECONDS = 60.0


def numbers(servers: str, topic: str, partitions: int = 1) -> list[int]:
    return [int(record.value or b"") for record in read_topic(servers, topic, partitions)]


def test_a_stream_continues_after_a_restart_with_nothing_lost_or_duplicated(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path, checkpoint: str
) -> None:
    topic = make_topic("stream", 2)
    folder = tmp_path / "rows"
    for part in range(3):
        rows = spark.range(part * 1000, (part + 1) * 1000, 1, 2).selectExpr(
            "cast(id as string) as value", "id"
        )
        rows.write.mode("append").parquet(str(folder))
        stream = spark.readStream.schema("value string, id bigint").parquet(str(folder))
        query = (
            stream.selectExpr("value", "value as key")
            .writeStream.format("penstock")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("topic", topic)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_SECONDS)
    assert sorted(numbers(broker.bootstrap_servers, topic, 2)) == list(range(3000))


def test_a_stream_of_whole_results_writes_them_each_time(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path, checkpoint: str
) -> None:
    topic = make_topic("counts")
    spark.range(100).selectExpr("id % 4 as word").write.parquet(str(tmp_path / "words"))
    counts = spark.readStream.schema("word bigint").parquet(str(tmp_path / "words")).groupBy("word").count()
    query = (
        counts.selectExpr(
            "cast(word as string) as key", "cast(count as string) as value", f"'{topic}' as topic"
        )
        .writeStream.format("penstock")
        .outputMode("complete")  # Spark lets no Python data source write in mode update
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_SECONDS)
    found = {record.key: record.value for record in read_topic(broker.bootstrap_servers, topic, 1)}
    assert found == {b"0": b"25", b"1": b"25", b"2": b"25", b"3": b"25"}


def test_the_reports_of_a_micro_batch_name_query_batch_and_attempt(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path, checkpoint: str
) -> None:
    """A basis for exactly-once writes."""
    topic, reports = make_topic("reports"), tmp_path / "reports.jsonl"

    # Local classes, so that Spark's workers get them by value.
    class NotingWriter(PenstockStreamArrowWriter):
        def commit(self, messages: list, batchId: int) -> None:  # type: ignore[type-arg]
            with reports.open("a") as file:
                for each in messages:
                    file.write(
                        json.dumps([batchId, each.batch_id, each.query_id, each.attempt, each.rows]) + "\n"
                    )

    class Noting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_noting"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            options = SinkOptions.from_options(self.options)
            return NotingWriter(options.client, schema, options)

    spark.dataSource.register(Noting)
    stream = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 10)
        .option("numPartitions", 2)
        .load()
    )
    query = (
        stream.selectExpr("cast(value as string) as value")
        .writeStream.format("penstock_noting")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    while not any(progress["batchId"] >= 1 for progress in query.recentProgress):
        assert query.isActive, query.exception()
        query.awaitTermination(0.1)
    query_id = str(query.id)
    query.stop()
    noted = [json.loads(line) for line in reports.read_text().splitlines()]
    assert [row[:4] for row in noted[:4]] == [[0, 0, query_id, 0]] * 2 + [[1, 1, query_id, 0]] * 2
    assert sum(row[4] for row in noted[:4]) == 20


def test_a_broker_killed_in_mid_write_has_every_row_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    """No task fails, so no attempt is repeated; and within an attempt nothing is duplicated."""
    rows = 400_000
    with broker_process(tmp_path / "data") as process, ThreadPoolExecutor(1) as pool:
        servers = process.start()
        with Cluster(ClientSettings(bootstrap_servers=servers)) as cluster:
            cluster.create_topic("kept", 3)
        written = threading.Event()
        killing = pool.submit(kill_at, [rows // 10, rows // 2], process, servers, written)
        frame = spark.range(0, rows, 1, 2).selectExpr(
            "cast(id as string) as value", "cast(id as string) as key"
        )
        writer = frame.write.format("penstock").mode("append").option("topic", "kept")
        writer = writer.option("kafka.batch.size", "20000").option("kafka.buffer.memory", "100000")
        try:
            writer.option("kafka.bootstrap.servers", servers).save()
        finally:
            written.set()
        assert killing.result(PATIENCE_SECONDS) >= 1  # the second may come too late
        found = numbers(servers, "kept", 3)
    assert len(found) == rows
    assert set(found) == set(range(rows))


def kill_at(counts: list[int], process: BrokerProcess, servers: str, written: threading.Event) -> int:
    """Kills the broker when the topic holds so many records, each time; how often that was."""
    kills = 0
    for count in counts:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "watch", "log_level": 0})
        consumer.assign([TopicPartition("kept", index, 0) for index in range(3)])
        seen = 0
        while seen < count and not written.is_set():
            seen += sum(1 for message in consumer.consume(1000, 1) if not message.error())
        consumer.close()
        if not written.is_set():
            process.kill()
            process.start()
            kills += 1
    return kills
