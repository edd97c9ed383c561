"""The other hot loop: records into the bytes that `_scan.py` describes. mypyc compiles this file too."""

from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[int, int, bytes | None, bytes | None, Headers]
"""offset, timestamp, key, value, headers: a Record is one."""

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


def encode_records(rows: Sequence[Row], base_offset: int, base_timestamp: int) -> bytes:
    """The records one after the other, not yet compressed. ValueError if a number does not fit its field."""
    out = BytesWriter()
    last_delta = -1
    for offset, timestamp, key, value, headers in rows:
        if not last_delta < offset - base_offset <= MAX_INT32:
            raise ValueError(f"offset={offset}: expected more than {base_offset + last_delta}, within 2**31")
        if not -1 <= timestamp <= MAX_INT64:
            raise ValueError(f"timestamp={timestamp}: expected -1 .. 2**63 - 1")
        last_delta = offset - base_offset
        offset_delta: i64 = i64(last_delta)
        timestamp_delta: i64 = i64(timestamp - base_timestamp)
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
