"""The hot loop: one pass over the records of a batch that locates every field and copies nothing.

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

`scan` returns columns of little-endian numbers, made for Arrow: `slices` has four int32 per record (key
start, key end, value start, value end), which rise from first to last. So the whole payload is one
BinaryArray of 4n - 1 slices with `slices` as its offsets; taking 0, 4, 8 ... gives the keys, 2, 6, 10 ...
the values, without a Python object per record. Headers have columns of the same form, and `header_ends`
splits them into one list per record. Offsets and timestamps are absolute int64 and can be used as Arrow arrays
directly: an addition afterwards would cost more than this pass.

mypyc compiles this file; uncompiled it does the same, about a hundred times slower. It is written for that
compiler: i64 locals are machine words, an index into `bytes` is one bounds check and one load, BytesWriter
appends in two nanoseconds (an array.array or a list would box every number; so would a u8 that is not
declared as one). A varint and the position after it are returned in one word, (position << 32) | value, so a
payload must be smaller than 2 GiB.

Checks: every length is compared with the bytes that remain in its record, and the record's own with the payload.
A varint itself may run over its record's end, though never over the payload's (an index raises); the check that each
record ends where its length says finds that.
"""

from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64, u8

from penstock.errors import BatchError, ErrorCode

MAX_PAYLOAD: Final = 0x7FFFFFFF
MAX_INT64: Final = 0x7FFFFFFFFFFFFFFF
MIN_RECORD_SIZE: Final = 7
NULL_KEY: Final = 1
NULL_VALUE: Final = 2

_LOW_32: Final = 0xFFFFFFFF


class Columns(NamedTuple):
    """Where the fields of the records are. Positions count from the start of the scanned buffer."""

    rows: int
    slices: bytes
    """int32 x 4 per record: key start, key end, value start, value end. A null has start == end."""
    nulls: bytes
    """One byte per record: NULL_KEY | NULL_VALUE."""
    timestamps: bytes
    """int64 per record, ms."""
    offsets: bytes
    """int64 per record, rising."""
    header_ends: bytes
    """int32 per record and a 0 in front: the number of headers of all records up to this one."""
    header_slices: bytes
    """int32 x 4 per header, as `slices`."""
    header_nulls: bytes
    """One byte per header: 0 or NULL_VALUE."""


def scan(
    data: bytes,
    start: i64,
    end: i64,
    count: i64,
    base_offset: i64,
    last_offset_delta: i64,
    base_timestamp: i64,
) -> Columns:
    """Parses `count` records that fill data[start:end] exactly; BatchError if they do not."""
    if not 0 <= start <= end <= len(data) or end > MAX_PAYLOAD:
        raise BatchError(f"records at {start}..{end}: expected a range within {len(data)} bytes")
    if not 0 <= count * MIN_RECORD_SIZE <= end - start:
        raise BatchError(f"record_count={count}: expected at most {(end - start) // MIN_RECORD_SIZE} here")
    if base_offset < 0 or base_timestamp < -1 or not 0 <= last_offset_delta <= MAX_INT64 - base_offset:
        raise BatchError(
            f"base_offset={base_offset}, last_offset_delta={last_offset_delta}, base_timestamp={base_timestamp}: "
            "expected at least 0, 0 and -1, and offsets below 2**63"
        )
    try:
        return _walk(data, start, end, count, base_offset, last_offset_delta, base_timestamp)
    except IndexError:
        raise BatchError(
            f"records of {end - start} bytes: expected {count} records, and the last one is cut"
        ) from None


def _walk(
    data: bytes,
    start: i64,
    end: i64,
    count: i64,
    base_offset: i64,
    last_offset_delta: i64,
    base_timestamp: i64,
) -> Columns:
    # One long function on purpose: a record is five varints and a few writes, and a call per field, even a compiled
    # one, costs as much as the field itself.
    slices = BytesWriter()
    nulls = BytesWriter()
    timestamps = BytesWriter()
    offsets = BytesWriter()
    header_ends = BytesWriter()
    header_slices = BytesWriter()
    header_nulls = BytesWriter()
    headers: i64 = 0
    max_int64: i64 = MAX_INT64
    least_time: i64 = -1 - base_timestamp
    most_time: i64 = max_int64 - base_timestamp if base_timestamp > 0 else max_int64
    last_delta: i64 = -1
    pos: i64 = start
    index: i64 = 0
    write_i32_le(header_ends, 0)
    while index < count:
        word: i64 = _varint(data, pos)
        pos = word >> 32
        raw: i64 = word & _LOW_32
        if raw & 1 or raw >> 1 > end - pos:
            raise _refused(index, "length", raw, 0, end - pos)
        record_end: i64 = pos + (raw >> 1)

        pos += 1  # over the attributes
        if data[pos] < 0x80 or data[pos + 1] < 0x80:  # at most 8 seconds after the first record
            word = _varint(data, pos)
            raw = word & _LOW_32
            time_delta: i64 = (raw >> 1) ^ -(raw & 1)
            pos = word >> 32
        else:
            time_delta = _varlong(data, pos)
            pos = _varlong_end(data, pos)
        if time_delta < least_time or time_delta > most_time:
            raise BatchError(
                f"record {index}: timestamp_delta={time_delta}: expected {least_time} .. {most_time}",
                ErrorCode.INVALID_TIMESTAMP,
            )
        write_i64_le(timestamps, base_timestamp + time_delta)

        word = _varint(data, pos)
        raw = word & _LOW_32
        if raw & 1 or raw >> 1 <= last_delta or raw >> 1 > last_offset_delta:
            raise _refused(index, "offset_delta", raw, last_delta + 1, last_offset_delta)
        last_delta = raw >> 1
        write_i64_le(offsets, base_offset + last_delta)

        null: u8 = 0
        word = _field(data, word >> 32, record_end, index, "key length")
        if word < 0:
            word = ~word
            null = NULL_KEY
        write_i64_le(slices, word)
        word = _field(data, word >> 32, record_end, index, "value length")
        if word < 0:
            word = ~word
            null |= NULL_VALUE
        write_i64_le(slices, word)
        nulls.append(null)

        word = _varint(data, word >> 32)
        pos = word >> 32
        raw = word & _LOW_32
        if raw:
            pos = _walk_headers(data, pos, record_end, raw, index, header_slices, header_nulls)
            headers += raw >> 1
        write_i32_le(header_ends, i32(headers))
        if pos != record_end:
            raise BatchError(
                f"record {index}: length says that it ends at byte {record_end}: expected {pos}",
                ErrorCode.INVALID_RECORD,
            )
        index += 1
    if pos != end:
        raise BatchError(f"{end - pos} bytes after the last record: expected none", ErrorCode.INVALID_RECORD)
    return Columns(
        rows=count,
        slices=slices.getvalue(),
        nulls=nulls.getvalue(),
        timestamps=timestamps.getvalue(),
        offsets=offsets.getvalue(),
        header_ends=header_ends.getvalue(),
        header_slices=header_slices.getvalue(),
        header_nulls=header_nulls.getvalue(),
    )


