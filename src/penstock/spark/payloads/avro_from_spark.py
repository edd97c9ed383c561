"""Spark's types as an Avro schema, as Spark's to_avro writes it.

Nullable is the union [type, null] in that order, decimals are the smallest fixed that holds them, byte and short are
int.
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def avro_of(schema: StructType) -> dict[str, Any]:
    """The Avro schema that Spark's to_avro would write this struct with."""
    return _avro_record(schema, "topLevelRecord", "")


def _avro_record(schema: StructType, name: str, space: str) -> dict[str, Any]:
    inner = f"{space}.{name}" if space else name
    fields = [
        {"name": f.name, "type": _nullable(_avro_type(f.dataType, f.name, inner), f.nullable)}
        for f in schema.fields
    ]
    return {"type": "record", "name": inner, "fields": fields}


def _nullable(avro: Any, nullable: bool) -> Any:
    return [avro, "null"] if nullable else avro


def _avro_type(kind: DataType, name: str, space: str) -> Any:
    match kind:
        case StructType():
            return _avro_record(kind, name, space)
        case ArrayType():
            return {
                "type": "array",
                "items": _nullable(_avro_type(kind.elementType, name, space), kind.containsNull),
            }
        case MapType():
            values = _nullable(_avro_type(kind.valueType, name, space), kind.valueContainsNull)
            return {"type": "map", "values": values}
        case DecimalType():
            return _avro_decimal(kind, f"{space}.{name}.fixed")
    return _AVRO_LEAVES[type(kind)]()


def _avro_decimal(kind: DecimalType, name: str) -> dict[str, Any]:
    # The sign bit and enough bits for 10^precision - 1.
    size = ((10**kind.precision - 1).bit_length() + 8) // 8
    scale = {"precision": kind.precision, "scale": kind.scale}
    return {"type": "fixed", "name": name, "size": size, "logicalType": "decimal", **scale}


_AVRO_LEAVES: dict[type[DataType], Callable[[], Any]] = {
    BooleanType: lambda: "boolean",
    ByteType: lambda: "int",
    ShortType: lambda: "int",
    IntegerType: lambda: "int",
    LongType: lambda: "long",
    FloatType: lambda: "float",
    DoubleType: lambda: "double",
    StringType: lambda: "string",
    BinaryType: lambda: "bytes",
    DateType: lambda: {"type": "int", "logicalType": "date"},
    TimestampType: lambda: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: lambda: {"type": "long", "logicalType": "local-timestamp-micros"},
}
