"""Records as Python objects: encoded to the bytes that `_scan.py` describes, and decoded from the columns it returns.

mypyc compiles this file too.
"""

from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter, read_i32_le, read_i64_le
from mypy_extensions import i64, u8

from penstock.batch._scan import NULL_KEY, NULL_VALUE, Columns

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[int, int, bytes | None, bytes | None, Headers]
"""offset, timestamp, key, value, headers: a Record is one."""

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


def encode_rows(rows: Sequence[Row], base_offset: int, base_timestamp: int) -> bytes:
    """The records one after the other, not yet compressed. ValueError if a number does not fit its field."""
    out = BytesWriter()
    last_delta = -1
    for offset, timestamp, key, value, headers in rows:
        if not last_delta < offset - base_offset <= MAX_INT32:
            raise ValueError(f"offset={offset}: expected more than {base_offset + last_delta}, within 2**31")
        if not -1 <= timestamp <= MAX_INT64:
            raise ValueError(f"timestamp={timestamp}: expected -1 .. 2**63 - 1")
        last_delta = offset - base_offset
        offset_delta: i64 = last_delta
        timestamp_delta: i64 = timestamp - base_timestamp
        names = [name.encode("utf-8", "surrogateescape") for name, _ in headers] if headers else []
        size: i64 = 1 + _number_size(timestamp_delta) + _number_size(offset_delta)
        size += _field_size(key) + _field_size(value) + _number_size(len(headers))
        for index, name in enumerate(names):
            size += _field_size(name) + _field_size(headers[index][1])
        _put_number(out, size)
        out.append(0)  # attributes
        _put_number(out, timestamp_delta)
        _put_number(out, offset_delta)
        _put_field(out, key)
        _put_field(out, value)
        _put_number(out, len(headers))
        for index, name in enumerate(names):
            _put_field(out, name)
            _put_field(out, headers[index][1])
    return out.getvalue()


def decode_rows(data: bytes, columns: Columns) -> list[Row]:
    """One row per record."""
    slices = columns.slices
    nulls = columns.nulls
    offsets = columns.offsets
    timestamps = columns.timestamps
    headers = _decode_headers(data, columns) if columns.header_nulls else []
    none: Headers = ()
    rows: list[Row] = []
    count: i64 = columns.rows
    index: i64 = 0
    while index < count:
        null: i64 = nulls[index]
        at: i64 = index * 16
        key: bytes | None = None
        value: bytes | None = None
        if not null & NULL_KEY:
            key = data[read_i32_le(slices, at) : read_i32_le(slices, at + 4)]
        if not null & NULL_VALUE:
            value = data[read_i32_le(slices, at + 8) : read_i32_le(slices, at + 12)]
        offset: i64 = read_i64_le(offsets, index * 8)
        timestamp: i64 = read_i64_le(timestamps, index * 8)
        rows.append((offset, timestamp, key, value, headers[index] if headers else none))
        index += 1
    return rows


def _decode_headers(data: bytes, columns: Columns) -> list[Headers]:
    """Names that are not UTF-8 hold surrogates, so that nothing is lost when they are encoded again."""
    slices = columns.header_slices
    nulls = columns.header_nulls
    pairs: list[tuple[str, bytes | None]] = []
    index: i64 = 0
    while index < len(nulls):
        at: i64 = index * 16
        name = data[read_i32_le(slices, at) : read_i32_le(slices, at + 4)].decode("utf-8", "surrogateescape")
        value = data[read_i32_le(slices, at + 8) : read_i32_le(slices, at + 12)]
        pairs.append((name, None if nulls[index] else value))
        index += 1
    ends = columns.header_ends
    return [
        tuple(pairs[read_i32_le(ends, row * 4) : read_i32_le(ends, row * 4 + 4)])
        for row in range(columns.rows)
    ]


def _number_size(value: i64) -> i64:
    """Bytes of a zigzag varint: seven bits in each."""
    rest: i64 = value if value >= 0 else ~value
    size: i64 = 1
    rest >>= 6
    while rest > 0:
        rest >>= 7
        size += 1
    return size


def _put_number(out: BytesWriter, value: i64) -> None:
    """Zigzag, so that small negative numbers stay short: the sign is the lowest bit of the first byte."""
    sign: i64 = 1 if value < 0 else 0
    rest: i64 = ~value if value < 0 else value
    byte: i64 = (rest & 0x3F) << 1 | sign
    rest >>= 6
    while rest > 0:
        out.append(u8(byte | 0x80))
        byte = rest & 0x7F
        rest >>= 7
    out.append(u8(byte))


def _field_size(data: bytes | None) -> i64:
    if data is None:
        return 1
    size: i64 = len(data)
    return _number_size(size) + size


def _put_field(out: BytesWriter, data: bytes | None) -> None:
    if data is None:
        _put_number(out, -1)
    else:
        _put_number(out, len(data))
        out.write(data)
