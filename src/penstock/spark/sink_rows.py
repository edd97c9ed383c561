"""Arrow's columns in the encoder's format: views of the same buffers, for any slice.

Compiled code indexes `bytes`, so each buffer is copied once, as a whole: 10 GB/s, where a Python object per row would
make 0.1. Strings and binaries have the same buffers, so nothing is converted; the 64-bit kinds and views are.
"""

from struct import unpack_from
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch.producing import Column, HeaderColumn
from penstock.errors import PenstockError

INT32_BYTES: Final = 4
PLAIN: Final = (pa.binary(), pa.string())


class BadRow(PenstockError):
    """A row that cannot become a record: says which and why."""


def column_of(array: pa.Array) -> Column:
    """A column of strings or binaries."""
    if pa.types.is_null(array.type) or not len(array):
        return Column()
    if array.type not in PLAIN:
        array = array.cast(pa.binary())
    validity, offsets, data = array.buffers()
    rows, first = len(array), array.offset
    ends = offsets.slice(first * INT32_BYTES, (rows + 1) * INT32_BYTES).to_pybytes()
    (start,) = unpack_from("<i", ends)
    (end,) = unpack_from("<i", ends, rows * INT32_BYTES)
    content = data.slice(start, end - start).to_pybytes() if data is not None else b""
    if not array.null_count:
        return Column(ends, content, start)
    bits = validity.slice(first // 8, (first % 8 + rows + 7) // 8).to_pybytes()
    return Column(ends, content, start, bits, first % 8)


def header_column_of(array: pa.Array) -> HeaderColumn | None:
    """A column of lists of (key, value); None if no row has any."""
    if pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if array.null_count:
        # The offsets of a null list are undefined; those of an empty one are equal.
        array = pc.if_else(array.is_valid(), array, pa.scalar([], array.type))
    ends = array.offsets
    start, end = ends[0].as_py(), ends[-1].as_py()
    if start == end:
        return None
    names, values = array.values.slice(start, end - start).flatten()
    if names.null_count:
        raise BadRow("headers: a header without a key; expected a string in every one")
    return HeaderColumn(_int32_bytes(ends), start, column_of(names), column_of(values))


def times_of(array: pa.Array, now_ms: int) -> bytes:
    """An int64 per row, in ms; the present where there is none."""
    zoned = array.type.tz is not None
    in_ms = array.cast(pa.timestamp("ms", tz="UTC" if zoned else None), safe=False)
    return bytes(_fixed_bytes(in_ms.view(pa.int64()).fill_null(now_ms), 8))


def topics_of(array: pa.Array) -> tuple[list[str], bytes]:
    """The topics that occur, and an int32 per row: which of them it is."""
    if array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise BadRow(
            f"topic: null in row {row} of a batch of {len(array)}; expected a name in every row, or the option topic"
        )
    encoded = array.dictionary_encode()
    return encoded.dictionary.to_pylist(), _int32_bytes(encoded.indices)


def partitions_of(array: pa.Array, by_key: bytes, rows: bytes, topic: str, count: int) -> bytes:
    """The partition that each selected row names; that of its key where it names none."""
    if rows:
        array = array.take(_int32_array(rows))
    bounds = pc.min_max(array)
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    if lowest is None:
        return by_key
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise BadRow(
            f"partition={wrong}: expected 0 .. {count - 1}, the partitions of topic {topic!r}, or null"
        )
    return _int32_bytes(pc.coalesce(array, _int32_array(by_key)) if array.null_count else array)


def rows_taken(array: pa.Array, rows: bytes) -> pa.Array:
    """The selected rows of a column; all of them if nothing is selected."""
    return array.take(_int32_array(rows)) if rows else array


def _int32_array(numbers: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(numbers) // INT32_BYTES, [None, pa.py_buffer(numbers)])


def _int32_bytes(array: pa.Array) -> bytes:
    return bytes(_fixed_bytes(array, INT32_BYTES))


def _fixed_bytes(array: pa.Array, width: int) -> bytes:
    buffer = array.buffers()[1]
    return (
        b"" if buffer is None else bytes(buffer.slice(array.offset * width, len(array) * width).to_pybytes())
    )
