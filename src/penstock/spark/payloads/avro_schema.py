"""Avro schemas as Spark's types. Schemas that hostile data could abuse are refused.

Avro to Spark, as Spark's SchemaConverters has it: a union with null is its other branch; int|long is bigint and
float|double is double; other unions are refused. enum and uuid are strings, fixed is binary. The reader's result is
nullable throughout.

Dates and timestamps are read and written as plain numbers (their logical types are taken off) and converted for a whole
column at once. Schemas may come from the data (object containers), so they are bounded: no recursion, no arrays of
items that take no bytes (four bytes could claim a billion), a limit on size and depth.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from .interfaces import PayloadError, shown
from .spark_types import path_of

MAX_NODES = 10_000
MAX_DEPTH = 50
MAX_FIXED_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One Avro type: its Spark type, its fastavro schema, and its Arrow type."""

    spark: types.DataType
    avro: Any
    parsed: pa.DataType  # Arrow's type for the values that fastavro returns
    min_bytes: int
    unit: str = ""  # the unit of a timestamp: ms, us or ns
    children: tuple["Shape", ...] = ()
    nodes: int = 1


@dataclass(kw_only=True, slots=True)
class _Names:
    """Named types by full name; None while a type is being read, so that recursion is noticed."""

    known: dict[str, Shape | None] = field(default_factory=dict)


_PRIMITIVES: dict[str, tuple[type[types.DataType], pa.DataType, int]] = {
    "boolean": (types.BooleanType, pa.bool_(), 1),
    "int": (types.IntegerType, pa.int32(), 1),
    "long": (types.LongType, pa.int64(), 1),
    "float": (types.FloatType, pa.float32(), 4),
    "double": (types.DoubleType, pa.float64(), 8),
    "string": (types.StringType, pa.string(), 1),
    "bytes": (types.BinaryType, pa.binary(), 1),
    "null": (types.NullType, pa.null(), 0),
}
_TIMESTAMPS: dict[str, tuple[type[types.DataType], str]] = {
    "timestamp-millis": (types.TimestampType, "ms"),
    "timestamp-micros": (types.TimestampType, "us"),
    "timestamp-nanos": (types.TimestampType, "ns"),
    "local-timestamp-millis": (types.TimestampNTZType, "ms"),
    "local-timestamp-micros": (types.TimestampNTZType, "us"),
    "local-timestamp-nanos": (types.TimestampNTZType, "ns"),
}


def looks_like_avro(text: str) -> bool:
    """Whether a valueSchema is Avro's: Spark's own JSON says "struct" where Avro says "record"."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("type") != "struct"


def parse_avro(text: str) -> Shape:
    """The shape of a record schema; PayloadError names the field that cannot be read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the Avro schema {shown(text)!r} is not JSON: {shown(error)}") from None
    shape = _shape(found, "", "", _Names(), 0)
    if not isinstance(shape.spark, types.StructType):
        raise PayloadError(f"expected an Avro schema of type record, found {shape.spark.simpleString()}")
    return shape


def _shape(schema: Any, path: str, space: str, names: _Names, depth: int) -> Shape:
    if depth > MAX_DEPTH:
        raise PayloadError(f"the Avro schema is nested more than {MAX_DEPTH} levels deep")
    if isinstance(schema, list):
        made = _union(schema, path, space, names, depth)
    elif isinstance(schema, str):
        made = (
            _primitive(schema, {}, path) if schema in _PRIMITIVES else _reference(schema, path, space, names)
        )
    elif isinstance(schema, dict):
        made = _object(schema, path, space, names, depth)
    else:
        raise _wrong(path, f"expected a type, found {shown(schema)!r}")
    if made.nodes > MAX_NODES:
        raise PayloadError(f"the Avro schema has more than {MAX_NODES} types")
    return made


def _object(schema: Mapping[str, Any], path: str, space: str, names: _Names, depth: int) -> Shape:
    kind = schema.get("type")
    match kind:
        case "record" | "error":
            return _record(schema, path, space, names, depth)
        case "enum" | "fixed":
            return _named_leaf(schema, path, space, names)
        case "array":
            items = _shape(schema.get("items"), f"{path}[]", space, names, depth + 1)
            if not items.min_bytes:
                raise _wrong(path, "an array of items that take no bytes")
            return _collection(
                types.ArrayType(items.spark), {**schema, "items": items.avro}, pa.list_(items.parsed), items
            )
        case "map":
            values = _shape(schema.get("values"), f"{path}.value", space, names, depth + 1)
            spark = types.MapType(types.StringType(), values.spark)
            return _collection(
                spark, {**schema, "values": values.avro}, pa.map_(pa.string(), values.parsed), values
            )
        case str() if kind in _PRIMITIVES:
            return _primitive(kind, schema, path)
    if kind is None:
        raise _wrong(path, "a type without a name")
    return _shape(kind, path, space, names, depth + 1)


def _collection(spark: types.DataType, avro: Any, parsed: pa.DataType, inner: Shape) -> Shape:
    return Shape(spark=spark, avro=avro, parsed=parsed, min_bytes=1, children=(inner,), nodes=inner.nodes + 1)


def _record(schema: Mapping[str, Any], path: str, space: str, names: _Names, depth: int) -> Shape:
    name, space = _full_name(schema, path, space, names)
    fields = schema.get("fields")
    if not isinstance(fields, list) or not fields:
        raise _wrong(path, "a record without fields")
    children: list[Shape] = []
    labels: list[str] = []
    for one in fields:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
            raise _wrong(path, f"a field without name or type: {shown(one)!r}")
        labels.append(one["name"])
        children.append(_shape(one["type"], path_of(path, one["name"]), space, names, depth + 1))
    made = Shape(
        spark=types.StructType(
            [types.StructField(n, c.spark) for n, c in zip(labels, children, strict=True)]
        ),
        avro={
            "type": "record",
            "name": name,
            "fields": [{"name": n, "type": c.avro} for n, c in zip(labels, children, strict=True)],
        },
        parsed=pa.struct([pa.field(n, c.parsed) for n, c in zip(labels, children, strict=True)]),
        min_bytes=sum(c.min_bytes for c in children),
        children=tuple(children),
        nodes=1 + sum(c.nodes for c in children),
    )
    names.known[name] = made
    return made


