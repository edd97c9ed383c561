"""Avro values: schemas both ways, framings, and bytes that do not match."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings

from penstock.spark.payloads import (
    Decoded,
    PayloadError,
    PayloadOptions,
    decoder_for,
    encoder_for,
    given_schema,
)
from penstock.spark.payloads.avro_from_spark import avro_of
from penstock.spark.payloads.avro_schema import parse_avro
from penstock.spark.payloads.ddl import parse_schema

from .strategies import nested_types, structs

ASCII_NAMES = ("a", "b", "id", "Name", "x_y")


def options(**given: Any) -> PayloadOptions:
    return PayloadOptions(value_format="avro", **given)


def record(*fields: tuple[str, Any]) -> str:
    made = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Top", "namespace": "org.example", "fields": made})


def spark_type(kind: Any) -> str:
    """The Spark type of an Avro field."""
    schema = given_schema(options(value_schema=record(("a", kind))))
    assert schema is not None
    return schema.fields[0].dataType.simpleString()


def written(schema: str, *rows: dict[str, Any]) -> list[bytes]:
    parsed, made = fastavro.parse_schema(json.loads(schema)), []
    for row in rows:
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed, row)
        made.append(sink.getvalue())
    return made


def container(schema: str, rows: list[dict[str, Any]], codec: str = "null") -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(json.loads(schema)), rows, codec=codec, sync_interval=50)
    return sink.getvalue()


def decode(how: PayloadOptions, *values: bytes | None, ddl: str | None = None) -> Decoded:
    schema = parse_schema(ddl) if ddl else given_schema(how)
    assert schema is not None
    return decoder_for("avro", schema, how).decode(pa.array(values, pa.binary()))


@pytest.mark.parametrize(
    ("avro", "spark"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("bytes", "binary"),
        (["null", "int"], "int"),
        (["string", "null"], "string"),
        (["int"], "int"),
        (["null", "int", "long"], "bigint"),
        (["float", "double"], "double"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        (["null", {"type": "long", "logicalType": "local-timestamp-micros"}], "timestamp_ntz"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)"),
        ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 9}, "decimal(9,0)"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "array", "items": ["null", "long"]}, "array<bigint>"),
        ({"type": "map", "values": "double"}, "map<string,double>"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}, "struct<x:int>"),
        ({"type": {"type": "string"}}, "string"),
    ],
)
def test_avro_types_in_spark(avro: Any, spark: str) -> None:
    assert spark_type(avro) == spark


@pytest.mark.parametrize(
    ("avro", "reason"),
    [
        (["int", "string"], "field 'a' of the Avro schema: a union of 2 types"),
        (["null", "org.example.Top"], "contains itself"),
        ("Unheard", "'Unheard' is not known"),
        ({"type": "array", "items": "null"}, "take no bytes"),
        ({"type": "fixed", "name": "F", "size": 0}, "size 0"),
        ({"type": "fixed", "name": "F", "size": 1 << 40}, "size"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60}, "1 to 38 digits"),
        ({"type": "enum", "name": "E", "symbols": []}, "without symbols"),
        ({"type": "record", "name": "R", "fields": []}, "without fields"),
        ("null", "void"),
        (7, "expected a type"),
        ({}, "without a name"),
    ],
)
def test_schemas_that_are_refused_name_the_field(avro: Any, reason: str) -> None:
    with pytest.raises(PayloadError, match="'a'") as caught:
        spark_type(avro)
    assert reason in str(caught.value)


def test_a_schema_that_grows_by_reference_is_bounded() -> None:
    kind: Any = "int"
    fields = []
    for level in range(40):
        pair = [{"name": "l", "type": kind}, {"name": "r", "type": kind if level == 0 else f"R{level}"}]
        kind = {"type": "record", "name": f"R{level + 1}", "fields": pair}
    fields.append(("a", kind))
    with pytest.raises(PayloadError, match="more than 10000 types"):
        given_schema(options(value_schema=record(*fields)))


@settings(max_examples=80, deadline=None)
@given(structs(nested_types(ASCII_NAMES), ASCII_NAMES))
def test_spark_types_round_trip_through_avro(schema: Any) -> None:
    # Avro has neither byte nor short.
    expected = schema.simpleString().replace("tinyint", "int").replace("smallint", "int")
    assert parse_avro(json.dumps(avro_of(schema))).spark.simpleString() == expected


def test_spark_writes_nullable_fields_with_null_last() -> None:
    assert avro_of(parse_schema("a int, b date NOT NULL"))["fields"] == [
        {"name": "a", "type": ["int", "null"]},
        {"name": "b", "type": {"type": "int", "logicalType": "date"}},
    ]


RICH = record(
    ("id", "long"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("again", ["null", "E"]),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    (
        "inner",
        {
            "type": "record",
            "name": "I",
            "fields": [{"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}}],
        },
    ),
    ("more", {"type": "array", "items": "org.example.I"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
)
ROW = {
    "id": 1,
    "e": "B",
    "again": "A",
    "at": 1500,
    "inner": {"f": b"xy"},
    "more": [{"f": b"zz"}],
    "price": Decimal("1.50"),
}


def test_values_of_other_writers_are_read() -> None:
    decoded = decode(options(value_schema=RICH), *written(RICH, ROW, ROW))
    assert decoded.bad == []
    found = decoded.values.to_pylist()[1]
    assert found["at"].isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert {**found, "at": 1500} == ROW


def test_written_values_are_read_by_other_readers() -> None:
    how = options(value_schema=RICH)
    schema = given_schema(how)
    assert schema is not None
    rows = decode(how, *written(RICH, ROW)).values
    value = encoder_for("avro", schema, how).encode(rows)[0].as_py()
    found: Any = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(json.loads(RICH)), None)
    assert found["at"].timestamp() == 1.5
    assert found["price"] == Decimal("1.50")


def test_a_written_container_has_its_logical_types() -> None:
    how = options(avro_framing="container")
    schema = parse_schema("t timestamp, d decimal(9,2)")
    kind = decoder_for("avro", schema, how).arrow_type
    value = (
        encoder_for("avro", schema, how)
        .encode(pa.array([{"t": 1_500_000, "d": Decimal("2.50")}], kind))[0]
        .as_py()
    )
    found: Any = next(iter(fastavro.reader(io.BytesIO(value))))
    assert (found["t"].timestamp(), found["d"]) == (1.5, Decimal("2.50"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: b"", "field 'id': the value ends before the field does"),
        (lambda v: v[:-1], "field 'name': the value ends before the field does"),
        (lambda v: v + b"zz", "2 bytes follow the Avro record"),
        (lambda v: v[:-1] + b"\xff", "field 'name': a string that is not UTF-8"),
        (lambda v: b"\x7e" + v[1:], "field 'id': a union branch or enum symbol"),
    ],
)
def test_bytes_that_do_not_match_name_the_field(change: Any, reason: str) -> None:
    how = options(value_schema="id bigint, name string")
    value = bytes([0, 2, 0, 4]) + b"ab"
    decoded = decode(how, value, change(value), None, value)
    assert [row and row["id"] for row in decoded.values.to_pylist()] == [1, None, None, 1]
    assert decoded.bad[0][0] == 1
    assert reason in decoded.bad[0][1]


def test_each_number_that_does_not_fit_is_its_own_bad_record() -> None:
    schema = record(("a", "int"), ("t", {"type": "long", "logicalType": "timestamp-millis"}))
    wide = record(("a", "long"), ("t", "long"))
    rows = [{"a": i, "t": i} for i in range(200)]
    rows[77] = {"a": 1 << 40, "t": 0}
    rows[99] = {"a": 0, "t": 1 << 62}
    decoded = decode(options(value_schema=schema), *written(wide, *rows))
    assert [at for at, _ in decoded.bad] == [77, 99]
    assert [row and row["a"] for row in decoded.values.to_pylist()] == [
        None if i in (77, 99) else i for i in range(200)
    ]


def test_confluent_framing() -> None:
    bare = written(record(("a", "int")), {"a": 5})[0]
    values = [b"\0\0\0\0\x07" + bare, b"\0\0\0\0\x08" + bare, b"\1\0\0\0\x07" + bare, b"\0\0"]
    anyone = decode(options(value_schema=record(("a", "int")), avro_framing="confluent"), *values)
    assert [at for at, _ in anyone.bad] == [2, 3]
    how = options(value_schema=record(("a", "int")), avro_framing="confluent", avro_schema_ids=frozenset([7]))
    strict = decode(how, *values)
    assert dict(strict.bad)[1] == "the schema id is 8, avroSchemaId allows 7"
    assert [row and row["a"] for row in strict.values.to_pylist()] == [5, None, None, None]


def test_writing_confluent_framing_needs_one_id() -> None:
    with pytest.raises(PayloadError, match="avroSchemaId"):
        encoder_for("avro", parse_schema("a int"), options(avro_framing="confluent"))


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_containers_hold_many_rows_and_their_own_schema(codec: str) -> None:
    schema = record(("a", "int"), ("b", "string"), ("c", "double"))
    value = container(schema, [{"a": i, "b": "x" * i, "c": 0.5} for i in range(20)], codec)
    decoded = decode(options(avro_framing="container"), value, b"junk", None, value, ddl="b string, a bigint")
    assert [at for at, _ in decoded.bad] == [1]
    assert decoded.rows is not None
    assert decoded.rows.to_pylist() == [0] * 20 + [1, 2] + [3] * 20
    assert decoded.values.to_pylist()[-1] == {"b": "x" * 19, "a": 19}


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [("z int", "column 'z': expected int32, found no such column"), ("b int", "column 'b': expected int32")],
)
def test_a_container_whose_schema_does_not_fit(ddl: str, reason: str) -> None:
    value = container(record(("b", "string")), [{"b": "x"}])
    assert reason in decode(options(avro_framing="container"), value, ddl=ddl).bad[0][1]


def test_a_container_that_is_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.payloads.avro_container.MAX_UNPACKED_BYTES", 1_000_000)
    for codec in ("deflate", "snappy"):
        value = container(record(("b", "string")), [{"b": "x" * 900_000}, {"b": "x" * 900_000}], codec)
        assert (
            "unpacks to more than"
            in decode(options(avro_framing="container"), value, ddl="b string").bad[0][1]
        )


def test_a_container_that_counts_rows_of_no_bytes_is_refused() -> None:
    schema = record(("b", "null"))
    decoded = decode(options(avro_framing="container"), container(schema, [{"b": None}]), ddl="b string")
    assert "take no bytes" in decoded.bad[0][1]


def test_a_value_schema_that_is_not_the_columns_is_refused() -> None:
    with pytest.raises(PayloadError, match="they must be the same"):
        decoder_for("avro", parse_schema("b int"), options(value_schema=record(("a", "int"))))


def test_maps_need_string_keys() -> None:
    with pytest.raises(PayloadError, match="field 'a'"):
        decoder_for("avro", parse_schema("a map<int,int>"), options())
