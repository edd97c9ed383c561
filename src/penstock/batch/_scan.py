"""The hot loop: one walk over the records of a batch that says where everything is and copies nothing.

A record, after the batch was decompressed (varints are zigzag, least significant group first):

    varint   length             bytes of the record after this field
    int8     attributes         unused
    varlong  timestamp_delta    ms after the batch's base_timestamp
    varint   offset_delta       to the batch's base_offset
    varint   key length         -1: null
             key
    varint   value length       -1: null
             value
    varint   header count
    each     varint key length, key, varint value length (-1: null), value

`scan` gives columns of little-endian numbers, made for Arrow: `slices` has four int32 per record (key
start, key end, value start, value end), which rise from first to last. So the whole payload is one
BinaryArray of 4n - 1 slices with `slices` as its offsets; taking 0, 4, 8 ... gives the keys, 2, 6, 10 ...
the values, without a Python object per record. Headers have columns of the same form, and `header_ends`
cuts them into one list per record.

mypyc compiles this file; uncompiled it does the same, about a hundred times slower. It is written for that
compiler: i64 locals are machine words, an index into `bytes` is one bounds check and one load, BytesWriter
appends in two nanoseconds (an array.array or a list would box every number). A varint and the position
after it come back in one word, (position << 32) | value, because a tuple would be slower; so no payload may
reach 2 GiB.

Trust: every length is checked against the bytes that remain in its record, and the record's own against the
payload. A varint itself may run over its record's end, though never over the payload's (an index raises);
the check that each record ends where it said finds that out.
"""

from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from penstock.errors import BatchError, ErrorCode

MAX_PAYLOAD: Final = 0x7FFFFFFF
MIN_RECORD_SIZE: Final = 7
NULL_KEY: Final = 1
NULL_VALUE: Final = 2

_LOW_32: Final = 0xFFFFFFFF
_LOW_63: Final = 0x7FFFFFFFFFFFFFFF


class Columns(NamedTuple):
    """Where the records' parts are. Positions count from the start of the scanned buffer."""

    rows: int
    slices: bytes
    """int32 x 4 per record: key start, key end, value start, value end. A null has start == end."""
    nulls: bytes
    """One byte per record: NULL_KEY | NULL_VALUE."""
    timestamp_deltas: bytes
    """int64 per record."""
    offset_deltas: bytes
    """int32 per record, rising."""
    header_ends: bytes
    """int32 per record and one more in front: how many headers the records up to here have."""
    header_slices: bytes
    """int32 x 4 per header, as `slices`."""
    header_nulls: bytes
    """One byte per header: 0 or NULL_VALUE."""
    min_timestamp_delta: int
    max_timestamp_delta: int


def scan(data: bytes, start: i64, end: i64, count: i64, last_offset_delta: i64) -> Columns:
    """Walks `count` records that fill data[start:end] exactly; BatchError if they do not."""
    if not 0 <= start <= end <= len(data) or end > MAX_PAYLOAD:
        raise BatchError(f"records at {start}..{end}: expected a range within {len(data)} bytes")
    if not 0 <= count * MIN_RECORD_SIZE <= end - start:
        raise BatchError(f"record_count={count}: expected at most {(end - start) // MIN_RECORD_SIZE} here")
    try:
        return _walk(data, start, end, count, last_offset_delta)
    except IndexError:
        raise BatchError(
            f"records of {end - start} bytes: expected {count} records, and the last one is cut"
        ) from None


