"""Counts the records of a produced batch: one pass that reads a few bytes of each record.

A batch whose header claims another number of records would make offsets jump, and consumers that count would refuse to
read on. So each record must have its place: its offset_delta is its index, and the last one ends with the payload.
Keys, values and headers are not looked at; `_scan.py` describes a record's bytes, and how such a file is written for
mypyc.

Compiled, a record takes 5 ns: 0.5 us for 100 records of 100 bytes, beside 2.4 us for the checks of their header and
checksum. Uncompiled it takes a hundred times that. Only `bytes` can be indexed so fast, and a batch is part of a larger
buffer: it is copied in windows that stay in the processor's cache. One copy of a megabyte would cost as much as all
else, in page faults.
"""

from typing import Final

from mypy_extensions import i64

from penstock.errors import BatchError, ErrorCode

WINDOW: Final = 64 * 1024
HEAD_MOST: Final = 21
"""Bytes from a record's beginning to the end of its offset_delta, at most: varints of 5, 10 and 5 bytes, and one."""


def check_count(records: memoryview, count: i64) -> None:
    """BatchError unless `records`, which are not compressed, are so many."""
    end: i64 = len(records)
    start: i64 = 0
    index: i64 = 0
    while index < count:
        window = bytes(records[start : start + WINDOW])
        size: i64 = len(window)
        is_last = start + size == end
        word: i64 = _walk(window, size if is_last else size - HEAD_MOST, end - start, index, count)
        if word < 0:
            raise _refused(count, ~word)
        index = word & 0xFFFFFFFF
        start += word >> 32
    if start != end:
        raise _refused(count, index)


def _walk(window: bytes, stop: i64, left: i64, index: i64, count: i64) -> i64:
    """Looks at the records that begin before `stop`, from record `index` on, where `left` bytes of the batch begin.
    (The position after them << 32) | the index of the next one, or the complement of the index of one that is not
    there."""
    size: i64 = len(window)
    pos: i64 = 0
    while index < count and (pos < stop or pos >= left):
        word: i64 = _varint(window, pos, size)
        pos = word >> 32
        record_end: i64 = pos + ((word & 0xFFFFFFFF) >> 1)
        if word < 0 or word & 1 or record_end > left:
            return ~index
        pos += 1  # over the attributes
        while pos < size and window[pos] >= 0x80:
            pos += 1
        word = _varint(window, pos + 1, size)
        if word & 0xFFFFFFFF != index << 1 or word >> 32 > record_end:
            return ~index
        pos = record_end
        index += 1
    return pos << 32 | index


def _varint(data: bytes, pos: i64, end: i64) -> i64:
    """(position after it << 32) | the varint's 32 bits, still zigzag; -1 if it has more bits, or no end."""
    raw: i64 = 0
    shift: i64 = 0
    while pos < end:
        byte: i64 = data[pos]
        pos += 1
        if shift == 28 and byte > 0x0F:
            return -1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return pos << 32 | raw
        shift += 7
    return -1


def _refused(count: i64, index: i64) -> BatchError:
    return BatchError(
        f"record_count={count}: expected the number of records in the batch; where record {index} and its offset_delta "
        "should be, or the end, there are other bytes",
        ErrorCode.INVALID_RECORD,
    )
