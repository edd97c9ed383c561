"""Batches that a producer sends: a header for encoded rows, and a batch with other sequence numbers.

The header is built separately and joined to the records once, because the records are large and the CRC can be
computed piece by piece.
"""

from struct import Struct

from penstock.batch._encode import EncodedRows
from penstock.batch.checksum import crc32c
from penstock.batch.compression import NONE, compress
from penstock.batch.header import (
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_BIT,
    seal,
)

_NO_TERM = -1
_CRC = Struct(">I")
_PRODUCER = Struct(">qhi")
_PRODUCER_POSITION = 43
"""Here begin producer_id, producer_epoch and base_sequence, one after the other."""


def pack_batch(
    rows: EncodedRows,
    *,
    compression: int = NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One batch of these rows, whose offsets count from 0."""
    payload = rows.payload if compression == NONE else compress(compression, rows.payload)
    header = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        header,
        0,
        0,
        MIN_BATCH_LENGTH + len(payload),
        _NO_TERM,
        MAGIC,
        0,
        compression | (TRANSACTIONAL_BIT if transactional else 0),
        rows.rows - 1,
        rows.base_timestamp,
        rows.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        rows.rows,
    )
    _CRC.pack_into(header, CRC_POSITION, crc32c(payload, crc32c(bytes(header[CRC_START:]))))
    return b"".join((header, payload))


def renumber(batch: bytes, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The batch with another producer id, epoch and first sequence number."""
    copy = bytearray(batch)
    _PRODUCER.pack_into(copy, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    return seal(copy)
