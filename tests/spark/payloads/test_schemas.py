"""Schemas: DDL without a JVM, Spark's JSON, and inference from a sample."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql.types import StructType

from penstock.spark.payloads import PayloadError, PayloadOptions, decoder_for, given_schema, infer_schema
from penstock.spark.payloads.ddl import parse_schema

from .strategies import nested_types, structs
from .test_arrow import stream
from .test_avro import container, record


@settings(max_examples=80, deadline=None)
@given(structs(nested_types()))
def test_ddl_printed_by_spark_is_parsed_back(schema: StructType) -> None:
    assert parse_schema(schema.simpleString()).simpleString() == schema.simpleString()
    assert parse_schema(schema.json()) == schema


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("a INT, b STRING", "struct<a:int,b:string>"),
        ("a: long, b: decimal( 16 , 8 )", "struct<a:bigint,b:decimal(16,8)>"),
        ("struct<a:int>", "struct<a:int>"),
        ("struct int", "struct<struct:int>"),
        ("`a b``c` int", "struct<a b`c:int>"),
        (
            "a decimal, b numeric(4), c char(5), d varchar(9)",
            "struct<a:decimal(10,0),b:decimal(4,0),c:string,d:string>",
        ),
        (
            "a array<map<string,struct<b:array<int>,c:date>>>",
            "struct<a:array<map<string,struct<b:array<int>,c:date>>>>",
        ),
        ("a timestamp_ltz, b timestamp_ntz", "struct<a:timestamp,b:timestamp_ntz>"),
    ],
)
def test_ddl(ddl: str, expected: str) -> None:
    assert parse_schema(ddl).simpleString() == expected


def test_ddl_keeps_not_null_and_comments() -> None:
    schema = parse_schema("a int NOT NULL COMMENT 'it\\'s', b struct<c: int not null>")
    assert (schema["a"].nullable, schema["a"].metadata) == (False, {"comment": "it's"})
    assert schema["b"].dataType["c"].nullable is False  # type: ignore[index]
    kind = decoder_for("json", schema, PayloadOptions()).arrow_type
    assert kind[0].metadata == {b"SPARK::metadata::json": b'{"comment": "it\'s"}'}


@pytest.mark.parametrize(
    "ddl",
    [
        "a",
        "a int,",
        "a foo",
        "a int b int",
        "a decimal(40)",
        "a decimal(5,9)",
        "a array<int",
        "a map<int>",
        "a int)",
    ]
    + [
        "a array int",
        ",",
        "a int NOT",
        "a int COMMENT x",
        "`",
        "a decimal(x)",
        "a " + "array<" * 60,
        '{"type": 1}',
        "{",
    ],
)
def test_a_schema_that_cannot_be_read_says_where(ddl: str) -> None:
    with pytest.raises(PayloadError, match="valueSchema"):
        given_schema(PayloadOptions(value_format="json", value_schema=ddl))


def test_an_avro_schema_is_used_only_with_avro() -> None:
    avro = record(("a", "int"))
    assert given_schema(PayloadOptions(value_format="avro", value_schema=avro)) == parse_schema("a int")
    with pytest.raises(PayloadError):
        given_schema(PayloadOptions(value_format="json", value_schema=avro))
    assert given_schema(PayloadOptions(value_format="json")) is None


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (['{"a":1}', '{"a":2,"b":"x"}'], "a:bigint,b:string"),
        (['{"a":1}', '{"a":1.5}'], "a:double"),
        (['{"a":1}', '{"a":"x"}'], "a:string"),
        (['{"a":1.5}', '{"a":true}'], "a:string"),
        (['{"a":null}'], "a:string"),
        (['{"a":12345678901234567890}'], "a:double"),
        (['{"a":9223372036854775807}'], "a:bigint"),
        (['{"a":[]}', '{"a":[1,2.5]}'], "a:array<double>"),
        (['{"a":{"b":1}}', '{"a":{"c":[{"d":true}]}}'], "a:struct<b:bigint,c:array<struct<d:boolean>>>"),
        (['{"a":{}}', '{"a":{"b":1}}'], "a:struct<b:bigint>"),
        (['{"a":{},"b":1}'], "a:string,b:bigint"),
        (['{"a":{"b":1}}', '{"a":[1]}'], "a:string"),
        (['{"a":NaN}'], "a:double"),
    ],
)
def test_json_samples(sample: list[str], expected: str) -> None:
    values = [text.encode() for text in sample]
    schema = infer_schema("json", values, PayloadOptions())
    assert schema.simpleString() == f"struct<{expected}>"
    # The inferred schema reads its sample.
    assert decoder_for("json", schema, PayloadOptions()).decode(pa.array(values)).bad == []


def test_csv_samples() -> None:
    sample = [b"1,1.5,true,2020-01-01,2020-01-01T00:00:00Z,x,,00", b"2,3,false,2020-01-01,,,,x"]
    schema = infer_schema("csv", sample, PayloadOptions(value_format="csv"))
    expected = "_c0:bigint,_c1:double,_c2:boolean,_c3:date,_c4:timestamp,_c5:string,_c6:string,_c7:string"
    assert schema.simpleString() == f"struct<{expected}>"
    assert decoder_for("csv", schema, PayloadOptions()).decode(pa.array(sample)).bad == []


def test_avro_samples() -> None:
    value = container(record(("a", "int"), ("b", ["null", "string"])), [{"a": 1, "b": None}])
    how = PayloadOptions(value_format="avro", avro_framing="container")
    assert infer_schema("avro", [value, value], how).simpleString() == "struct<a:int,b:string>"
    with pytest.raises(PayloadError, match="avroFraming=none"):
        infer_schema("avro", [value], PayloadOptions(value_format="avro"))


def test_arrow_samples() -> None:
    batch = pa.record_batch(
        {
            "a": pa.array([1], pa.uint16()),
            "b": pa.array(["x"]).dictionary_encode(),
            "c": pa.array([[{"d": 1.5}]], pa.large_list(pa.struct([("d", pa.float32())]))),
            "e": pa.nulls(1),
            "f": pa.array([1], pa.timestamp("ns", "UTC")),
            "g": pa.array([1], pa.timestamp("s")),
        }
    )
    schema = infer_schema("arrow", [stream(batch)] * 2, PayloadOptions())
    expected = "a:int,b:string,c:array<struct<d:float>>,e:string,f:timestamp,g:timestamp_ntz"
    assert schema.simpleString() == f"struct<{expected}>"
    assert all(field.nullable for field in schema)


@pytest.mark.parametrize(
    ("value_format", "sample", "reason"),
    [
        ("json", [b"{}", b"x"], "record 1 of the sample: not valid JSON"),
        ("json", [b"[]"], "record 0 of the sample: expected a JSON object"),
        ("json", [b"{}"], "no field in 1 sampled records"),
        ("csv", [b"1,2", b"1"], "record 1 of the sample: expected 2 columns, found 1"),
        ("csv", [b'"a'], "record 0 of the sample: not a CSV row: a quoted field is not closed"),
        ("arrow", [b"x"], "record 0 of the sample: expected an Arrow IPC stream"),
        (
            "arrow",
            [stream(pa.record_batch({"a": [1]})), stream(pa.record_batch({"b": [1]}))],
            "record 1 of the sample",
        ),
        ("raw", [b"x"], "valueFormat=raw"),
        *[(f, [], "no schema can be inferred") for f in ("json", "csv", "arrow", "avro")],
    ],
)
def test_a_sample_without_a_schema_says_which_record_and_why(
    value_format: str, sample: list[bytes], reason: str
) -> None:
    with pytest.raises(PayloadError, match=reason):
        infer_schema(value_format, sample, PayloadOptions())


def test_a_sample_with_a_field_per_record_is_bounded() -> None:
    sample = [b"{" + b",".join(b'"k%d":1' % (i * 3000 + j) for j in range(3000)) + b"}" for i in range(4)]
    with pytest.raises(PayloadError, match="more than 10000 different fields"):
        infer_schema("json", sample, PayloadOptions())
