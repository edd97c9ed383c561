"""The partitioner: assigns each record of a column of keys to a partition.

Kafka's rule for records with a key: murmur2 of its bytes, without the sign, modulo the number of partitions. All
clients must agree on it, or records of one key would not stay in one partition; the constants below are Kafka's.

`group_rows` then collects each partition's rows. It keeps their order, since that is the order of a key's records.

mypyc compiles this file too. Its integers have 64 bits and murmur2's 32, so a mask cuts products to 32.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_le, write_i32_le
from mypy_extensions import i32, i64

from penstock.batch._encode import Column

SEED: Final = 0x9747B28C
FACTOR: Final = 0x5BD1E995
LOW_32: Final = 0xFFFFFFFF
POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, 32 bits without a sign."""
    return _murmur2(data, 0, len(data))


def partition_of_keys(keys: Column, rows: bytes, count: i64, partitions: i64, keyless: i64) -> bytes:
    """An int32 per row: the partition of its key, or `keyless` where the key is null.

    `rows` selects rows by their int32 numbers; empty, it means the first `count` rows.
    """
    if partitions < 1:
        raise ValueError(f"partitions={partitions}: expected at least 1")
    total: i64 = len(rows) >> 2 if rows else count
    every: bool = len(rows) == 0
    offsets = keys.offsets
    validity = keys.validity
    data = keys.data
    base: i64 = keys.base
    first_bit: i64 = keys.first_bit
    keyless_32 = i32(keyless)
    out = BytesWriter()
    index: i64 = 0
    while index < total:
        row: i64 = index if every else i64(read_i32_le(rows, index * 4))
        bit: i64 = first_bit + row
        index += 1
        if not offsets or (validity and not validity[bit >> 3] >> (bit & 7) & 1):
            write_i32_le(out, keyless_32)
            continue
        start: i64 = i64(read_i32_le(offsets, row * 4)) - base
        end: i64 = i64(read_i32_le(offsets, row * 4 + 4)) - base
        write_i32_le(out, i32((_murmur2(data, start, end) & POSITIVE) % partitions))
    return out.getvalue()


def group_rows(groups: bytes, rows: bytes, count: i64) -> list[bytes]:
    """For each of `count` groups the rows in it, as int32 numbers in their order.

    `groups` has the group of each row that `rows` selects; empty, `rows` means all of them.
    """
    writers = [BytesWriter() for _ in range(count)]
    total: i64 = len(groups) >> 2
    every: bool = len(rows) == 0
    index: i64 = 0
    while index < total:
        group: i64 = i64(read_i32_le(groups, index * 4))
        if not 0 <= group < count:
            raise ValueError(f"group={group}: expected 0 .. {count - 1}")
        write_i32_le(writers[group], i32(index) if every else read_i32_le(rows, index * 4))
        index += 1
    return [writer.getvalue() for writer in writers]


def _murmur2(data: bytes, start: i64, end: i64) -> i64:
    low_32: i64 = LOW_32
    factor: i64 = FACTOR
    seed: i64 = SEED
    word: i64
    hashed: i64 = seed ^ (end - start)
    pos: i64 = start
    while pos + 4 <= end:
        word = (i64(read_i32_le(data, pos)) & low_32) * factor & low_32
        word ^= word >> 24
        word = word * factor & low_32
        hashed = hashed * factor & low_32 ^ word
        pos += 4
    if pos < end:
        shift: i64 = 0
        while pos < end:
            word = data[pos]
            hashed ^= word << shift
            shift += 8
            pos += 1
        hashed = hashed * factor & low_32
    hashed ^= hashed >> 13
    hashed = hashed * factor & low_32
    return hashed ^ hashed >> 15
