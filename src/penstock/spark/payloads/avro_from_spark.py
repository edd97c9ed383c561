"""Spark's types as an Avro schema, as Spark's to_avro writes it.

Nullable is the union [type, null] in that order, decimals are the smallest fixed that holds them, byte and short are
int.
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql import types


def avro_of(schema: types.StructType) -> dict[str, Any]:
    """The Avro schema that Spark's to_avro would write this struct with."""
    return _avro_record(schema, "topLevelRecord", "")


def _avro_record(schema: types.StructType, name: str, space: str) -> dict[str, Any]:
    inner = f"{space}.{name}" if space else name
    fields = [
        {"name": f.name, "type": _nullable(_avro_type(f.dataType, f.name, inner), f.nullable)}
        for f in schema.fields
    ]
    return {"type": "record", "name": inner, "fields": fields}


def _nullable(avro: Any, nullable: bool) -> Any:
    return [avro, "null"] if nullable else avro


def _avro_type(kind: types.DataType, name: str, space: str) -> Any:
    match kind:
        case types.StructType():
            return _avro_record(kind, name, space)
        case types.ArrayType():
            return {
                "type": "array",
                "items": _nullable(_avro_type(kind.elementType, name, space), kind.containsNull),
            }
        case types.MapType():
            values = _nullable(_avro_type(kind.valueType, name, space), kind.valueContainsNull)
            return {"type": "map", "values": values}
        case types.DecimalType():
            return _avro_decimal(kind, f"{space}.{name}.fixed")
    return _AVRO_LEAVES[type(kind)]()


def _avro_decimal(kind: types.DecimalType, name: str) -> dict[str, Any]:
    # The sign bit and enough bits for 10^precision - 1.
    size = ((10**kind.precision - 1).bit_length() + 8) // 8
    scale = {"precision": kind.precision, "scale": kind.scale}
    return {"type": "fixed", "name": name, "size": size, "logicalType": "decimal", **scale}


_AVRO_LEAVES: dict[type[types.DataType], Callable[[], Any]] = {
    types.BooleanType: lambda: "boolean",
    types.ByteType: lambda: "int",
    types.ShortType: lambda: "int",
    types.IntegerType: lambda: "int",
    types.LongType: lambda: "long",
    types.FloatType: lambda: "float",
    types.DoubleType: lambda: "double",
    types.StringType: lambda: "string",
    types.BinaryType: lambda: "bytes",
    types.DateType: lambda: {"type": "int", "logicalType": "date"},
    types.TimestampType: lambda: {"type": "long", "logicalType": "timestamp-micros"},
    types.TimestampNTZType: lambda: {"type": "long", "logicalType": "local-timestamp-micros"},
}
