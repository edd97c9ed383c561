"""Encoding: from Arrow's columns of keys, values and headers to the bytes that `_scan.py` describes.

No object is made per record: the loop reads Arrow's offsets, writes each record's numbers, and copies keys and
values from buffer to buffer. Short fields are copied as 8-byte words whose surplus is cut off again (5 ns for 8 bytes,
where a slice costs 25); above `LONGEST_BY_WORDS`, one slice is quicker. Measured on one core with
8-byte keys and 100-byte values, CRC included: 7.5 M records/s in batches of 256 KiB, 5 M in batches of 1 MiB, whose
buffers the system allocates and frees page by page. Arrow's own kernels would need the numbers as columns first, and
computing those takes the same loop.

`rows` selects the rows: an int32 array of row numbers (the rows of one partition), or empty for all rows in order.
Encoding starts at `start` in it and stops where the batch would exceed `max_bytes`, though never before its first
record; so the caller continues at `start + rows`.

mypyc compiles this file; the head of `_scan.py` explains how that shapes the code.
"""

from typing import Final, NamedTuple

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i64_le
from mypy_extensions import i64

from penstock.batch._rows import _number_size, _put_number
from penstock.batch._scan import MAX_PAYLOAD

LONGEST_BY_WORDS: Final = 64
LARGEST_RECORD: Final = MAX_PAYLOAD - 64
"""Leaves space for the numbers, so that no length exceeds 32 bits."""


class Column:
    """A column of strings or bytes, as Arrow keeps it, in `bytes` that compiled code can index.

    `offsets` has an int32 more than there are rows; `base` is the position in Arrow's data buffer where `data`
    begins. `validity` has a bit per row, of which the column's first is `first_bit`; without bits nothing is
    null. Without offsets every field is null.
    """

    def __init__(
        self,
        offsets: bytes = b"",
        data: bytes = b"",
        base: i64 = 0,
        validity: bytes = b"",
        first_bit: i64 = 0,
    ) -> None:
        self.offsets = offsets
        self.data = data
        self.base = base
        self.validity = validity
        self.first_bit = first_bit


class HeaderColumn:
    """Each row's list of headers: `ends` cuts `names` and `values` as offsets cut bytes.

    A null list must be an empty one, with equal offsets. Arrow does not promise that; the caller must ensure it.
    """

    def __init__(
        self, ends: bytes = b"", base: i64 = 0, names: Column | None = None, values: Column | None = None
    ) -> None:
        self.ends = ends
        self.base = base
        self.names = names or Column()
        self.values = values or Column()


class RowColumns(NamedTuple):
    """The columns to encode: row `i` of each column becomes record `i`."""

    rows: int
    keys: Column
    values: Column
    headers: HeaderColumn | None = None
    times: bytes = b""
    """int64 per row, ms; if empty, all records get the `now_ms` of `encode_columns`."""


class EncodedRows(NamedTuple):
    """The records of one batch, not yet compressed, and the values for its header."""

    payload: bytes
    rows: int
    base_timestamp: int
    max_timestamp: int