def _full_name(schema: Mapping[str, Any], path: str, space: str, names: _Names) -> tuple[str, str]:
    """The full name and namespace of a named type, which is noted as one that is being read."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(path, "a named type without a name")
    own = schema.get("namespace", space)
    if not isinstance(own, str):
        raise _wrong(path, f"the namespace {shown(own)!r} is no string")
    full = name if "." in name or not own else f"{own}.{name}"
    if full in names.known:
        raise _wrong(path, f"the type {shown(full)!r} is defined twice")
    names.known[full] = None
    return full, full.rpartition(".")[0]


def _reference(name: str, path: str, space: str, names: _Names) -> Shape:
    full = name if "." in name or not space else f"{space}.{name}"
    full = full if full in names.known else name
    if full not in names.known:
        raise _wrong(path, f"the type {shown(name)!r} is not known")
    known = names.known[full]
    if known is None:
        raise _wrong(path, f"the type {shown(name)!r} contains itself, which Spark has no type for")
    return Shape(
        spark=known.spark,
        avro=full,
        parsed=known.parsed,
        min_bytes=known.min_bytes,
        unit=known.unit,
        children=known.children,
        nodes=known.nodes,
    )


def _named_leaf(schema: Mapping[str, Any], path: str, space: str, names: _Names) -> Shape:
    name, _ = _full_name(schema, path, space, names)
    if schema["type"] == "enum":
        made = _enum(schema, name, path)
    else:
        made = _fixed(schema, name, path)
    names.known[name] = made
    return made


def _enum(schema: Mapping[str, Any], name: str, path: str) -> Shape:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not symbols or not all(isinstance(s, str) for s in symbols):
        raise _wrong(path, "an enum without symbols")
    avro = {"type": "enum", "name": name, "symbols": symbols}
    return Shape(spark=types.StringType(), avro=avro, parsed=pa.string(), min_bytes=1)


def _fixed(schema: Mapping[str, Any], name: str, path: str) -> Shape:
    size = schema.get("size")
    if not isinstance(size, int) or not 1 <= size <= MAX_FIXED_BYTES:
        raise _wrong(path, f"a fixed of size {shown(size)}; expected 1 to {MAX_FIXED_BYTES}")
    avro = {"type": "fixed", "name": name, "size": size}
    decimal = _decimal(schema, path)
    if decimal is None:
        return Shape(spark=types.BinaryType(), avro=avro, parsed=pa.binary(), min_bytes=size)
    return _decimal_shape(decimal, avro, size)


def _primitive(kind: str, schema: Mapping[str, Any], path: str) -> Shape:
    spark, parsed, min_bytes = _PRIMITIVES[kind]
    logical = schema.get("logicalType")
    if kind == "int" and logical == "date":
        return Shape(spark=types.DateType(), avro=kind, parsed=parsed, min_bytes=min_bytes)
    if kind == "long" and logical in _TIMESTAMPS:
        stamp, unit = _TIMESTAMPS[logical]
        return Shape(spark=stamp(), avro=kind, parsed=parsed, min_bytes=min_bytes, unit=unit)
    decimal = _decimal(schema, path) if kind == "bytes" else None
    if decimal is not None:
        return _decimal_shape(decimal, {"type": "bytes"}, 1)
    return Shape(spark=spark(), avro=kind, parsed=parsed, min_bytes=min_bytes)


def _decimal(schema: Mapping[str, Any], path: str) -> types.DecimalType | None:
    if schema.get("logicalType") != "decimal":
        return None
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise _wrong(path, "a decimal without precision")
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise _wrong(path, f"decimal({precision},{scale}), but Spark's decimals have 1 to 38 digits")
    return types.DecimalType(precision, scale)


def _decimal_shape(kind: types.DecimalType, avro: dict[str, Any], min_bytes: int) -> Shape:
    marked = {**avro, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return Shape(
        spark=kind, avro=marked, parsed=pa.decimal128(kind.precision, kind.scale), min_bytes=min_bytes
    )


def _union(branches: list[Any], path: str, space: str, names: _Names, depth: int) -> Shape:
    shapes = [_shape(b, path, space, names, depth + 1) for b in branches]
    real = [s for s in shapes if not isinstance(s.spark, types.NullType)]
    avro = [s.avro for s in shapes]
    nodes = 1 + sum(s.nodes for s in shapes)
    if len(real) == 1:
        one = real[0]
        return Shape(
            spark=one.spark,
            avro=avro,
            parsed=one.parsed,
            min_bytes=1,
            unit=one.unit,
            children=one.children,
            nodes=nodes,
        )
    kinds = {type(s.spark) for s in real}
    if kinds == {types.IntegerType, types.LongType}:
        return Shape(spark=types.LongType(), avro=avro, parsed=pa.int64(), min_bytes=1, nodes=nodes)
    if kinds == {types.FloatType, types.DoubleType}:
        return Shape(spark=types.DoubleType(), avro=avro, parsed=pa.float64(), min_bytes=1, nodes=nodes)
    raise _wrong(path, f"a union of {len(real)} types; expected one type with or without null")


def _wrong(path: str, what: str) -> PayloadError:
    where = f"field {shown(path)!r} of the Avro schema" if path else "the Avro schema"
    return PayloadError(f"{where}: {what}")
