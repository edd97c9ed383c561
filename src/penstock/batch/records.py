"""Records: read out of a batch, built into one, and batches made anew with another codec.

`_scan.py` has a record's bytes and the loop that finds its parts; here the parts become Python objects and
back. Consumers that want columns (Arrow) use `scan_batch` and never make an object per record.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.batch._scan import NULL_KEY, NULL_VALUE, Columns, scan
from penstock.batch.compression import MAX_DECOMPRESSED_BYTES, NONE, compress, decompress
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
    seal,
)
from penstock.errors import BatchError, ErrorCode

MAX_TIMESTAMP = 2**63 - 1

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record with its absolute offset and time (ms). Header names that are not UTF-8 hold surrogates."""

    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def scan_batch(
    buf: Buffer, pos: int = 0, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[BatchHeader, bytes, Columns]:
    """The checked header, the decompressed records, and the columns that say where everything is in them."""
    header = check_batch(buf, pos)
    stored = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    if header.record_count == 0:
        return header, b"", scan(b"", 0, 0, 0, 0)
    payload = decompress(header.compression, stored, max_bytes=max_bytes)
    columns = scan(payload, 0, len(payload), header.record_count, header.last_offset_delta)
    _check_timestamps(header, columns)
    return header, payload, columns


def validate_records(buf: Buffer, pos: int = 0, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> BatchHeader:
    """The deep check: decompresses and walks every record, and makes no object of any."""
    return scan_batch(buf, pos, max_bytes=max_bytes)[0]


def read_records(buf: Buffer, pos: int = 0, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """The records of the batch at `pos`, each length checked; a zero-width batch has none."""
    header, payload, columns = scan_batch(buf, pos, max_bytes=max_bytes)
    starts_ends = iter(memoryview(columns.slices).cast("i"))
    times = _timestamps(header, columns)
    offsets = [header.base_offset + delta for delta in memoryview(columns.offset_deltas).cast("i")]
    headers = _headers(payload, columns)
    nulls = columns.nulls
    return [
        Record(
            offset,
            timestamp,
            None if null & NULL_KEY else payload[key_start:key_end],
            None if null & NULL_VALUE else payload[value_start:value_end],
            of_record,
        )
        for offset, timestamp, null, of_record, key_start, key_end, value_start, value_end in zip(
            offsets, times, nulls, headers, starts_ends, starts_ends, starts_ends, starts_ends, strict=True
        )
    ]


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
    last_delta = rows[-1].offset - base_offset if rows else -1
    attributes = (compression if rows else NONE) | (TRANSACTIONAL_BIT if transactional else 0)
    attributes |= CONTROL_BIT if control else 0
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time
    payload = compress(attributes & CODEC_MASK, encode_records(rows, base_offset, base_timestamp), level)
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
        last_delta if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(rows),
    )
    batch[HEADER_SIZE:] = payload
    return seal(batch)


def recompress(buf: Buffer, compression: int, level: int | None = None) -> bytes:
    """The same batch with its records in another codec; they are moved as a whole and not looked at."""
    header = check_batch(buf)
    stored = memoryview(buf)[HEADER_SIZE : header.size]
    if header.compression == compression or header.record_count == 0:
        return bytes(memoryview(buf)[: header.size])
    plain = decompress(header.compression, stored, max_bytes=MAX_DECOMPRESSED_BYTES)
    payload = compress(compression, plain, level)
    changed = header._replace(
        batch_length=MIN_BATCH_LENGTH + len(payload), attributes=header.attributes & ~CODEC_MASK | compression
    )
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(batch, 0, *changed)
    batch[HEADER_SIZE:] = payload
    return seal(batch)


def encode_records(rows: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    out = bytearray()
    for row in rows:
        body = _encode_record(row, row.offset - base_offset, row.timestamp - base_timestamp)
        put_varint(out, len(body))
        out += body
    return bytes(out)


def _encode_record(row: Record, offset_delta: int, timestamp_delta: int) -> bytearray:
    body = bytearray(1)  # attributes: unused
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    _put_bytes(body, row.key)
    _put_bytes(body, row.value)
    put_varint(body, len(row.headers))
    for name, value in row.headers:
        _put_bytes(body, name.encode("utf-8", "surrogateescape"))
        _put_bytes(body, value)
    return body


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        put_varint(out, len(data))
        out += data


def put_varint(out: bytearray, value: int) -> None:
    """Zigzag: small negative numbers stay short."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _timestamps(header: BatchHeader, columns: Columns) -> list[int]:
    if header.log_append_time:
        return [header.max_timestamp] * columns.rows
    base = header.base_timestamp
    return [base + delta for delta in memoryview(columns.timestamp_deltas).cast("q")]


def _headers(payload: bytes, columns: Columns) -> list[Headers]:
    if not columns.header_nulls:
        return [()] * columns.rows
    parts = iter(memoryview(columns.header_slices).cast("i"))
    pairs = [
        (
            payload[key_start:key_end].decode("utf-8", "surrogateescape"),
            None if null else payload[value_start:value_end],
        )
        for null, key_start, key_end, value_start, value_end in zip(
            columns.header_nulls, parts, parts, parts, parts, strict=True
        )
    ]
    ends = memoryview(columns.header_ends).cast("i")
    return [tuple(pairs[start:end]) for start, end in zip(ends, ends[1:])]  # noqa: B905, RUF007


def _check_timestamps(header: BatchHeader, columns: Columns) -> None:
    base = header.base_timestamp
    if base + columns.min_timestamp_delta < -1 or base + columns.max_timestamp_delta > MAX_TIMESTAMP:
        raise BatchError(
            f"timestamp_delta={columns.min_timestamp_delta} .. {columns.max_timestamp_delta}: "
            f"expected times from -1 to 2**63 - 1 with base_timestamp={base}",
            ErrorCode.INVALID_TIMESTAMP,
        )
