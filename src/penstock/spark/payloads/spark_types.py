"""Spark's types as the payload formats see them: which are supported, their Arrow twins, and the NOT NULL rule.

Spark compares the schema of every batch it is given with `to_arrow_schema(schema, timezone="UTC")`, so all Arrow types
here come from there and nowhere else.
"""

from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from .interfaces import BadValue, PayloadError, shown

INT_BITS: dict[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
LEAVES: tuple[type[types.DataType], ...] = (
    *INT_BITS,
    types.BooleanType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)


def arrow_struct(schema: types.StructType) -> pa.StructType:
    """The Arrow type of a value column with this schema, exactly as Spark will compare it."""
    return pa.struct(list(to_arrow_schema(schema, timezone="UTC")))


def check_supported(
    schema: types.StructType, value_format: str, refuse: Callable[[types.DataType], str | None]
) -> None:
    """Refuses types that the format cannot carry, at planning time; the error names the column and its type.

    `refuse` says why this format cannot carry a type that others can, or None.
    """
    if not schema.fields:
        raise PayloadError(f"valueFormat={value_format} needs a schema with at least one field; found none")
    _check_struct(schema, "", value_format, refuse)


def _check_struct(
    schema: types.StructType, path: str, value_format: str, refuse: Callable[[types.DataType], str | None]
) -> None:
    seen: set[str] = set()
    for field in schema.fields:
        name = f"{path}.{field.name}" if path else field.name
        if field.name in seen:
            raise PayloadError(
                f"the schema names the field {shown(name)!r} twice; field names must be unique"
            )
        seen.add(field.name)
        _check_type(field.dataType, name, value_format, refuse)


def _check_type(
    kind: types.DataType, path: str, value_format: str, refuse: Callable[[types.DataType], str | None]
) -> None:
    why = refuse(kind)
    if why:
        raise PayloadError(
            f"field {path!r} has the type {kind.simpleString()}, which valueFormat={value_format} "
            f"cannot carry: {why}"
        )
    if isinstance(kind, types.StructType):
        if not kind.fields:
            raise PayloadError(
                f"field {path!r} is a struct without fields, which Arrow and Spark cannot exchange"
            )
        _check_struct(kind, path, value_format, refuse)
    elif isinstance(kind, types.ArrayType):
        _check_type(kind.elementType, f"{path}[]", value_format, refuse)
    elif isinstance(kind, types.MapType):
        _check_type(kind.keyType, f"{path}.key", value_format, refuse)
        _check_type(kind.valueType, f"{path}.value", value_format, refuse)
    elif type(kind) not in LEAVES:
        raise PayloadError(
            f"field {path!r} has the type {kind.simpleString()}, which valueFormat={value_format} cannot carry; "
            "use a boolean, number, decimal, string, binary, date, timestamp, array, map or struct"
        )


def promises_values(kind: pa.DataType) -> bool:
    """Whether some field inside is NOT NULL, so that `broken_promise` has something to check."""
    return any(not f.nullable or promises_values(f.type) for f in _inner_fields(kind))


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def broken_promise(array: pa.Array, kind: pa.DataType, path: str = "") -> str | None:
    """The first NOT NULL field that is null although its parent is not, if there is one."""
    if not promises_values(kind):
        return None
    array = array.drop_null() if array.null_count else array
    for field, child in zip(_inner_fields(kind), _inner_arrays(array, kind), strict=True):
        name = path_of(path, field.name) if pa.types.is_struct(kind) else f"{path}[]"
        if not field.nullable and child.null_count:
            return name
        found = broken_promise(child, field.type, name)
        if found is not None:
            return found
    return None


def check_promises(array: pa.Array, kind: pa.DataType) -> None:
    found = broken_promise(array, kind)
    if found is not None:
        raise BadValue(f"field {shown(found)!r}: expected NOT NULL, found null")


def _inner_arrays(array: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    if pa.types.is_struct(kind):
        # flatten() applies the parent's offset (and its nulls, of which there are none here).
        return cast(list[pa.Array], array.flatten())
    if pa.types.is_map(kind):
        # As a list of structs, so that flatten() respects the offset.
        entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        return [pc.struct_field(entries.flatten(), 1)]
    return [array.flatten()]


def path_of(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def described(kind: types.DataType, nullable: bool = True) -> str:
    return kind.simpleString() + ("" if nullable else " NOT NULL")
