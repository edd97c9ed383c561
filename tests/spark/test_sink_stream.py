"""The sink in streaming queries, and with a broker that is killed during writes."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyarrow import RecordBatch
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
PATIENCE_SECONDS = 120.0


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
    """The commit runs in another process, and knows no more than they tell."""
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


@pytest.mark.long
def test_a_broker_killed_in_mid_write_has_every_row_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    """No task fails, so no attempt is repeated; and within an attempt nothing is duplicated."""
    tasks, far_apart = 2, 1_000_000_000
    ended = tmp_path / "killed-twice"

    def rows_until_the_kills(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        """One task: numbers in order from its own first one, until the broker was killed twice, and some more."""
        for batch in batches:
            first = batch.column(0)[0].as_py() * far_apart
            until = time.monotonic() + PATIENCE_SECONDS
            while not ended.exists() and time.monotonic() < until:
                yield RecordBatch.from_pydict({"id": range(first, first + 1000)})
                first += 1000
                time.sleep(0.02)  # so that there is not too much to read afterwards
            yield RecordBatch.from_pydict({"id": range(first, first + 1000)})
            (tmp_path / f"end-{first // far_apart}").write_text(str(first + 1000))

    with broker_process(tmp_path / "data") as process, ThreadPoolExecutor(1) as pool:
        servers = process.start()
        with Cluster(ClientSettings(bootstrap_servers=servers)) as cluster:
            cluster.create_topic("kept", 3)
        killing = pool.submit(kill_at, [5_000, 20_000], process, servers, ended)
        frame = spark.range(0, tasks, 1, tasks).mapInArrow(rows_until_the_kills, "id bigint")
        frame = frame.selectExpr("cast(id as string) as value", "cast(id as string) as key")
        writer = frame.write.format("penstock").mode("append").option("topic", "kept")
        writer = writer.option("kafka.batch.size", "20000").option("kafka.buffer.memory", "100000")
        writer.option("kafka.bootstrap.servers", servers).save()
        killing.result(PATIENCE_SECONDS)
        found = numbers(servers, "kept", 3)
    ends = [int((tmp_path / f"end-{task}").read_text()) for task in range(tasks)]
    written = [number for task, end in enumerate(ends) for number in range(task * far_apart, end)]
    assert sorted(found) == written


def kill_at(counts: list[int], process: BrokerProcess, servers: str, ended: Path) -> None:
    """Kills the broker each time the topic holds so many records; then makes the file that says so."""
    for count in counts:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "watch", "log_level": 0})
        consumer.assign([TopicPartition("kept", index, 0) for index in range(3)])
        seen, until = 0, time.monotonic() + PATIENCE_SECONDS
        while seen < count and time.monotonic() < until:
            seen += sum(1 for message in consumer.consume(1000, 1) if not message.error())
        consumer.close()
        assert seen >= count
        process.kill()
        process.start()
    ended.touch()