def encode_columns(columns: RowColumns, rows: bytes, start: i64, max_bytes: i64, now_ms: i64) -> EncodedRows:
    """Rows `start` and following of the selection `rows`, as many as `max_bytes` hold and at least one."""
    total: i64 = len(rows) >> 2 if rows else columns.rows
    if not 0 <= start < total:
        raise ValueError(f"start={start}: expected 0 .. {total - 1}, the rows that were selected")
    keys = columns.keys
    values = columns.values
    headers = columns.headers
    times = columns.times
    every: bool = len(rows) == 0
    timed: bool = len(times) > 0
    row: i64 = start if every else i64(read_i32_le(rows, start * 4))
    base_time: i64 = read_i64_le(times, row * 8) if timed else now_ms
    max_time: i64 = base_time
    time_delta: i64 = 0
    time_size: i64 = 1
    headers_size: i64 = 1
    out = BytesWriter()
    written: i64 = 0
    index: i64 = 0
    while start + index < total:
        row = start + index if every else i64(read_i32_le(rows, (start + index) * 4))
        if timed:
            time: i64 = read_i64_le(times, row * 8)
            if time < -1:
                raise ValueError(f"row {row}: timestamp={time}: expected -1 or more, in ms since 1970")
            time_delta = time - base_time
            time_size = _number_size(time_delta)
            if time > max_time:
                max_time = time
        if headers is not None:
            headers_size = _headers_size(headers, row)
        key_size: i64 = _size(keys, row)
        value_size: i64 = _size(values, row)
        size: i64 = 1 + time_size + _number_size(index) + headers_size
        size += _number_size(key_size) + _number_size(value_size)
        size += (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
        whole: i64 = _number_size(size) + size
        if index > 0 and written + whole > max_bytes:
            break
        if whole > LARGEST_RECORD:
            raise ValueError(f"row {row}: a record of {whole} bytes: expected at most {LARGEST_RECORD}")
        _put_number(out, size)
        out.append(0)  # attributes
        if timed:
            _put_number(out, time_delta)
        else:
            out.append(0)
        _put_number(out, index)
        _put_number(out, key_size)
        if key_size > 0:
            _put_bytes(out, keys, row)
        _put_number(out, value_size)
        if value_size > 0:
            _put_bytes(out, values, row)
        if headers is not None:
            _put_headers(out, headers, row)
        else:
            out.append(0)
        written += whole
        index += 1
    return EncodedRows(out.getvalue(), index, base_time, max_time)


def _size(column: Column, row: i64) -> i64:
    """Bytes of a field; -1 where it is null."""
    if not column.offsets:
        return -1
    validity = column.validity
    if validity:
        bit: i64 = column.first_bit + row
        bits: i64 = validity[bit >> 3]
        if not bits >> (bit & 7) & 1:
            return -1
    offsets = column.offsets
    return i64(read_i32_le(offsets, row * 4 + 4)) - i64(read_i32_le(offsets, row * 4))


def _put_bytes(out: BytesWriter, column: Column, row: i64) -> None:
    offsets = column.offsets
    base: i64 = column.base
    start: i64 = i64(read_i32_le(offsets, row * 4)) - base
    end: i64 = i64(read_i32_le(offsets, row * 4 + 4)) - base
    data = column.data
    last_word: i64 = len(data) - 8
    if end - start > LONGEST_BY_WORDS or end - 1 > last_word:
        out.write(data[start:end])
        return
    size: i64 = len(out)
    size += end - start
    while start < end:
        write_i64_le(out, read_i64_le(data, start))
        start += 8
    out.truncate(size)


def _headers_size(headers: HeaderColumn, row: i64) -> i64:
    """Bytes of the count and of all headers of a record."""
    ends = headers.ends
    entry: i64 = i64(read_i32_le(ends, row * 4)) - headers.base
    end: i64 = i64(read_i32_le(ends, row * 4 + 4)) - headers.base
    total: i64 = _number_size(end - entry)
    while entry < end:
        size: i64 = _size(headers.names, entry)
        total += _number_size(size) + size
        size = _size(headers.values, entry)
        total += _number_size(size) + (size if size > 0 else 0)
        entry += 1
    return total


def _put_headers(out: BytesWriter, headers: HeaderColumn, row: i64) -> None:
    ends = headers.ends
    entry: i64 = i64(read_i32_le(ends, row * 4)) - headers.base
    end: i64 = i64(read_i32_le(ends, row * 4 + 4)) - headers.base
    _put_number(out, end - entry)
    while entry < end:
        _put_field(out, headers.names, entry)
        _put_field(out, headers.values, entry)
        entry += 1


def _put_field(out: BytesWriter, column: Column, row: i64) -> None:
    size: i64 = _size(column, row)
    _put_number(out, size)
    if size > 0:
        _put_bytes(out, column, row)
