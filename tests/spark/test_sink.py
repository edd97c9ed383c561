"""The sink in batch queries: real Spark writes, librdkafka reads back."""

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from kafka.partitioner.default import murmur2
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from penstock import Broker
from penstock.spark.sink import PenstockArrowWriter, Written
from penstock.spark.sink_options import SinkOptions

PATIENCE_SECONDS = 60.0
MakeTopic = Callable[..., str]
ReadBack = Callable[..., list["Found"]]


class Found(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


def found(message: Message) -> Found:
    return Found(
        message.partition() or 0,
        message.key(),
        message.value(),
        message.headers() or [],
        message.timestamp()[1],
    )


def read_topic(servers: str, topic: str, partitions: int) -> list[Found]:
    """All records of a topic, each partition in its order; also those of transactions that are open or aborted."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": topic,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    records: list[Found] = []
    ended: set[int | None] = set()
    while len(ended) < partitions:
        messages = consumer.consume(1000, 1)
        ended |= {message.partition() for message in messages if message.error()}
        records += [found(message) for message in messages if not message.error()]
    consumer.close()
    return records


@pytest.fixture
def read_back(broker: Broker) -> ReadBack:
    return lambda topic, partitions=1: read_topic(broker.bootstrap_servers, topic, partitions)


@pytest.fixture
def write(broker: Broker) -> Callable[..., None]:
    """Writes a DataFrame, with options by keyword (dots as double underscores)."""

    def save(frame: DataFrame, **options: str) -> None:
        writer: DataFrameWriter = frame.write.format("penstock").mode("append")
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        writer.save()

    return save


def test_keys_and_values_arrive_in_the_partitions_of_their_keys_and_in_order(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    topic = make_topic("keyed", 5)
    frame = spark.range(0, 20_000, 1, 2).selectExpr(
        "cast(id % 50 as string) as key", "cast(concat('value-', id) as binary) as value", "id as ignored"
    )
    write(frame, topic=topic, kafka__compression__type="lz4")
    records = read_back(topic, 5)
    assert sorted(record.value or b"" for record in records) == sorted(b"value-%d" % n for n in range(20_000))
    for record in records:
        assert record.key is not None
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 5
    mine = [int((record.value or b"")[6:]) for record in records if record.key == b"7"]
    for task in (range(10_000), range(10_000, 20_000)):
        assert [number for number in mine if number in task] == [n for n in task if n % 50 == 7]


def test_rows_without_keys_are_spread_over_partitions(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    topic = make_topic("keyless", 3)
    frame = spark.range(0, 60_000, 1, 1).selectExpr("concat(repeat('x', 200), id) as value")
    write(frame, topic=topic)
    records = read_back(topic, 3)
    assert len(records) == 60_000
    assert {record.partition for record in records} == {0, 1, 2}
    assert {record.key for record in records} == {None}


ROWS = """
    select * from values
        ({a}, 2, 'k1', 'v1',
            array(named_struct('key', 'h1', 'value', x'01'), named_struct('key', 'h2', 'value', null))),
        ({b}, 0, null, 'v2', array()),
        ({a}, null, 'k3', null, null),
        ({b}, null, '', '', array(named_struct('key', '', 'value', x'')))
    as rows (topic, partition, key, value, headers)
"""


def test_each_row_has_its_own_topic_partition_headers_and_nulls(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    first, second = make_topic("first", 3), make_topic("second", 1)
    write(spark.sql(ROWS.format(a=f"'{first}'", b=f"'{second}'")).coalesce(1))
    by_key = (murmur2(b"k3") & 0x7FFFFFFF) % 3
    assert sorted(record[:4] for record in read_back(first, 3)) == sorted(
        [(2, b"k1", b"v1", [("h1", b"\x01"), ("h2", None)]), (by_key, b"k3", None, [])]
    )
    assert sorted((record[:4] for record in read_back(second)), key=str) == sorted(
        [(0, None, b"v2", []), (0, b"", b"", [("", b"")])], key=str
    )


def test_the_option_topic_wins_over_the_column(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    topic = make_topic("wins")
    write(spark.sql("select 'other' as topic, 'v' as value"), topic=topic)
    assert [record.value for record in read_back(topic)] == [b"v"]


def test_records_keep_their_times_on_request_and_only_then(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    topic = make_topic("timed")
    frame = spark.sql("select timestamp_millis(1700000000123) as timestamp, 'v' as value")
    write(frame, topic=topic, useTimestamps="true")
    write(frame, topic=topic)
    kept, fresh = (record.timestamp_ms for record in read_back(topic))
    assert kept == 1_700_000_000_123
    assert fresh > 1_700_000_000_123


def test_structs_become_json(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    topic = make_topic("json")
    frame = spark.sql("select 'k' as key, struct(1 as a, 'x' as b) as value")
    write(frame, topic=topic, valueFormat="json")
    assert [(record.key, record.value) for record in read_back(topic)] == [(b"k", b'{"a":1,"b":"x"}')]


def test_structs_are_packed_into_few_arrow_records(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    topic = make_topic("arrow", 2)
    frame = spark.range(0, 30_000, 1, 1).select(
        F.struct("id", F.col("id").cast("string").alias("text")).alias("value"),
        (F.col("id") % 2).cast("int").alias("partition"),
    )
    write(frame, topic=topic, valueFormat="arrow")
    records = read_back(topic, 2)
    assert 2 <= len(records) < 30
    numbers: dict[int, list[int]] = {0: [], 1: []}
    for record in records:
        table = pa.ipc.open_stream(record.value).read_all()
        numbers[record.partition] += table.column("id").to_pylist()
    assert numbers == {0: list(range(0, 30_000, 2)), 1: list(range(1, 30_000, 2))}


def test_large_strings_and_wide_offsets_are_written_too(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, read_back: ReadBack
) -> None:
    topic = make_topic("large")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        write(spark.sql("select 'key' as key, repeat('x', 900000) as value"), topic=topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert [(record.key, len(record.value or b"")) for record in read_back(topic)] == [(b"key", 900_000)]


@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        ("select 1 as value", {"topic": "t"}, "column value='int': expected string or binary"),
        ("select 'v' as value", {}, "topic=None: expected the option topic"),
        (
            "select 'v' as value",
            {"topic": "t", "kafka__acsk": "1"},
            r"kafka.acsk='1': .*did you mean kafka.acks\?",
        ),
    ],
)
def test_invalid_writes_fail_before_any_task_runs(
    spark: SparkSession, write: Callable[..., None], query: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        write(spark.sql(query), **options)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select 'v' as value, cast(null as string) as topic", "topic: null in row 0"),
        ("select 'v' as value, '{topic}' as topic, 7 as partition", r"partition=7: expected 0 \.\. 0"),
        ("select repeat('x', 2000000) as value, '{topic}' as topic", "MESSAGE_TOO_LARGE, .*max.request.size"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_query(
    spark: SparkSession, write: Callable[..., None], make_topic: MakeTopic, query: str, words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        write(spark.sql(query.format(topic=make_topic("bad"))))


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: Broker) -> None:
    writer = spark.sql("select 'v' as value").write.format("penstock").mode("overwrite")
    with pytest.raises(PySparkException, match="mode='overwrite': expected append"):
        writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", "t").save()


def test_unreachable_brokers_are_detected_when_a_batch_is_planned(spark: SparkSession) -> None:
    writer = spark.sql("select x'00' as value").write.format("penstock").mode("append")
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "200", "topic": "t"}
    with pytest.raises(AnalysisException, match=r"127\.0\.0\.1:1: Connection refused"):
        writer.options(**nowhere).save()


def test_a_task_reports_its_written_records(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic
) -> None:
    topic = make_topic("counted", 2)
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    options = SinkOptions.from_options(given)
    writer = PenstockArrowWriter(options.client, spark.sql("select x'00' as value").schema, options)
    for rows in (3, 5):  # the second time with the producer of the first
        report = writer.write(iter([pa.record_batch({"value": [b"x" * 10] * rows})]))
        assert report == Written(rows=rows, records=rows, bytes=report.bytes, rows_by_topic={topic: rows})
        assert report.bytes > rows * 10
    assert writer.write(iter([])).rows == 0


@pytest.mark.parametrize("value_format", ["json", "csv", "avro", "arrow"])
def test_each_format_round_trips(
    spark: SparkSession,
    write: Callable[..., None],
    read: Callable[..., DataFrame],
    make_topic: MakeTopic,
    value_format: str,
) -> None:
    topic = make_topic(value_format)
    rows = spark.range(0, 100, 1, 1).selectExpr(
        "struct(id, concat('t-', id) as text, if(id % 3 = 0, null, id / 2) as half) as value"
    )
    schema = "id bigint, text string, half double"
    write(rows, topic=topic, valueFormat=value_format, valueSchema=schema)
    found = read(topic, valueFormat=value_format, valueSchema=schema)
    assert found.select("value.*").orderBy("id").collect() == rows.select("value.*").collect()
