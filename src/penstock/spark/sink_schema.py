"""The columns of a writer and their types, checked while the query is planned.

As in Spark's Kafka sink: `value` is required, `key`, `topic`, `partition` and `headers` are used where they are, every
other column is ignored. `timestamp` is used on request (useTimestamps), and `value` is a struct with a valueFormat.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.payloads import Encoder, encoder_for, given_schema
from penstock.spark.sink_options import SinkOptions

HEADERS_DDL: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkColumns:
    """The columns that are used. `value` always is."""

    key: bool
    topic: bool
    partition: bool
    headers: bool
    timestamp: bool


def check(schema: StructType, options: SinkOptions) -> SinkColumns:
    """ConfigError names the column that is missing or of a wrong type."""
    types = _types(schema)
    _check_value(types, options)
    _check_topic(types, options)
    if "key" in types and not isinstance(types["key"], StringType | BinaryType):
        raise _wrong("key", types, "string or binary; cast it")
    if "partition" in types and not isinstance(types["partition"], IntegerType):
        raise _wrong("partition", types, "int; cast it")
    if "headers" in types and not _are_headers(types["headers"]):
        raise _wrong("headers", types, HEADERS_DDL)
    if options.use_timestamps and not isinstance(types.get("timestamp"), TimestampType | TimestampNTZType):
        raise _wrong(
            "timestamp", types, "a timestamp, because useTimestamps=true; cast it, or leave that option out"
        )
    columns = SinkColumns(
        key="key" in types,
        topic=options.topic is None,
        partition="partition" in types,
        headers="headers" in types,
        timestamp=options.use_timestamps,
    )
    if options.payload.value_format == "arrow":
        _check_packed(columns)
    return columns


def _types(schema: StructType) -> dict[str, DataType]:
    types: dict[str, DataType] = {}
    for field in schema:
        if field.name in types:
            raise ConfigError(f"column {field.name}", "two of them", "one; rename or drop the other")
        types[field.name] = field.dataType
    return types


def _check_value(types: dict[str, DataType], options: SinkOptions) -> None:
    value, value_format = types.get("value"), options.payload.value_format
    if value_format == "raw":
        if not isinstance(value, StringType | BinaryType):
            raise _wrong(
                "value", types, "string or binary; cast it, or give a valueFormat that encodes a struct"
            )
        return
    if not isinstance(value, StructType):
        raise _wrong(
            "value", types, f"a struct, because valueFormat={value_format}; make one with struct(...)"
        )
    encoder_of(value, options)


def encoder_of(value: DataType, options: SinkOptions) -> Encoder | None:
    """The encoder of the column `value`; None if it is bytes already."""
    payload = options.payload
    if payload.value_format == "raw":
        return None
    assert isinstance(value, StructType)
    given = given_schema(payload)
    if given is not None and given.simpleString() != value.simpleString():
        raise ConfigError(
            "valueSchema",
            payload.value_schema,
            f"the type of the column value, which is {value.simpleString()}",
        )
    # A schema that was given says which fields may be null, and a bare Avro record depends on that: readers with the
    # same valueSchema must be able to read it.
    return encoder_for(payload.value_format, given or value, payload)


def _check_topic(types: dict[str, DataType], options: SinkOptions) -> None:
    if options.topic is not None:
        return
    if "topic" not in types:
        raise ConfigError("topic", None, "the option topic, or a column topic that says where each row goes")
    if not isinstance(types["topic"], StringType):
        raise _wrong("topic", types, "string")


def _are_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    fields = given.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


def _check_packed(columns: SinkColumns) -> None:
    """One record holds many rows, so a row has no key, headers or time of its own."""
    for name, given in (("key", columns.key), ("headers", columns.headers), ("timestamp", columns.timestamp)):
        if given:
            raise ConfigError(
                f"column {name}",
                "one per row",
                "none with valueFormat=arrow, which puts many rows into one record: drop it or make it part of value",
            )


def _wrong(name: str, types: dict[str, DataType], expected: str) -> ConfigError:
    if name in types:
        return ConfigError(f"column {name}", types[name].simpleString(), expected)
    near = next((other for other in types if other.lower() == name), None)
    hint = (
        f" (rename {near}: names are case sensitive)"
        if near
        else f"; the columns are {', '.join(types) or 'none'}"
    )
    return ConfigError(f"column {name}", "missing", expected + hint)
