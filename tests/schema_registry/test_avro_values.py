"""Values of Avro as JSON: the same as fastavro reads, and bounded for hostile schemas and bytes."""

import base64
import json
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.utils import generate_many
from hypothesis import given
from hypothesis import strategies as st

from penstock.schema_registry.avro_values import MAX_DECIMAL_BYTES, MAX_TYPES, MAX_VALUES, avro_reader
from penstock.schema_registry.problems import BadValue, PayloadError


def record(*fields: tuple[str, Any], name: str = "shop.Order") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": one, "type": kind} for one, kind in fields],
    }


def written(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return out.getvalue()


def read(schema: Any, data: bytes) -> Any:
    return avro_reader(json.dumps(schema))[1](data)


PLAIN = record(
    ("flag", "boolean"),
    ("count", "int"),
    ("id", "long"),
    ("ratio", "double"),
    ("name", "string"),
    ("maybe", ["null", "string", "long"]),
    ("size", {"type": "enum", "name": "Size", "symbols": ["S", "M", "L"]}),
    ("lines", {"type": "array", "items": record(("sku", "string"), ("n", "int"), name="Line")}),
    ("tags", {"type": "map", "values": ["null", "double"]}),
    ("other", ["null", "Line"]),
    ("nothing", "null"),
)


def test_values_are_those_that_fastavro_reads() -> None:
    for value in generate_many(parse_schema(PLAIN), 50):
        data = written(PLAIN, value)
        assert read(PLAIN, data) == schemaless_reader(BytesIO(data), parse_schema(PLAIN), None)


@pytest.mark.parametrize(
    ("kind", "number", "shown"),
    [
        ({"type": "int", "logicalType": "date"}, 20_000, "2024-10-04"),
        ({"type": "int", "logicalType": "time-millis"}, 3_723_004, "01:02:03.004000"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            1_700_000_000_123,
            "2023-11-14T22:13:20.123000Z",
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, -1, "1969-12-31T23:59:59.999999Z"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 0, "1970-01-01T00:00:00"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**62, 2**62),
        ({"type": "int", "logicalType": "time-millis"}, -5, -5),
        ({"type": "long", "logicalType": "unheard-of"}, 7, 7),
        ("long", -(2**63), -(2**63)),
        ("long", 2**63 - 1, 2**63 - 1),
    ],
)
def test_dates_and_times_are_words_and_what_is_none_stays_a_number(
    kind: Any, number: int, shown: Any
) -> None:
    data = written(record(("a", "long")), {"a": number})
    assert read(record(("a", kind)), data) == {"a": shown}


def test_decimals_keep_all_digits_and_bytes_are_base64() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = record(("a", decimal), ("b", "bytes"), ("c", {"type": "fixed", "name": "F", "size": 2}))
    plain = record(("a", "bytes"), ("b", "bytes"), ("c", {"type": "fixed", "name": "F", "size": 2}))
    data = written(plain, {"a": (-12345).to_bytes(2, "big", signed=True), "b": b"\xff", "c": b"hi"})
    assert read(schema, data) == {"a": "-123.45", "b": "/w==", "c": "aGk="}
    whole = record(("a", {**decimal, "scale": 0}))
    assert read(whole, written(record(("a", "bytes")), {"a": b"\x7f" * 8})) == {"a": str(0x7F7F7F7F7F7F7F7F)}


def test_numbers_that_are_none_are_words() -> None:
    schema = record(("a", "float"), ("b", "double"), ("c", "double"))
    data = written(schema, {"a": float("nan"), "b": float("inf"), "c": float("-inf")})
    assert read(schema, data) == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}


