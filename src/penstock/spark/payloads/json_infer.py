"""The schema of a sample of JSON objects: the union of their fields, each of the narrowest type that holds all.

As Spark does: whole numbers are bigint, others double, and a mixture is double; numbers that a bigint cannot hold are
double; fields that differ in any other way are strings, which take any JSON value as its text. A field that was always
null is a string. Dates and times stay strings: a text that looks like one may be something else. Fields keep the order
in which they were first seen.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from .interfaces import BadValue, PayloadError, clip
from .json_record import Number, RecordReader, found_value

# A hostile or odd sample (ids as keys) would make a schema of millions of fields.
MAX_FIELDS = 10_000
LONGEST_BIGINT = 19  # digits of which all fit 64 bits but for the largest; those go through int()


def infer_json(sample: Sequence[bytes]) -> StructType:
    reader = RecordReader(StructType([]))
    merged: DataType = NullType()
    for at, value in enumerate(sample):
        try:
            found = reader.parse(value)
            if type(found) is not dict:
                raise BadValue(f"expected a JSON object, found {found_value(found)}")
            merged = _merge(merged, _type_of(found))
        except (BadValue, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise PayloadError(
                f"no schema can be inferred: record {at} of the sample: {clip(reason)}"
            ) from None
    schema = _settled(merged)
    if not isinstance(schema, StructType) or not schema.fields:
        raise PayloadError(
            f"no schema can be inferred: no field in {len(sample)} sampled records; give valueSchema"
        )
    return schema


def _type_of(value: Any) -> DataType:
    match value:
        case None:
            return NullType()
        case bool():
            return BooleanType()
        case Number():
            return LongType() if _is_bigint(value) else DoubleType()
        case str():
            return StringType()
        case list():
            merged: DataType = NullType()
            for item in value:
                merged = _merge(merged, _type_of(item))
            return ArrayType(merged)
    return StructType([StructField(name, _type_of(v)) for name, v in value.items() if _usable(name)])


def _usable(name: str) -> bool:
    """Whether a key can be a column name: one with half of a surrogate pair cannot."""
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def _is_bigint(text: str) -> bool:
    if set(text) & set(".eENI"):
        return False
    return len(text) < LONGEST_BIGINT or (len(text) <= 20 and -(1 << 63) <= int(text) < 1 << 63)


def _merge(one: DataType, two: DataType) -> DataType:
    if isinstance(one, StructType) and isinstance(two, StructType):
        return _merge_structs(one, two)
    if isinstance(one, ArrayType) and isinstance(two, ArrayType):
        return ArrayType(_merge(one.elementType, two.elementType))
    if isinstance(two, NullType) or one == two:
        return one
    if isinstance(one, NullType):
        return two
    numbers = (LongType, DoubleType)
    return DoubleType() if isinstance(one, numbers) and isinstance(two, numbers) else StringType()


def _merge_structs(one: StructType, two: StructType) -> StructType:
    fields = {f.name: f.dataType for f in one.fields}
    if all(fields.get(f.name) == f.dataType for f in two.fields):
        return one
    for field in two.fields:
        known = fields.get(field.name)
        fields[field.name] = field.dataType if known is None else _merge(known, field.dataType)
    if len(fields) > MAX_FIELDS:
        raise BadValue(
            f"more than {MAX_FIELDS} different fields in one object; use valueSchema with a map type"
        )
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def _settled(kind: DataType) -> DataType:
    """The type without null types and without structs that have no fields: Spark cannot read these back."""
    if isinstance(kind, NullType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_settled(kind.elementType))
    if isinstance(kind, StructType) and kind.fields:
        return StructType([StructField(f.name, _settled(f.dataType)) for f in kind.fields])
    return StringType() if isinstance(kind, StructType) else kind
