"""JSON values to Arrow: Arrow's own JSON reader over a whole block, with guards that make it safe and exact.

The values of a block are joined with newlines and read in one go with an explicit schema. Why row i is then record i:

1. Every value begins with `{` and ends with `}`, and is valid UTF-8.
2. A JSON string cannot hold a raw newline, so no string reaches across the newline between two values.
3. After a `}` that closes an object inside another one only `,` `}` or `]` may follow. The next value begins with `{`:
   so each value's last `}` closes a document, and each value is one document or several.
4. The reader gives as many rows as documents. As many rows as values means one document in each.

The reader is not made for hostile input, so these never reach it:

* `null` as a document of its own crashes the process. By 1 and 3 it can only stand after a `}`.
* Nesting is recursion, and deep enough it overflows the stack; MAX_OPENINGS bounds it.
* Invalid UTF-8 would pass unseen.

Numbers that are not finite are sent to the careful reader (json_record), because Spark's from_json treats them
differently. Records that Arrow's reader refuses go there too, for a second check or a reason.
"""

import binascii
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.types import DataType, MapType, StringType, StructType

from .base import BlockDecoder
from .json_record import RecordReader
from .spark_types import arrow_struct, broken_promise, check_supported

# Values with more `{` and `[` than this are read with care (the careful reader knows how deep it is). Arrow's reader
# takes a few hundred bytes of stack for each level; Python's own limit is about 1000.
MAX_OPENINGS = 500
# The shortest value with more than MAX_OPENINGS levels: counting is only needed above this.
DEEP_BYTES = 2 * MAX_OPENINGS
# `null` after a document, with JSON's white space between them; and Inf, which is no JSON even to Spark.
STRAYS = r"\}[ \t\r\n]*null|[:,\[][ \t\r\n]*-?Inf[ \t\r\n,}\]]"


def json_refusal(kind: DataType) -> str | None:
    if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
        return "the keys of a JSON object are strings; use map<string,...>"
    return None


class JsonDecoder(BlockDecoder):
    def __init__(self, schema: StructType) -> None:
        check_supported(schema, "json", json_refusal)
        super().__init__(arrow_struct(schema))
        self._schema = schema
        self._reader = RecordReader(schema)
        # Arrow's reader has no maps: such schemas are read record by record.
        self._has_map = _contains_map(self.arrow_type)
        parsed = pa.schema([f.with_type(_parsed_type(f.type)).with_nullable(True) for f in self.arrow_type])
        self._parse = pj.ParseOptions(
            explicit_schema=parsed, newlines_in_values=True, unexpected_field_behavior="ignore"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonDecoder, (
            self._schema,
        )  # the readers are closures, which pickle cannot carry to executors

    def _record(self, value: bytes) -> dict[str, Any]:
        return self._reader.read(value)

    def _block(self, values: pa.BinaryArray) -> pa.StructArray | None:
        if self._has_map:
            return None
        values = _trimmed(values)
        if values is None or not _looks_safe(values):
            return None
        try:
            table = self._read(values)
            if table.num_rows != len(values):
                return None
            rows = _finished(_struct_of(table), self.arrow_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, _NotFiniteError):
            return None
        return rows if broken_promise(rows, self.arrow_type) is None else None

    def _read(self, values: pa.BinaryArray) -> pa.Table:
        lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        joined = pc.binary_join(lines, b"\n").buffers()[2]
        # One block, so that no value is cut; one thread, because Spark gives each task one core.
        how = pj.ReadOptions(use_threads=False, block_size=joined.size + 1)
        return pj.read_json(pa.BufferReader(joined), read_options=how, parse_options=self._parse)


class _NotFiniteError(Exception):
    """A block holds NaN or infinity: the careful reader decides about its records."""


def _trimmed(values: pa.BinaryArray) -> pa.BinaryArray | None:
    """The values without white space around them if all are UTF-8 and objects from the first byte to the last."""
    try:
        texts = values.cast(pa.string())  # checks UTF-8; copies nothing
    except pa.ArrowInvalid:
        return None
    if not _all_objects(values):
        values = pc.utf8_trim(texts, " \t\r\n").cast(pa.binary())
    return values if _all_objects(values) else None


def _all_objects(values: pa.BinaryArray) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))).as_py())


def _looks_safe(values: pa.BinaryArray) -> bool:
    """Whether the values have no stray `null` or `Inf` and are not nested too deeply for Arrow's reader."""
    if pc.any(pc.match_substring_regex(values, STRAYS)).as_py():
        return False
    long = values.filter(pc.greater(pc.binary_length(values), DEEP_BYTES))
    openings = pc.add(pc.count_substring(long, "{"), pc.count_substring(long, "["))
    return (pc.max(openings).as_py() or 0) <= MAX_OPENINGS


def _contains_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    inner = list(kind) if pa.types.is_struct(kind) else [kind.value_field] if pa.types.is_list(kind) else []
    return any(_contains_map(f.type) for f in inner)


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """The schema for Arrow's reader: dates, times and binary are strings in JSON and are converted afterwards."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _parsed_type(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _parsed_type(kind.value_type)))
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    return kind


def _struct_of(table: pa.Table) -> pa.StructArray:
    columns = [_one_chunk(column) for column in table.columns]
    return pa.StructArray.from_arrays(columns, fields=list(table.schema))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _finished(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts from the type that was read to the type that Spark compares, with its nullability and metadata."""
    if pa.types.is_struct(kind):
        parts = [_finished(array.field(i), f.type) for i, f in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_mask(array))
    if pa.types.is_list(kind):
        parts = _finished(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, parts, type=kind, mask=_mask(array))
    if pa.types.is_timestamp(kind):
        return timestamps_of(array, kind)
    if pa.types.is_binary(kind):
        return _from_base64(array)
    if (
        pa.types.is_floating(kind)
        and not pc.all(pc.is_finite(array)).as_py()
        and len(array) > array.null_count
    ):
        raise _NotFiniteError
    if pa.types.is_decimal(kind):
        array.validate(full=True)  # the reader lets more digits pass than the precision has
    return array if array.type == kind else array.cast(kind)


def _mask(array: pa.Array) -> pa.BooleanArray | None:
    return array.is_null() if array.null_count else None


def timestamps_of(array: pa.StringArray, kind: pa.TimestampType) -> pa.TimestampArray:
    """Reads ISO 8601. If the column has a zone, a text without one is taken as UTC (Spark takes its session's zone)."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        if kind.tz is None:
            raise
    return array.cast(pa.timestamp("us")).cast(kind)


def _from_base64(array: pa.StringArray) -> pa.BinaryArray:
    decode = binascii.a2b_base64
    texts = array.to_pylist()
    return pa.array([None if t is None else decode(t, strict_mode=True) for t in texts], pa.binary())
