"""Columns of a writer: used as in Kafka's sink, and invalid ones are refused while the query is planned."""

import pytest
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark import sink_schema
from penstock.spark.sink import PenstockArrowWriter, PenstockStreamArrowWriter
from penstock.spark.sink_options import SinkOptions

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
pytestmark = pytest.mark.usefixtures("spark")  # it parses the DDL


def check(ddl: str, **options: str) -> sink_schema.SinkColumns:
    return sink_schema.check(StructType.fromDDL(ddl), SinkOptions.from_options(SERVERS | options))


def test_columns_are_found_and_others_ignored() -> None:
    found = check(
        "topic string, partition int, key binary, value string, "
        "headers array<struct<key: string, value: binary>>, timestamp timestamp, offset bigint"
    )
    assert found == sink_schema.SinkColumns(
        key=True, topic=True, partition=True, headers=True, timestamp=False
    )
    found = check("value binary, topic bigint", topic="t")
    assert found == sink_schema.SinkColumns(
        key=False, topic=False, partition=False, headers=False, timestamp=False
    )
    assert check("value binary, timestamp timestamp", topic="t", useTimestamps="true").timestamp


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("key string", "column value='missing': expected string or binary.*; the columns are key"),
        ("Value string", "column value='missing'.*rename Value"),
        ("value int", "column value='int': expected string or binary; cast it"),
        ("value string, key int", "column key='int': expected string or binary"),
        ("value string, partition bigint", "column partition='bigint': expected int"),
        (
            "value string, headers map<string, binary>",
            "column headers='map<string,binary>': expected array<struct",
        ),
        (
            "value string, headers array<struct<key: string, value: string>>",
            "column headers=.*: expected array<struct",
        ),
        ("value string, value binary", "column value='two of them'"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_name(ddl: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(ddl, topic="t")


def test_a_topic_column_or_option_is_required() -> None:
    with pytest.raises(ConfigError, match="topic=None: expected the option topic, or a column topic"):
        check("value string")
    with pytest.raises(ConfigError, match="column topic='int': expected string"):
        check("value string, topic int")


def test_a_timestamp_column_is_required_if_times_are_kept() -> None:
    with pytest.raises(
        ConfigError, match="column timestamp='missing': expected a timestamp, because useTimestamps"
    ):
        check("value string", topic="t", useTimestamps="true")
    with pytest.raises(ConfigError, match="column timestamp='bigint'"):
        check("value string, timestamp bigint", topic="t", useTimestamps="true")


def test_a_value_format_requires_a_struct() -> None:
    assert check("key string, value struct<a: int>", topic="t", valueFormat="json").key
    with pytest.raises(
        ConfigError, match=r"column value='string': expected a struct, because valueFormat=json"
    ):
        check("value string", topic="t", valueFormat="json")


def test_a_given_schema_must_match_the_column() -> None:
    check(
        "value struct<a: int, b: string>",
        topic="t",
        valueFormat="avro",
        valueSchema="a int not null, b string",
    )
    with pytest.raises(ConfigError, match=r"valueSchema='a int': .*column value, which is struct<a:string>"):
        check("value struct<a: string>", topic="t", valueFormat="avro", valueSchema="a int")


def test_packed_rows_have_no_keys_of_their_own() -> None:
    assert check("value struct<a: int>, partition int", topic="t", valueFormat="arrow").partition
    with pytest.raises(ConfigError, match="column key='one per row': expected none with valueFormat=arrow"):
        check("key string, value struct<a: int>", topic="t", valueFormat="arrow")


@pytest.mark.parametrize("writer", [PenstockArrowWriter, PenstockStreamArrowWriter])
def test_a_writer_checks_its_schema_when_it_is_made(writer: type[PenstockArrowWriter]) -> None:
    options = SinkOptions.from_options(SERVERS | {"topic": "t"})
    with pytest.raises(ConfigError, match="column value='int'"):
        writer(options.client, StructType.fromDDL("value int"), options)
