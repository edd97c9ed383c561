"""The schema of a sample of Arrow IPC values: their own schemas, in Spark's types."""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from .arrow_read import aligned
from .interfaces import BadValue, PayloadError, clip, shown
from .ipc_scan import scan

# Arrow types that Spark's own table lacks, and the narrowest Spark type that holds all of their values.
_WIDER: dict[pa.DataType, DataType] = {
    pa.uint8(): ShortType(),
    pa.uint16(): IntegerType(),
    pa.uint32(): LongType(),
    pa.float16(): FloatType(),
    pa.date64(): DateType(),
    pa.string_view(): StringType(),
    pa.null(): StringType(),
}


def infer_arrow(sample: Sequence[bytes]) -> StructType:
    """The schema that all records of the sample have. They must agree; their columns may be in any order."""
    first: StructType | None = None
    for at, value in enumerate(sample):
        try:
            found = _schema_of(value)
        except BadValue as error:
            raise PayloadError(
                f"no schema can be inferred: record {at} of the sample: {clip(str(error))}"
            ) from None
        if first is None:
            first = found
        elif _by_name(first) != _by_name(found):
            raise PayloadError(
                f"no schema can be inferred: record {at} of the sample has the schema {shown(found.simpleString())}, "
                f"the first one {shown(first.simpleString())}; give valueSchema"
            )
    if first is None or not first.fields:
        raise PayloadError("no schema can be inferred: the sample has no columns; give valueSchema")
    return first


def _by_name(schema: StructType) -> dict[str, DataType]:
    return {field.name: field.dataType for field in schema.fields}


def _schema_of(value: bytes) -> StructType:
    claim = scan(memoryview(value))
    try:
        with pa.ipc.open_stream(aligned(pa.py_buffer(value)).slice(claim.start)) as stream:
            return StructType([StructField(f.name, spark_type(f.type)) for f in stream.schema])
    except (pa.ArrowException, OSError, ValueError, PySparkException, RecursionError) as error:
        raise BadValue(str(error)) from None


def spark_type(kind: pa.DataType) -> DataType:
    """The type with every field nullable: other writers may write nulls even if those of the sample do not."""
    types = pa.types
    if types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if types.is_struct(kind):
        return StructType([StructField(f.name, spark_type(f.type)) for f in kind])
    if types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if types.is_decimal(kind) and not (kind.precision <= 38 and 0 <= kind.scale <= kind.precision):
        raise BadValue(f"Spark has no type for {kind}: its decimals have at most 38 digits")
    return _WIDER[kind] if kind in _WIDER else from_arrow_type(kind)
