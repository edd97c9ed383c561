"""The marker that ends a transaction on a partition: Kafka's control record, in a control batch of its own.

The batch has the control and the transactional bit, the producer's id and epoch, base_sequence -1 and one record:

    key     version  int16, 0      type               int16: 0 abort, 1 commit
    value   version  int16, 0      coordinator_epoch  int32

Unlike a zero-width batch a marker owns an offset, so readers see a gap there: clients skip it by its control bit.

Compaction keeps a marker for a while after it has removed the last record of its transaction. The time at which the
marker may go is in the batch itself, as in Kafka: bit 6 of the attributes says that base_timestamp is that time.
"""

from struct import Struct
from typing import NamedTuple

from penstock.batch._rows import encode_rows
from penstock.batch.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    seal,
)
from penstock.batch.records import Record, read_records
from penstock.errors import BatchError

VERSION = 0
ABORT, COMMIT = 0, 1
NO_SEQUENCE = -1
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class EndMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that decided it."""

    commit: bool
    coordinator_epoch: int


def build_marker(
    marker: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    offset: int = 0,
    term: int = 0,
) -> bytearray:
    """The control batch that ends the producer's transaction. The leader that stores it stamps offset and term."""
    header = BatchHeader(
        base_offset=offset,
        batch_length=0,
        leader_epoch=term,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    key = _KEY.pack(VERSION, COMMIT if marker.commit else ABORT)
    value = _VALUE.pack(VERSION, marker.coordinator_epoch)
    return bytearray(_packed(header, Record(offset, timestamp_ms, key, value)))


def read_marker(batch: Buffer, header: BatchHeader) -> EndMarker | None:
    """The marker in this control batch; None if it holds something else. Later versions may have more fields."""
    if not header.control or not header.transactional or header.record_count != 1:
        return None
    try:
        [record] = read_records(batch, header=header)
    except BatchError:
        return None
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    kind, coordinator_epoch = _KEY.unpack_from(key)[1], _VALUE.unpack_from(value)[1]
    return EndMarker(kind == COMMIT, coordinator_epoch) if kind in (ABORT, COMMIT) else None


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """When compaction may remove this batch; None if no pass has decided it yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def with_delete_horizon(batch: Buffer, header: BatchHeader, horizon_ms: int) -> bytes:
    """The same marker, which compaction may remove at this time. Its record keeps its timestamp."""
    [record] = read_records(batch, header=header)
    changed = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms)
    return _packed(changed, record)


def _packed(header: BatchHeader, record: Record) -> bytes:
    payload = encode_rows([record], header.base_offset, header.base_timestamp)
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(batch, 0, *header._replace(batch_length=MIN_BATCH_LENGTH + len(payload)))
    batch[HEADER_SIZE:] = payload
    return seal(batch)
