"""Batch reads with real Spark: columns, bounds, filters, splits and errors at planning time."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Broker
from tests.transactional import ALL, TransactionalTopic

Make = Callable[..., str]
Produce = Callable[..., None]
Read = Callable[..., DataFrame]


def test_every_column_has_the_values_of_a_kafka_client(
    make_topic: Make, produce: Produce, read: Read
) -> None:
    topic = make_topic(partitions=2)
    produce(
        topic,
        [
            {"value": b"one", "key": b"k", "partition": 1, "timestamp": 1_700_000_000_123},
            {"value": None, "key": b"tombstone", "partition": 1, "timestamp": 1_700_000_000_124},
            {"value": b"", "partition": 0, "timestamp": 1_700_000_000_125},
        ],
    )
    rows = read(topic).orderBy("timestamp").collect()
    assert read(topic).columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    assert [
        (row.key, row.value, row.topic, row.partition, row.offset, row.timestampType) for row in rows
    ] == [
        (b"k", b"one", topic, 1, 0, 0),
        (b"tombstone", None, topic, 1, 1, 0),
        (None, b"", topic, 0, 0, 0),
    ]
    assert rows[0].timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(1_700_000_000.123, UTC)


def test_headers_are_read_on_request(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(
        topic,
        [
            {"value": b"1", "headers": [("a", b"x"), ("a", None), ("é", b"")]},
            {"value": b"2"},
            {"value": b"3", "headers": [("z", b"\x00\xff")]},
        ],
    )
    rows = read(topic, includeHeaders="true").orderBy("offset").collect()
    headers = [row.headers and [tuple(pair) for pair in row.headers] for row in rows]
    assert headers == [[("a", b"x"), ("a", None), ("é", b"")], None, [("z", b"\x00\xff")]]
    assert "headers" not in read(topic).columns


def test_log_append_time_is_the_brokers(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    produce(topic, [{"value": b"1", "timestamp": 5}])
    row = read(topic).first()
    assert row is not None
    assert row.timestampType == 1
    assert row.timestamp.year > 2000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(codec: str, make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic(partitions=3)
    produce(topic, [f"{number}" * 20 for number in range(5000)], **{"compression.type": codec})
    values = sorted(row.value.decode() for row in read(topic, columns="value").collect())
    assert values == sorted(f"{number}" * 20 for number in range(5000))


def test_many_small_batches_make_few_large_ones_in_order(
    make_topic: Make, produce: Produce, read: Read
) -> None:
    topic = make_topic()
    produce(topic, [str(number) for number in range(3000)], **{"batch.num.messages": 7, "linger.ms": 0})
    rows = read(topic, columns="offset,value").collect()
    assert [(row.offset, row.value) for row in rows] == [(n, str(n).encode()) for n in range(3000)]


def test_only_the_chosen_columns_are_given(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(topic, [b"a", b"b"])
    assert read(topic, columns="topic,partition").collect() == [(topic, 0), (topic, 0)]
    assert read(topic).select("offset").count() == 2


def test_a_schema_without_some_columns_is_honoured(
    spark: SparkSession, broker: Broker, make_topic: Make, produce: Produce
) -> None:
    topic = make_topic()
    produce(topic, [b"a"])
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    chosen = reader.option("subscribe", topic).schema("offset bigint, value binary").load()
    assert chosen.collect() == [(0, b"a")]


def test_offsets_say_where_to_begin_and_end(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic(partitions=2)
    produce(topic, [{"value": str(n), "partition": n % 2} for n in range(20)])
    found = read(
        topic,
        startingOffsets=json.dumps({topic: {"0": 3, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 4}}),
    )
    assert sorted((row.partition, row.offset) for row in found.collect()) == [
        *((0, n) for n in range(3, 10)),
        *((1, n) for n in range(4)),
    ]


def test_times_say_where_to_begin_and_end(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(topic, [{"value": str(n), "timestamp": 1000 + n * 10} for n in range(10)])
    assert [
        row.offset for row in read(topic, startingTimestamp="1035", endingTimestamp="1070").collect()
    ] == [4, 5, 6]
    by_partition = read(topic, startingOffsetsByTimestamp=json.dumps({topic: {"0": 1080}}))
    assert [row.offset for row in by_partition.collect()] == [8, 9]
    late = read(topic, startingTimestamp="99999", startingOffsetsByTimestampStrategy="latest")
    assert late.count() == 0
    with pytest.raises(
        PySparkException, match="startingTimestamp=99999: expected a time at or before the last"
    ):
        read(topic, startingTimestamp="99999").count()


def test_topics_by_pattern_and_partitions_by_assignment(
    make_topic: Make, produce: Produce, read: Read, unique: Callable[[str], str]
) -> None:
    prefix = unique("group")
    names = [make_topic(f"{prefix}-{letter}", partitions=2) for letter in "ab"]
    for name in names:
        produce(name, [{"value": name, "partition": 0}, {"value": name, "partition": 1}])
    assert read("", subscribePattern=f"{prefix}-.*").count() == 4
    assert read("", subscribePattern=f"{prefix}-a-.*").count() == 2
    rows = read("", assign=json.dumps({names[1]: [1]})).collect()
    assert [(row.topic, row.partition) for row in rows] == [(names[1], 1)]


def test_an_empty_topic_has_no_rows(make_topic: Make, read: Read) -> None:
    assert read(make_topic(partitions=3)).collect() == []


def test_large_ranges_are_cut_into_more_tasks(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(topic, [str(n) for n in range(1000)])
    frame = read(topic, minPartitions="5")
    assert frame.rdd.getNumPartitions() == 5
    assert sorted(row.offset for row in frame.collect()) == list(range(1000))
    assert read(topic, maxRecordsPerPartition="300").rdd.getNumPartitions() == 4


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("condition", "rows", "tasks"),
    [
        ("partition = 1 and offset >= 10 and offset < 13", 3, 1),
        ("partition in (1) and offset = 3", 1, 1),
        ("timestamp >= timestamp_millis(91000)", 10, 2),
        ("timestamp < timestamp_millis(11000) and partition = 0", 5, 1),
        ("offset = 1 or partition = 0", 51, 2),
        ("topic = 'other'", 0, 1),
        ("offset > 5 and value = 'x'", 0, 2),
    ],
)
@pytest.mark.usefixtures("pushdown")
def test_pushed_filters_are_served_by_reading_less(
    make_topic: Make, produce: Produce, read: Read, condition: str, rows: int, tasks: int
) -> None:
    topic = make_topic(partitions=2)
    produce(topic, [{"value": str(n), "partition": n % 2, "timestamp": 1000 + 1000 * n} for n in range(100)])
    found = read(topic, pushFilters="true").where(condition)
    assert found.rdd.getNumPartitions() == tasks
    assert found.count() == rows


@pytest.mark.usefixtures("pushdown")
def test_one_frame_serves_many_queries_without_pushdown(
    make_topic: Make, produce: Produce, read: Read
) -> None:
    topic = make_topic()
    produce(topic, [str(n) for n in range(100)])
    frame = read(topic)
    assert [frame.where("offset < 10").count(), frame.count()] == [10, 100]
    assert frame.where("offset < 5").union(frame.where("offset > 97")).count() == 7


def test_the_same_filters_work_without_pushdown(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(topic, [str(n) for n in range(10)])
    assert read(topic).where("offset > 6").count() == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"subscribe": "missing-topic"},
            "subscribe='missing-topic': expected topics and partitions that exist",
        ),
        (
            {"startingOffets": "earliest"},
            "startingoffets='earliest': expected a known option; did you mean starting",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets='latest': expected earliest or offsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest': expected latest or offsets"),
        ({"startingOffsets": "{}"}, "startingOffsets="),
        ({"minPartitions": "few"}, "minPartitions='few': expected a whole number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss='maybe': expected true or false"),
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol='TLS': expected one of PLAINTEXT, SSL"),
        (
            {"kafka.isolation.level": "serializable"},
            "kafka.isolation.level='serializable': expected read_uncommitted or read_committed",
        ),
        ({"kafka.auto.offset.reset": "earliest"}, "expected the option startingOffsets instead"),
        ({"kafka.fetch.max.byts": "1"}, "did you mean kafka.fetch.max.bytes"),
        ({"columns": "value,size"}, "columns='value,size': expected some of key"),
        ({"valueFormat": "xml"}, "valueFormat='xml': expected one of"),
        ({"kafka.bootstrap.servers": "nonsense"}, "kafka.bootstrap.servers='nonsense'"),
    ],
)
def test_a_wrong_option_is_named_when_the_query_is_planned(
    spark: SparkSession, broker: Broker, make_topic: Make, options: dict[str, str], message: str
) -> None:
    topic = make_topic()
    all_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, **options}
    with pytest.raises(PySparkException) as failure:
        spark.read.format("penstock").options(**all_options).load().count()
    assert message in str(failure.value)


def test_offsets_outside_the_log_are_refused_with_its_bounds(
    make_topic: Make, produce: Produce, read: Read
) -> None:
    topic = make_topic()
    produce(topic, [b"1", b"2"])
    with pytest.raises(PySparkException, match="expected an offset from 0 to 2"):
        read(topic, endingOffsets=json.dumps({topic: {"0": 3}})).count()
    with pytest.raises(PySparkException, match="expected all partitions of"):
        read(topic, endingOffsets=json.dumps({topic: {"0": 1, "1": 3}})).count()


def test_a_broker_that_is_down_is_an_error_that_names_it(read: Read, make_topic: Make) -> None:
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1\b"):
        read(make_topic(), kafka__bootstrap__servers="127.0.0.1:1", fetchOffset__numRetries="0").count()


def test_a_schema_with_other_types_is_refused(spark: SparkSession, broker: Broker, make_topic: Make) -> None:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    with pytest.raises(PySparkException, match="value string"):
        reader.option("subscribe", make_topic()).schema("value string").load().count()


def test_markers_of_transactions_are_no_rows(
    broker: Broker, read: Read, unique: Callable[[str], str]
) -> None:
    made = TransactionalTopic(broker, unique("marked"))
    made.fill()
    found = {row.offset: row.value.decode() for row in read(made.name).collect()}
    assert found == ALL
    bounds = {"startingOffsets": json.dumps({made.name: {"0": 9}}), "endingOffsets": "latest"}
    assert read(made.name, **bounds).count() == 0, "only markers are behind it"
