"""Protobuf values to rows, by a descriptor from a schema registry.

Protobuf to Spark: int32 is int, int64 bigint; unsigned ones are the next larger type (bigint, decimal(20,0)); enums are
strings (a number that has no name is its digits); messages are structs, repeated fields arrays, maps maps;
google.protobuf.Timestamp is a timestamp. A field with presence that is not set is null, one without has its default.
Messages that contain themselves have no Spark type and are refused.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import types

from penstock.schema_registry.framing import WriterSchema
from penstock.schema_registry.protobuf_types import message_type

from .interfaces import BadValue, Decoded, Decoder, PayloadError, clip
from .spark_types import arrow_struct, path_of

MAX_DEPTH: Final = 50
MAX_FIELDS: Final = 10_000
TIMESTAMP: Final = "google.protobuf.Timestamp"

Getter = Callable[[Any], Any]

_SCALARS: Final[dict[int, types.DataType]] = {
    FieldDescriptor.TYPE_BOOL: types.BooleanType(),
    FieldDescriptor.TYPE_STRING: types.StringType(),
    FieldDescriptor.TYPE_BYTES: types.BinaryType(),
    FieldDescriptor.TYPE_ENUM: types.StringType(),
    FieldDescriptor.TYPE_FLOAT: types.FloatType(),
    FieldDescriptor.TYPE_DOUBLE: types.DoubleType(),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32),
        types.IntegerType(),
    ),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64),
        types.LongType(),
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32), types.LongType()),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64), types.DecimalType(20, 0)),
}


class _Field(NamedTuple):
    name: str
    kind: types.DataType
    get: Getter


class ProtobufDecoder(Decoder):
    """Bare messages of one type."""

    def __init__(self, descriptor: Descriptor) -> None:
        fields = _fields(descriptor, "", [0])
        self.spark_type = types.StructType([types.StructField(one.name, one.kind) for one in fields])
        super().__init__(arrow_struct(self.spark_type))
        self._get = _struct_getter(fields)
        self._message = message_factory.GetMessageClass(descriptor)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows: list[dict[str, Any] | None] = []
        bad: list[tuple[int, str]] = []
        for at, value in enumerate(values.to_pylist()):
            rows.append(None)
            if value is None:
                continue
            try:
                rows[-1] = self._row(value)
            except BadValue as error:
                bad.append((at, clip(str(error))))
        return Decoded(pa.array(rows, self.arrow_type), None, bad)

    def _row(self, value: bytes) -> dict[str, Any]:
        message = self._message()
        try:
            message.ParseFromString(value)
        except (DecodeError, UnicodeDecodeError) as error:
            raise BadValue(f"not a Protobuf message of this type: {error}") from None
        row: dict[str, Any] = self._get(message)
        return row


def protobuf_writer(schema: WriterSchema, indexes: tuple[int, ...]) -> ProtobufDecoder:
    return ProtobufDecoder(message_type(schema, indexes))


def _fields(descriptor: Descriptor, path: str, counted: list[int], depth: int = 0) -> list[_Field]:
    if depth > MAX_DEPTH:
        raise PayloadError(
            f"field {path!r}: messages that contain themselves, or are nested too deeply, are not read"
        )
    counted[0] += len(descriptor.fields)
    if counted[0] > MAX_FIELDS:
        raise PayloadError(f"the Protobuf schema has more than {MAX_FIELDS} fields")
    if not descriptor.fields:
        raise PayloadError(f"message {descriptor.full_name} has no fields")
    return [_field(one, path_of(path, one.name), counted, depth) for one in descriptor.fields]


def _field(field: FieldDescriptor, path: str, counted: list[int], depth: int) -> _Field:
    name = field.name
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = (_value(entry.fields_by_name[part], path, counted, depth) for part in ("key", "value"))
        kind: types.DataType = types.MapType(key[0], value[0])
        return _Field(name, kind, _map_getter(name, key[1], value[1], entry.fields_by_name["value"]))
    one, convert = _value(field, path, counted, depth)
    if field.is_repeated:
        return _Field(
            name, types.ArrayType(one), lambda message: [convert(each) for each in getattr(message, name)]
        )
    if field.has_presence:
        return _Field(
            name, one, lambda message: convert(getattr(message, name)) if message.HasField(name) else None
        )
    return _Field(name, one, lambda message: convert(getattr(message, name)))


def _value(
    field: FieldDescriptor, path: str, counted: list[int], depth: int
) -> tuple[types.DataType, Getter]:
    """The type of one value, and its conversion to what Arrow takes."""
    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return types.TimestampType(), _micros
        fields = _fields(message, path, counted, depth + 1)
        struct = types.StructType([types.StructField(one.name, one.kind) for one in fields])
        return struct, _struct_getter(fields)
    kind = _SCALARS[field.type]
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return kind, lambda number: names.get(number, str(number))
    return kind, Decimal if isinstance(kind, types.DecimalType) else _same


def _same(value: Any) -> Any:
    return value


def _micros(moment: Any) -> int:
    micros = moment.seconds * 1_000_000 + moment.nanos // 1_000
    if abs(micros) >= 1 << 63:
        raise BadValue(f"a timestamp of {moment.seconds} seconds does not fit")
    return int(micros)


def _struct_getter(fields: list[_Field]) -> Getter:
    return lambda message: {one.name: one.get(message) for one in fields}


def _map_getter(name: str, key: Getter, value: Getter, values: FieldDescriptor) -> Getter:
    """Reading a message of a map by its key is the way that upb has; items() copies nothing either."""
    return lambda message: [(key(one), value(found)) for one, found in getattr(message, name).items()]