def test_a_type_may_contain_itself() -> None:
    schema = record(("n", "int"), ("next", ["null", "Node"]), name="Node")
    value = {"n": 1, "next": {"n": 2, "next": None}}
    assert read(schema, written(schema, value)) == value


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (record(("a", "int")), "shop.Order"),
        ({**record(("a", "int"), name="Order"), "namespace": "store"}, "store.Order"),
        ("string", "string"),
        ({"type": "string"}, "string"),
        ({"type": "array", "items": record(("a", "int"))}, "array"),
        (["null", "int"], "union"),
    ],
)
def test_a_schema_has_a_name(schema: Any, name: str) -> None:
    assert avro_reader(json.dumps(schema))[0] == name


# --- hostile


def test_a_value_that_is_nested_deeply_is_refused() -> None:
    """With fastavro, these bytes end the process."""
    schema = record(("next", ["null", "N"]), name="N")
    with pytest.raises(BadValue, match="nested more than"):
        read(schema, b"\x02" * 1_000_000)


def test_a_value_of_no_bytes_that_contains_itself_is_refused() -> None:
    with pytest.raises(BadValue, match="nested more than"):
        read(record(("next", "N"), name="N"), b"")


@pytest.mark.parametrize("items", ["null", record(("a", "null"), name="Empty")])
def test_items_that_take_no_bytes_are_counted(items: Any) -> None:
    count = written("long", 2**31)
    with pytest.raises(BadValue, match=f"more than {MAX_VALUES} fields"):
        read({"type": "array", "items": items}, count)


def test_types_that_grow_by_reference_cost_no_more_than_the_limit() -> None:
    """Each record has two of the one before: 2**40 records of no bytes."""
    kind: Any = record(("x", "null"), name="R0")
    for level in range(1, 41):
        kind = record(("l", kind), ("r", f"R{level - 1}"), name=f"R{level}")
    with pytest.raises(BadValue, match=f"more than {MAX_VALUES} fields"):
        read(kind, b"")


def test_a_huge_decimal_is_shown_as_bytes() -> None:
    """fastavro takes half a minute for 256 KB, in which no other thread runs."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    largest, larger = b"\x01" * MAX_DECIMAL_BYTES, b"\x01" * (MAX_DECIMAL_BYTES + 1)
    found = read(record(("a", decimal)), written(record(("a", "bytes")), {"a": larger}))
    assert base64.b64decode(found["a"]) == larger
    found = read(record(("a", decimal)), written(record(("a", "bytes")), {"a": largest}))
    assert int(found["a"].replace(".", "")) == int.from_bytes(largest, "big")


def test_every_cut_of_a_value_is_refused() -> None:
    value = next(iter(generate_many(parse_schema(PLAIN), 1)))
    data = written(PLAIN, {**value, "maybe": 7, "tags": {"a": 1.0}, "other": {"sku": "x", "n": 1}})
    for end in range(len(data)):
        with pytest.raises(BadValue):
            read(PLAIN, data[:end])
    with pytest.raises(BadValue, match="1 bytes are left"):
        read(PLAIN, data + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = read(PLAIN, data)
    except BadValue:
        return
    json.dumps(found)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("7", "where a type is expected"),
        ("{}", "without a name"),
        ('"Unheard"', "'Unheard', which is not known"),
        ('{"type": "record", "name": "R"}', "type record without fields"),
        ('{"type": "record", "fields": []}', "without a name"),
        ('{"type": "record", "name": "R", "fields": [7]}', "a field without a name"),
        ('{"type": "enum", "name": "E"}', "type enum without symbols"),
        ('{"type": "fixed", "name": "F", "size": -1}', "fixed of size"),
        ('{"type": "array"}', "where a type is expected"),
        ('{"type": "bytes", "logicalType": "decimal", "scale": 100000000}', "decimal of scale"),
        (json.dumps(record(("a", record(("b", "int"))))), "twice"),
        (json.dumps(["int"] * (MAX_TYPES + 1)), f"more than {MAX_TYPES} types"),
        ('{"type": "array", "items": ' * 60 + '"int"' + "}" * 60, "nested more than"),
    ],
)
def test_schemas_that_are_none_are_refused_in_words(schema: str, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        avro_reader(schema)
