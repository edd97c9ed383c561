"""Message ids: reads them from batches, and rebuilds batches without some of their records.

    penstock-message-id   the producer's id of a message: 1 to 256 bytes; of several such headers the last counts

An id is kept as a digest of 16 bytes. Two ids with one digest do not happen by chance (among a million ids: once in
10**26), and making two takes 2**64 attempts.
"""

from array import array
from collections.abc import Callable, Collection, Iterable
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from penstock.batch import HEADER_SIZE, BatchHeader, build_batch, decompress, read_header, read_records
from penstock.batch._scan import scan
from penstock.batch.header import HEADER, MIN_BATCH_LENGTH, seal
from penstock.errors import ErrorCode, KafkaError

MESSAGE_ID = b"penstock-message-id"
NAME_SIZE = len(MESSAGE_ID)
MAX_ID_BYTES = 256
"""A UUID has 36 bytes, a hash 64, a URL with a number seldom more than 200."""
DIGEST_SIZE = 16
NO_LIMIT = 2**63 - 1

_SLICE = Struct("<4i")


class MessageId(NamedTuple):
    """One record's id."""

    delta: int
    """The record's offset, from the batch's first."""
    digest: bytes


_new_id: Callable[[Iterable[object]], MessageId] = partial(tuple.__new__, MessageId)
"""A third of the time of MessageId(...), which is a function in Python."""


class MessageIds(NamedTuple):
    """The ids in a batch."""

    ids: list[MessageId]
    inflated_bytes: int
    """The size of the decompressed records."""


def read_ids(batch: memoryview, header: BatchHeader, max_bytes: int, max_ids: int = NO_LIMIT) -> MessageIds:
    """The ids in a batch, by the order of its records. KafkaError for an id that is not allowed, for too many of them,
    and for records that do not parse and mention one. Batches without ids mostly cost one search for the name."""
    if header.record_count == 0:
        return MessageIds([], 0)
    payload = decompress(header.compression, batch[HEADER_SIZE : header.size], max_bytes=max_bytes)
    if MESSAGE_ID not in payload:
        return MessageIds([], len(payload))
    columns = scan(
        payload, 0, len(payload), header.record_count, 0, header.last_offset_delta, header.base_timestamp
    )
    deltas, nulls = memoryview(columns.offsets).cast("q"), columns.header_nulls
    ends = array("i", columns.header_ends)
    found: list[MessageId] = []
    row, row_end, last = 0, ends[1], -1
    for number, (name_at, name_end, at, end) in enumerate(_SLICE.iter_unpack(columns.header_slices)):
        if name_end - name_at != NAME_SIZE or payload[name_at:name_end] != MESSAGE_ID:
            continue
        while row_end <= number:
            row += 1
            row_end = ends[row + 1]
        if not 0 < end - at <= MAX_ID_BYTES or nulls[number]:
            raise _not_an_id(row, end - at)
        if len(found) >= max_ids:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"more than {max_ids} message ids at once")
        if row == last:
            found.pop()
        last = row
        found.append(_new_id((deltas[row], blake2b(payload[at:end], digest_size=DIGEST_SIZE).digest())))
    return MessageIds(found, len(payload))


def without_records(
    batch: memoryview, header: BatchHeader, dropped: Collection[int], max_bytes: int
) -> tuple[memoryview, BatchHeader]:
    """The batch without the records at these deltas; others are left. It keeps its range of offsets and of sequence
    numbers, as after compaction: the other records keep the offsets that their producer computes."""
    counted_from_0 = header._replace(base_offset=0)  # producers may send any value there
    rows = read_records(batch, header=counted_from_0, max_bytes=max_bytes)
    rebuilt = build_batch(
        [row for row in rows if row.offset not in dropped],
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_offset_delta=header.last_offset_delta,
    )
    return _with_header(bytearray(rebuilt))


def emptied(header: BatchHeader, timestamp_ms: int) -> tuple[memoryview, BatchHeader]:
    """The batch without its records, but with a timestamp for retention."""
    bare = header._replace(
        base_offset=0,
        batch_length=MIN_BATCH_LENGTH,
        attributes=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        record_count=0,
    )
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(batch, 0, *bare)
    return _with_header(bytearray(seal(batch)))


def _with_header(batch: bytearray) -> tuple[memoryview, BatchHeader]:
    view = memoryview(batch)
    return view, read_header(view)


def _not_an_id(row: int, size: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_RECORD,
        f"record {row}: {MESSAGE_ID.decode()} of {size} bytes: expected 1 to {MAX_ID_BYTES}",
    )
