"""Records: reading them from a batch, building a batch of them, and compressing a batch with another codec.

`_scan.py` describes a record's bytes and has the loop that finds its fields; this module converts them to Python
objects and back. Consumers that want columns (Arrow) use `scan_batch` and never make an object per record.
"""

from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import NamedTuple

from penstock.batch._rows import Headers, decode_rows, encode_rows
from penstock.batch._scan import Columns, scan
from penstock.batch.compression import MAX_DECOMPRESSED_BYTES, NONE, compress, decompress, stated_size
from penstock.batch.header import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_batch,
    iter_headers,
    seal,
    write_crc,
)

_INT64_LE = Struct("<q")


class Record(NamedTuple):
    """One record with its absolute offset and time (ms). Header names that are not UTF-8 hold surrogates."""

    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


_new_record: Callable[[Iterable[object]], Record] = partial(tuple.__new__, Record)
"""A third of the time of Record(...), which is a function in Python."""


def scan_batch(
    buf: Buffer, pos: int = 0, *, header: BatchHeader | None = None, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[BatchHeader, bytes, Columns]:
    """The checked header, a buffer with the uncompressed records, and the columns that locate each field in it.

    The buffer is `buf` itself where nothing had to be decompressed or copied. `header`: that of this batch, if the
    caller has checked it already.
    """
    if header is None:
        header = check_batch(buf, pos)
    start, end = pos + HEADER_SIZE, pos + header.size
    if header.record_count == 0:
        payload, start, end = b"", 0, 0
    elif header.compression == NONE and isinstance(buf, bytes):
        payload = buf
    else:
        payload = decompress(header.compression, memoryview(buf)[start:end], max_bytes=max_bytes)
        start, end = 0, len(payload)
    last_delta = max(header.last_offset_delta, 0)
    columns = scan(
        payload, start, end, header.record_count, header.base_offset, last_delta, header.base_timestamp
    )
    if header.log_append_time:
        columns = columns._replace(timestamps=_INT64_LE.pack(header.max_timestamp) * columns.rows)
    return header, payload, columns


def validate_records(buf: Buffer, pos: int = 0, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> BatchHeader:
    """The full check: decompresses and parses every record, without creating objects."""
    return scan_batch(buf, pos, max_bytes=max_bytes)[0]


def unpacked_bytes(buf: Buffer, pos: int, header: BatchHeader) -> int:
    """How large the batch claims its decompressed records to be (`stated_size`). Nothing is decompressed."""
    if header.compression == NONE or header.record_count == 0:
        return header.size
    payload = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    return stated_size(header.compression, payload)


def unpacked_total(data: bytes) -> int:
    """The sum of `unpacked_bytes` over all batches in `data`."""
    return sum(unpacked_bytes(data, position, header) for position, header in iter_headers(data))


def first_batches(data: bytes, max_unpacked: int, *, at_least_one: bool) -> bytes:
    """The first batches of `data` whose claimed decompressed sizes add up to at most `max_unpacked`."""
    for position, header in iter_headers(data):
        max_unpacked -= unpacked_bytes(data, position, header)
        if max_unpacked < 0 and (position or not at_least_one):
            return data[:position]
    return data


def read_records(
    buf: Buffer, pos: int = 0, *, header: BatchHeader | None = None, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """The records of the batch at `pos`, each length checked; a zero-width batch has none."""
    _header, payload, columns = scan_batch(buf, pos, header=header, max_bytes=max_bytes)
    return list(map(_new_record, decode_rows(payload, columns)))


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    compression: int = NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    log_append_time: int | None = None,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch of these records. Their offsets may have gaps, as compaction leaves them, but must rise.

    `last_offset_delta` keeps the range of a batch that lost its last records, or all of them.
    """
    rows = list(records)
    base_timestamp = rows[0].timestamp if rows else -1
    max_timestamp = max((row.timestamp for row in rows), default=-1)
    last_delta = _last_delta(rows, base_offset, last_offset_delta)
    attributes = (compression if rows else NONE) | (TRANSACTIONAL_BIT if transactional else 0)
    attributes |= CONTROL_BIT if control else 0
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time
    plain = encode_rows(rows, base_offset, base_timestamp)
    payload = compress(compression, plain, level) if rows else b""
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        MIN_BATCH_LENGTH + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(rows),
    )
    batch[HEADER_SIZE:] = payload
    return seal(batch)


def recompress(
    batch: Buffer,
    header: BatchHeader,
    compression: int,
    level: int | None = None,
    *,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> tuple[bytearray, BatchHeader]:
    """The same batch with its records in another codec, and its header. The records are compressed as a whole and not
    parsed. `header` is the checked header of the batch."""
    if header.compression == compression or header.record_count == 0:
        return bytearray(batch), header
    plain = decompress(header.compression, memoryview(batch)[HEADER_SIZE:], max_bytes=max_bytes)
    payload = compress(compression, plain, level)
    changed = header._replace(
        batch_length=MIN_BATCH_LENGTH + len(payload), attributes=header.attributes & ~CODEC_MASK | compression
    )
    rebuilt = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(rebuilt, 0, *changed)
    rebuilt[HEADER_SIZE:] = payload
    return rebuilt, changed._replace(crc=write_crc(rebuilt))


def _last_delta(rows: list[Record], base_offset: int, wanted: int | None) -> int:
    last_delta = rows[-1].offset - base_offset if rows else 0
    if wanted is None and rows:
        return last_delta
    if wanted is None or wanted < last_delta:
        raise ValueError(f"last_offset_delta={wanted}: expected at least {last_delta}, the last record's")
    return wanted
