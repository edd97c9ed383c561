"""Streaming reads with real Spark: every record once, through restarts; limits; gaps; lag that tools can see."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock import Broker

Make = Callable[..., str]
Produce = Callable[..., None]

PATIENCE_S = 120


@pytest.fixture
def stream(spark: SparkSession, broker: Broker) -> Callable[..., DataFrame]:
    def load(topic: str, **options: str) -> DataFrame:
        reader = spark.readStream.format("penstock").option(
            "kafka.bootstrap.servers", broker.bootstrap_servers
        )
        if topic:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader.load()

    return load


Stream = Callable[..., DataFrame]


def drain(frame: DataFrame, checkpoint: str, out: str) -> list[dict[str, Any]]:
    """Reads all existing records into Parquet; returns the progress of each batch."""
    writer: DataStreamWriter = frame.writeStream.format("parquet").option("path", out)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    return [json.loads(progress.json) for progress in query.recentProgress]


def offsets_in(spark: SparkSession, out: str) -> list[int]:
    return sorted(row.offset for row in spark.read.parquet(out).select("offset").collect())


def committed(broker: Broker, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions}


def test_available_now_reads_existing_records_and_the_next_run_continues(
    spark: SparkSession, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    topic, out = make_topic(), str(tmp_path / "out")
    frame = stream(topic, startingOffsets="earliest")
    produce(topic, [str(n) for n in range(500)])
    drain(frame, checkpoint, out)
    assert offsets_in(spark, out) == list(range(500))
    produce(topic, [str(n) for n in range(300)])
    drain(frame, checkpoint, out)
    assert offsets_in(spark, out) == list(range(800))
    drain(frame, checkpoint, out)
    assert offsets_in(spark, out) == list(range(800))


def test_a_checkpoint_of_the_kafka_connector_is_continued(
    spark: SparkSession, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    """The same folder, with the offsets as the connector writes them."""
    topic, out = make_topic(), str(tmp_path / "out")
    frame = stream(topic, startingOffsets="earliest")
    produce(topic, [b"x"] * 30)
    drain(frame, checkpoint, out)
    offsets = Path(checkpoint) / "offsets"
    newest = max(
        (path for path in offsets.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    )
    lines = newest.read_text().splitlines()
    newest.write_text("\n".join([*lines[:-1], json.dumps({topic: {"0": 30}})]))
    (offsets / f".{newest.name}.crc").unlink(missing_ok=True)
    produce(topic, [b"y"] * 12)
    drain(frame, checkpoint, out)
    assert offsets_in(spark, out) == list(range(42))


def test_a_limit_spreads_the_backlog_over_batches(
    spark: SparkSession, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    topic, out = make_topic(), str(tmp_path / "out")
    produce(topic, [str(n) for n in range(100)])
    progress = drain(stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="40"), checkpoint, out)
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [40, 40, 20]
    assert offsets_in(spark, out) == list(range(100))


def test_a_minimum_waits_for_more_but_not_for_ever(
    spark: SparkSession, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str
) -> None:
    topic = make_topic()
    produce(topic, [b"1", b"2", b"3"])
    seen: list[int] = []
    frame = stream(topic, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    writer = frame.writeStream.foreachBatch(lambda rows, _batch: seen.append(rows.count()))
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        assert sum(seen) == 0
        produce(topic, [b"4", b"5"])
        query.processAllAvailable()
        while sum(seen) == 0:
            query.processAllAvailable()
        assert sum(seen) == 5
    finally:
        query.stop()


def test_progress_is_committed_to_the_named_group(
    broker: Broker, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path,
    unique: Callable[[str], str],
) -> None:  # fmt: skip
    topic, group = make_topic(partitions=2), unique("spark")
    produce(topic, [{"value": str(n), "partition": n % 2} for n in range(100)])
    drain(
        stream(topic, startingOffsets="earliest", kafka__group__id=group, maxOffsetsPerTrigger="30"),
        checkpoint,
        str(tmp_path / "out"),
    )
    assert committed(broker, group) == {(topic, 0): 50, (topic, 1): 50}


def test_without_a_name_the_group_is_stored_in_the_checkpoint(
    broker: Broker, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    topic, out = make_topic(), str(tmp_path / "out")
    frame = stream(topic, startingOffsets="earliest", groupIdPrefix="my-job")
    groups = []
    for _ in range(2):
        produce(topic, [b"x"] * 10)
        progress = drain(frame, checkpoint, out)
        groups.append(progress[-1]["sources"][0]["endOffset"]["group"])
    assert groups[0] == groups[1]
    assert groups[0].startswith("my-job-")
    assert committed(broker, groups[0]) == {(topic, 0): 20}


def test_the_latest_offset_is_part_of_sparks_own_progress(
    make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    topic = make_topic()
    produce(topic, [b"x"] * 10)
    frame = stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    first = drain(frame, checkpoint, str(tmp_path / "out"))[0]["sources"][0]
    assert first["endOffset"]["topics"] == {topic: {"0": 4}}
    assert first["latestOffset"]["topics"] == {topic: {"0": 10}}


def test_a_first_batch_with_rows_that_fails_is_read_again_whole(
    make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, broker: Broker
) -> None:
    topic, seen = make_topic(), []
    produce(topic, [b"x"] * 5)
    by_time = stream(topic, startingTimestamp="1", startingOffsetsByTimestampStrategy="latest")

    def fail(rows: DataFrame, batch: int) -> None:
        raise RuntimeError("batch 0 fails")

    query = by_time.writeStream.foreachBatch(fail).option("checkpointLocation", checkpoint).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(PATIENCE_S)
    # If it were looked up again, the start would be another: the first records have a later time now.
    later = stream(topic, startingOffsets=json.dumps({topic: {"0": 3}}))
    writer = later.writeStream.foreachBatch(lambda rows, _: seen.extend(row.offset for row in rows.collect()))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_new_partitions_are_read_from_their_first_record(
    spark: SparkSession, broker: Broker, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    topic, out = make_topic(), str(tmp_path / "out")
    frame = stream(topic, startingOffsets="latest")
    drain(frame, checkpoint, out)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    produce(topic, [{"value": b"x", "partition": n % 3} for n in range(30)])
    drain(frame, checkpoint, out)
    rows = spark.read.parquet(out).groupBy("partition").count().collect()
    assert {row.partition: row["count"] for row in rows} == {0: 10, 1: 10, 2: 10}


def delete_records(broker: Broker, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    tp = TopicPartition(topic, 0, before)
    next(iter(admin.delete_records([tp]).values())).result(60)


def test_records_deleted_by_retention_fail_the_stream_and_are_named(
    broker: Broker, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    topic, out = make_topic(), str(tmp_path / "out")
    frame = stream(topic, startingOffsets="earliest")
    produce(topic, [b"x"] * 10)
    drain(frame, checkpoint, out)
    produce(topic, [b"y"] * 10)
    delete_records(broker, topic, 15)
    with pytest.raises(
        StreamingQueryException, match=r"offsets 10 to 14 were to be read.*failOnDataLoss=false"
    ):
        drain(frame, checkpoint, out)


def test_records_deleted_by_retention_are_skipped_on_request(
    spark: SparkSession, broker: Broker, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    topic, out = make_topic(), str(tmp_path / "out")
    frame = stream(topic, startingOffsets="earliest", failOnDataLoss="false")
    produce(topic, [b"x"] * 10)
    drain(frame, checkpoint, out)
    produce(topic, [b"y"] * 10)
    delete_records(broker, topic, 15)
    drain(frame, checkpoint, out)
    assert offsets_in(spark, out) == [*range(10), *range(15, 20)]


def test_a_recreated_topic_is_detected(
    broker: Broker, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    topic, out = make_topic(), str(tmp_path / "out")
    frame = stream(topic, startingOffsets="earliest")
    produce(topic, [b"x"] * 10)
    drain(frame, checkpoint, out)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(60)
    with pytest.raises(StreamingQueryException, match=f"{topic}-0 is gone"):
        drain(frame, checkpoint, out)
    produce(topic, [b"z"] * 20)
    with pytest.raises(
        StreamingQueryException, match=r"was deleted and created again .*start with a new one"
    ):
        drain(frame, checkpoint, out)


def test_an_end_is_refused_for_a_stream(
    make_topic: Make, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="endingOffsets='latest': expected no end"):
        drain(stream(make_topic(), endingOffsets="latest"), checkpoint, str(tmp_path / "out"))


def test_every_lag_tool_sees_a_stream_that_runs(
    broker: Broker, make_topic: Make, produce: Produce, stream: Stream, checkpoint: str,
    unique: Callable[[str], str],
) -> None:  # fmt: skip
    """While the query runs and has nothing to do, its lag is zero."""
    topic, group = make_topic(), unique("spark")
    frame = stream(topic, startingOffsets="earliest", kafka__group__id=group)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        produce(topic, [b"x"] * 25)
        query.processAllAvailable()
        query.processAllAvailable()
        while committed(broker, group).get((topic, 0)) != 25:  # bounded by the test's own time limit
            query.processAllAvailable()
        (tp,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
        assert tp.offset == consumer.get_watermark_offsets(tp, timeout=60)[1] == 25
    finally:
        query.stop()
        consumer.close()
