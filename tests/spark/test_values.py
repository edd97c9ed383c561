"""Values in formats, with real Spark: decoded, encoded, inferred; bad records are never lost."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock import Broker

Make = Callable[..., str]
Produce = Callable[..., None]
Read = Callable[..., DataFrame]

SCHEMA = "id bigint, name string"
PATIENCE_S = 120


def records_of(broker: Broker, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), timeout=60)
    consumer.close()
    return found


def config_of(broker: Broker, topic: str, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return str(admin.describe_configs([asked])[asked].result(60)[name].value)


def test_json_becomes_a_struct(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(
        topic, [b'{"id": 1, "name": "a"}', b'{"name": "b", "more": [1]}', {"value": None, "key": b"gone"}]
    )
    frame = read(topic, valueFormat="json", valueSchema=SCHEMA)
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,name:string>"
    rows = frame.orderBy("offset").selectExpr("offset", "value.*", "value is null AS empty").collect()
    assert [tuple(row) for row in rows] == [
        (0, 1, "a", False),
        (1, None, "b", False),
        (2, None, None, True),
    ]


def test_a_schema_is_inferred_from_a_sample(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic(partitions=2)
    produce(
        topic,
        [{"value": b'{"id": 1}', "partition": 0}, {"value": b'{"id": 2.5, "ok": true}', "partition": 1}],
    )
    frame = read(topic, valueFormat="json")
    value_type = frame.schema["value"].dataType
    assert isinstance(value_type, StructType)
    assert {field.name: field.dataType.simpleString() for field in value_type} == {
        "id": "double",
        "ok": "boolean",
    }
    assert sorted(row.id for row in frame.select("value.id").collect()) == [1.0, 2.5]


def test_a_schema_cannot_be_inferred_from_nothing(make_topic: Make, read: Read) -> None:
    with pytest.raises(
        PySparkException, match="valueSchema=None: expected a schema, since there is no record yet"
    ):
        read(make_topic(), valueFormat="json")


def test_csv_lines_are_read_by_position(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(topic, [b"1;alice", b'2;"b;ob"'])
    frame = read(topic, valueFormat="csv", valueSchema=SCHEMA, csvDelimiter=";").orderBy("offset")
    assert frame.select("value.*").collect() == [(1, "alice"), (2, "b;ob")]


def test_avro_is_read_by_the_schema_of_its_writer(make_topic: Make, produce: Produce, read: Read) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    }
    values = []
    for order in ({"id": 7, "name": "x"}, {"id": 8, "name": None}):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        values.append(out.getvalue())
    topic = make_topic()
    produce(topic, values)
    frame = read(topic, valueFormat="avro", valueSchema=json.dumps(schema)).orderBy("offset")
    assert frame.select("value.*").collect() == [(7, "x"), (8, None)]


def test_one_arrow_record_holds_many_rows(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    for first in (0, 1000):
        out = io.BytesIO()
        table = pa.table({"id": pa.array(range(first, first + 1000)), "name": ["n"] * 1000})
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        produce(topic, [{"value": out.getvalue(), "key": b"k"}])
    frame = read(topic, valueFormat="arrow")
    rows = frame.select("key", "offset", "value.id").orderBy("value.id").collect()
    assert [(bytes(row.key), row.offset, row.id) for row in rows] == [
        (b"k", n // 1000, n) for n in range(2000)
    ]


@pytest.mark.parametrize("value_format", ["json", "csv", "avro", "arrow"])
def test_the_source_decodes_values_of_the_sink(
    spark: SparkSession, broker: Broker, make_topic: Make, read: Read, value_format: str
) -> None:
    topic = make_topic()
    rows = spark.range(500).selectExpr("struct(id, concat('name ', id) AS name) AS value")
    writer = rows.write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    # Bare Avro does not contain its schema: both ends must be given the same.
    writer.option("topic", topic).options(valueFormat=value_format, valueSchema=SCHEMA).mode("append").save()
    found = read(topic, valueFormat=value_format, valueSchema=SCHEMA).select("value.*").collect()
    assert sorted(map(tuple, found)) == [(n, f"name {n}") for n in range(500)]


def test_a_bad_record_fails_the_query_and_is_named(make_topic: Make, produce: Produce, read: Read) -> None:
    topic = make_topic()
    produce(topic, [b'{"id": 1}', b"no json"])
    with pytest.raises(PySparkException, match=f"{topic}-0, offset 1: the value is not json"):
        read(topic, valueFormat="json", valueSchema=SCHEMA).collect()


def test_a_bad_record_becomes_a_complete_dead_letter(
    broker: Broker, make_topic: Make, produce: Produce, read: Read
) -> None:
    topic = make_topic()
    bad = {"value": b"\xffno json", "key": b"k", "headers": [("trace", b"7")], "timestamp": 1_700_000_000_000}
    produce(topic, [b'{"id": 1}', bad, b'{"id": "x"}', b'{"id": 3}'])
    frame = read(topic, valueFormat="json", valueSchema=SCHEMA, badRecords="deadLetter")
    assert sorted(row.id for row in frame.select("value.id").collect()) == [1, 3]
    first, second = records_of(broker, f"{topic}.dlq", 2)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", b"\xffno json", 1_700_000_000_000)
    headers = dict(first.headers())
    assert headers["trace"] == b"7"
    assert headers["penstock-error"]
    assert [headers[f"penstock-source-{name}"] for name in ("topic", "partition", "offset")] == [
        topic.encode(),
        b"0",
        b"1",
    ]
    assert second.value() == b'{"id": "x"}'
    assert b"id" in dict(second.headers())["penstock-error"]
    # The first is years old, and must not be deleted by the broker's retention.
    assert config_of(broker, f"{topic}.dlq", "retention.ms") == "-1"


def test_a_bad_record_keeps_its_row_with_a_null_value_on_request(
    make_topic: Make, produce: Produce, read: Read
) -> None:
    topic = make_topic()
    produce(topic, [b'{"id": 1}', {"value": b"no json", "key": b"k"}, b'{"id": "x"}', b'{"id": 4}'])
    frame = read(topic, valueFormat="json", valueSchema=SCHEMA, badRecords="null").orderBy("offset")
    rows = frame.selectExpr("offset", "string(key)", "value is null AS bad", "value.id").collect()
    assert [tuple(row) for row in rows] == [
        (0, None, False, 1),
        (1, "k", True, None),
        (2, None, True, None),
        (3, None, False, 4),
    ]


def test_a_stream_reads_on_past_bad_records_that_become_null(
    spark: SparkSession, broker: Broker, make_topic: Make, produce: Produce, checkpoint: str, tmp_path: Path
) -> None:
    topic = make_topic()
    produce(topic, [b'{"id": %d}' % n if n % 10 else b"{" for n in range(100)])
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.options(subscribe=topic, startingOffsets="earliest", badRecords="null")
    frame = reader.options(valueFormat="json", valueSchema=SCHEMA).load()
    out = str(tmp_path / "out")
    writer = frame.select("offset", "value.id").writeStream.format("parquet").option("path", out)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    rows = spark.read.parquet(out).orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(n, n if n % 10 else None) for n in range(100)]


def test_a_stream_skips_bad_records_and_continues(
    spark: SparkSession, broker: Broker, make_topic: Make, produce: Produce, checkpoint: str, tmp_path: Path
) -> None:
    topic, aside = make_topic(), make_topic("aside")
    produce(topic, [b'{"id": %d}' % n if n % 10 else b"{" for n in range(100)])
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "valueSchema": SCHEMA,
    }
    frame = reader.options(**options, badRecords="deadLetter", deadLetterTopic=aside).load()
    out = str(tmp_path / "out")
    writer = frame.select("value.id").writeStream.format("parquet").option("path", out)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert spark.read.parquet(out).count() == 90
    assert len(records_of(broker, aside, 10)) == 10


def test_a_stream_fails_on_a_bad_record_by_default(
    spark: SparkSession, broker: Broker, make_topic: Make, produce: Produce, checkpoint: str
) -> None:
    topic = make_topic()
    produce(topic, [b"{"])
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "valueSchema": SCHEMA,
    }
    writer = reader.options(**options).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="offset 0: the value is not json"):
        query.awaitTermination(PATIENCE_S)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "json", "valueSchema": "id bigin"}, "valueSchema"),
        ({"valueFormat": "json", "valueSchema": "id interval"}, "id"),
        ({"valueSchema": SCHEMA}, "valueFormat"),
        ({"valueFormat": "avro"}, "valueSchema"),
        ({"valueFormat": "json", "valueSchema": SCHEMA, "deadLetterTopic": "x"}, "badRecords=deadLetter"),
        ({"valueFormat": "json", "valueSchema": SCHEMA, "csvQuote": "'"}, "csvQuote"),
    ],
)
def test_an_invalid_payload_option_is_refused_when_the_query_is_planned(
    make_topic: Make, produce: Produce, read: Read, options: dict[str, str], message: str
) -> None:
    topic = make_topic()
    produce(topic, [b"x"])
    with pytest.raises(PySparkException, match=message):
        read(topic, **options).count()


def test_a_bad_arrow_record_leaves_no_row_behind(make_topic: Make, produce: Produce, read: Read) -> None:
    out = io.BytesIO()
    table = pa.table({"id": pa.array([1, 2]), "name": ["a", "b"]})
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    topic = make_topic()
    produce(topic, [out.getvalue(), b"junk", out.getvalue()])
    frame = read(topic, valueFormat="arrow", valueSchema=SCHEMA, badRecords="deadLetter")
    assert sorted(row.id for row in frame.select("value.id").collect()) == [1, 1, 2, 2]


def test_a_bad_arrow_record_becomes_one_row_with_a_null_value(
    make_topic: Make, produce: Produce, read: Read
) -> None:
    out = io.BytesIO()
    table = pa.table({"id": pa.array([1, 2]), "name": ["a", "b"]})
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    topic = make_topic()
    produce(topic, [out.getvalue(), b"junk", out.getvalue()])
    frame = read(topic, valueFormat="arrow", valueSchema=SCHEMA, badRecords="null").orderBy(
        "offset", "value.id"
    )
    assert [tuple(row) for row in frame.select("offset", "value.id").collect()] == [
        (0, 1),
        (0, 2),
        (1, None),
        (2, 1),
        (2, 2),
    ]


def test_a_pattern_does_not_read_its_own_dead_letters(
    make_topic: Make, produce: Produce, read: Read, unique: Callable[[str], str]
) -> None:
    prefix = unique("loop")
    topic = make_topic(prefix)
    produce(topic, [b"bad", b'{"id": 1}'])
    options = {"valueFormat": "json", "valueSchema": SCHEMA, "badRecords": "deadLetter"}
    for _ in range(2):  # the second one finds the dead letters of the first
        assert read("", subscribePattern=f"{prefix}.*", **options).select("value.id").collect() == [(1,)]
