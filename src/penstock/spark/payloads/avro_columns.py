"""Converts between the Python rows of fastavro and the Arrow columns of Spark, a whole column at a time."""

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from .avro_schema import Shape


def columns_of(rows: list[dict[str, Any]], shape: Shape, wanted: pa.StructType) -> pa.StructArray:
    """Arrow columns from rows as fastavro reads them; pa.ArrowException if a number does not fit its type."""
    assert isinstance(shape.spark, StructType)
    parts = [
        _finished(pa.array([row[name] for row in rows], child.parsed), child, field.type)
        for name, child, field in zip(shape.spark.names, shape.children, wanted, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(wanted))


def _finished(array: pa.Array, shape: Shape, wanted: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(wanted):
        inner = zip(shape.children, wanted, strict=True)
        parts = [_finished(array.field(i), child, f.type) for i, (child, f) in enumerate(inner)]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
    if pa.types.is_list(wanted):
        items = _finished(array.values, shape.children[0], wanted.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=wanted, mask=mask)
    if pa.types.is_map(wanted):
        items = _finished(array.items, shape.children[0], wanted.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=wanted, mask=mask)
    if shape.unit:
        # Nanoseconds are cut to microseconds, as Spark does; milliseconds that overflow are an error.
        return (
            array.cast(pa.timestamp(shape.unit))
            .cast(pa.timestamp("us"), safe=shape.unit != "ns")
            .cast(wanted)
        )
    return array if array.type == wanted else array.cast(wanted)


def rows_of(values: pa.StructArray, shape: Shape) -> list[dict[str, Any] | None]:
    """Rows as fastavro writes them: times as numbers, maps as dicts."""
    rows: list[dict[str, Any] | None] = _raw(values, shape).to_pylist(maps_as_pydicts="strict")
    return rows


def _raw(array: pa.Array, shape: Shape) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [_raw(a, child) for a, child in zip(array.flatten(), shape.children, strict=True)]
        return pa.StructArray.from_arrays(parts, names=[f.name for f in kind], mask=mask)
    if pa.types.is_list(kind):
        whole = _from_zero(array)
        return pa.ListArray.from_arrays(whole.offsets, _raw(whole.values, shape.children[0]), mask=mask)
    if pa.types.is_map(kind):
        whole = _from_zero(array)
        items = _raw(whole.items, shape.children[0])
        return pa.MapArray.from_arrays(whole.offsets, whole.keys, items, mask=mask)
    if isinstance(shape.spark, TimestampType | TimestampNTZType):
        return array.cast(pa.timestamp("us")).cast(pa.timestamp(shape.unit), safe=False).cast(pa.int64())
    return array if array.type == shape.parsed else array.cast(shape.parsed)


def _from_zero(array: pa.Array) -> pa.Array:
    """The array without an offset into its buffers: from_arrays accepts no mask for an array with an offset."""
    return array if array.offset == 0 else pa.concat_arrays([array, array.slice(0, 0)])