def _walk(data: bytes, start: i64, end: i64, count: i64, last_offset_delta: i64) -> Columns:
    slices = BytesWriter()
    nulls = BytesWriter()
    timestamp_deltas = BytesWriter()
    offset_deltas = BytesWriter()
    header_ends = BytesWriter()
    header_slices = BytesWriter()
    header_nulls = BytesWriter()
    headers: i64 = 0
    least_timestamp: i64 = 0
    greatest_timestamp: i64 = 0
    last_delta: i64 = -1
    pos: i64 = start
    index: i64 = 0
    write_i32_le(header_ends, 0)
    while index < count:
        word: i64 = _varint(data, pos)
        pos = word >> 32
        raw: i64 = word & _LOW_32
        if raw & 1 or raw >> 1 > end - pos:
            raise _refused(index, "length", raw, end - pos)
        record_end: i64 = pos + (raw >> 1)

        pos += 1  # attributes
        byte: i64 = i64(data[pos])
        if byte < 0x80:
            timestamp: i64 = (byte >> 1) ^ -(byte & 1)
            pos += 1
        else:
            timestamp = _varlong(data, pos)
            pos = _varlong_end(data, pos)
        if timestamp < least_timestamp:
            least_timestamp = timestamp
        elif timestamp > greatest_timestamp:
            greatest_timestamp = timestamp
        write_i64_le(timestamp_deltas, timestamp)

        word = _varint(data, pos)
        pos = word >> 32
        raw = word & _LOW_32
        delta: i64 = raw >> 1
        if raw & 1 or delta <= last_delta or delta > last_offset_delta:
            raise _wrong_delta(index, raw, last_delta, last_offset_delta)
        last_delta = delta
        write_i32_le(offset_deltas, i32(delta))

        null: i64 = 0
        word = _varint(data, pos)
        pos = word >> 32
        raw = word & _LOW_32
        if raw == 1:
            null = NULL_KEY
            raw = 0
        elif raw & 1 or raw >> 1 > record_end - pos:
            raise _refused(index, "key length", raw, record_end - pos)
        write_i32_le(slices, i32(pos))
        pos += raw >> 1
        write_i32_le(slices, i32(pos))

        word = _varint(data, pos)
        pos = word >> 32
        raw = word & _LOW_32
        if raw == 1:
            null |= NULL_VALUE
            raw = 0
        elif raw & 1 or raw >> 1 > record_end - pos:
            raise _refused(index, "value length", raw, record_end - pos)
        write_i32_le(slices, i32(pos))
        pos += raw >> 1
        write_i32_le(slices, i32(pos))
        nulls.append(null)

        word = _varint(data, pos)
        pos = word >> 32
        raw = word & _LOW_32
        if raw:
            if raw & 1 or raw > record_end - pos:
                raise _refused(index, "header count", raw, (record_end - pos) >> 1)
            headers += raw >> 1
            pos = _walk_headers(data, pos, record_end, raw >> 1, index, header_slices, header_nulls)
        write_i32_le(header_ends, i32(headers))
        if pos != record_end:
            raise BatchError(
                f"record {index}: it ends at byte {pos}: expected {record_end}, as its length says",
                ErrorCode.INVALID_RECORD,
            )
        index += 1
    if pos != end:
        raise BatchError(f"records end at byte {pos}: expected {end}", ErrorCode.INVALID_RECORD)
    return Columns(
        count,
        slices.getvalue(),
        nulls.getvalue(),
        timestamp_deltas.getvalue(),
        offset_deltas.getvalue(),
        header_ends.getvalue(),
        header_slices.getvalue(),
        header_nulls.getvalue(),
        least_timestamp,
        greatest_timestamp,
    )


def _walk_headers(
    data: bytes, start: i64, end: i64, count: i64, index: i64, slices: BytesWriter, nulls: BytesWriter
) -> i64:
    """Emits one record's headers; the position after them."""
    pos: i64 = start
    while count > 0:
        word: i64 = _varint(data, pos)
        pos = word >> 32
        raw: i64 = word & _LOW_32
        if raw & 1 or raw >> 1 > end - pos:
            raise _refused(index, "header key length", raw, end - pos)
        write_i32_le(slices, i32(pos))
        pos += raw >> 1
        write_i32_le(slices, i32(pos))
        word = _varint(data, pos)
        pos = word >> 32
        raw = word & _LOW_32
        if raw == 1:
            nulls.append(NULL_VALUE)
            raw = 0
        elif raw & 1 or raw >> 1 > end - pos:
            raise _refused(index, "header value length", raw, end - pos)
        else:
            nulls.append(0)
        write_i32_le(slices, i32(pos))
        pos += raw >> 1
        write_i32_le(slices, i32(pos))
        count -= 1
    return pos


def _varint(data: bytes, pos: i64) -> i64:
    """(position after it << 32) | the varint's 32 bits, still zigzag."""
    byte: i64 = i64(data[pos])
    if byte < 0x80:
        return (pos + 1) << 32 | byte
    raw: i64 = byte & 0x7F
    shift: i64 = 7
    while True:
        pos += 1
        byte = i64(data[pos])
        if shift == 28 and byte > 0x0F:
            raise BatchError(
                f"varint at byte {pos - 4}: expected at most 5 bytes and 32 bits", ErrorCode.INVALID_RECORD
            )
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (pos + 1) << 32 | raw
        shift += 7


def _varlong(data: bytes, pos: i64) -> i64:
    """The signed 64-bit value of the varint at `pos`."""
    raw: i64 = 0
    shift: i64 = 0
    while True:
        byte: i64 = i64(data[pos])
        if shift == 63 and byte > 1:
            raise BatchError(
                f"varlong at byte {pos - 9}: expected at most 10 bytes and 64 bits", ErrorCode.INVALID_RECORD
            )
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & _LOW_63) ^ -(raw & 1)
        pos += 1
        shift += 7


def _varlong_end(data: bytes, pos: i64) -> i64:
    while i64(data[pos]) >= 0x80:
        pos += 1
    return pos + 1


def _refused(index: i64, field: str, raw: i64, limit: i64) -> BatchError:
    value = (raw >> 1) ^ -(raw & 1)
    least = 0 if field in ("length", "header count", "header key length") else -1
    return BatchError(
        f"record {index}: {field}={value}: expected {least} .. {limit}", ErrorCode.INVALID_RECORD
    )


def _wrong_delta(index: i64, raw: i64, last_delta: i64, last_offset_delta: i64) -> BatchError:
    value = (raw >> 1) ^ -(raw & 1)
    return BatchError(
        f"record {index}: offset_delta={value}: expected {last_delta + 1} .. {last_offset_delta}",
        ErrorCode.INVALID_RECORD,
    )