def _walk_headers(
    data: bytes, pos: i64, end: i64, raw_count: i64, index: i64, slices: BytesWriter, nulls: BytesWriter
) -> i64:
    """Writes one record's headers to the columns; returns the position after them."""
    # A header has at least two bytes, so the record's size limits the count.
    if raw_count & 1 or raw_count > end - pos:
        raise _refused(index, "header count", raw_count, 0, (end - pos) >> 1)
    count: i64 = raw_count >> 1
    while count > 0:
        word: i64 = _field(data, pos, end, index, "header key length")
        if word < 0:
            raise _refused(index, "header key length", 1, 0, end - pos - 1)
        write_i64_le(slices, word)
        word = _field(data, word >> 32, end, index, "header value length")
        if word < 0:
            word = ~word
            nulls.append(NULL_VALUE)
        else:
            nulls.append(0)
        write_i64_le(slices, word)
        pos = word >> 32
        count -= 1
    return pos


def _field(data: bytes, pos: i64, end: i64, index: i64, name: str) -> i64:
    """A length and that many bytes: (end << 32) | start of the bytes, or its complement where they are null.

    Written as a little-endian int64, the word is the two int32 that `slices` wants.
    """
    word: i64 = _varint(data, pos)
    start: i64 = word >> 32
    raw: i64 = word & _LOW_32
    if raw == 1:
        return ~(start << 32 | start)
    if raw & 1 or raw >> 1 > end - start:
        raise _refused(index, name, raw, -1, end - start)
    return (start + (raw >> 1)) << 32 | start


def _varint(data: bytes, pos: i64) -> i64:
    """(position after it << 32) | the varint's 32 bits, still zigzag."""
    byte: i64 = data[pos]
    if byte < 0x80:
        return (pos + 1) << 32 | byte
    raw: i64 = byte & 0x7F
    pos += 1
    byte = data[pos]
    if byte < 0x80:  # two bytes hold up to 8191: most lengths and deltas
        return (pos + 1) << 32 | byte << 7 | raw
    raw |= (byte & 0x7F) << 7
    shift: i64 = 14
    while True:
        pos += 1
        byte = data[pos]
        if shift == 28 and byte > 0x0F:
            raise BatchError(f"varint at byte {pos - 4}: expected at most 32 bits", ErrorCode.INVALID_RECORD)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (pos + 1) << 32 | raw
        shift += 7


def _varlong(data: bytes, pos: i64) -> i64:
    """The signed value of the varint at `pos`, which may have 64 bits."""
    low_63: i64 = 0x7FFFFFFFFFFFFFFF  # as a module constant it would be boxed
    raw: i64 = 0
    shift: i64 = 0
    while True:
        byte: i64 = data[pos]
        if shift == 63 and byte > 1:
            raise BatchError(f"varlong at byte {pos - 9}: expected at most 64 bits", ErrorCode.INVALID_RECORD)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Compiled, `raw` is a signed word: the sign that >> brings in must not show.
            return ((raw >> 1) & low_63) ^ -(raw & 1)
        pos += 1
        shift += 7


def _varlong_end(data: bytes, pos: i64) -> i64:
    """The position after a varlong that `_varlong` has read."""
    while data[pos] >= 0x80:
        pos += 1
    return pos + 1


def _refused(index: i64, field: str, raw: i64, least: i64, most: i64) -> BatchError:
    value: i64 = (raw >> 1) ^ -(raw & 1)
    return BatchError(
        f"record {index}: {field}={value}: expected {least} .. {most}", ErrorCode.INVALID_RECORD
    )
