"""Reads and writes the records of internal topics."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.batch import (
    EndMarker,
    Record,
    build_batch,
    check_batch,
    iter_headers,
    read_marker,
    read_records,
)
from penstock.errors import BatchError, CorruptLog
from penstock.log import Appended
from penstock.node.replication.partition import Partition
from penstock.types import Offset, Producer

READ_BYTES = 4 * 1024 * 1024
NO_PRODUCER_ID = -1


class StoredEntry(NamedTuple):
    """A record, or the marker that ends a transaction of this producer."""

    content: Record | EndMarker
    producer_id: int
    """The producer of its transaction; NO_PRODUCER_ID for a record outside transactions."""


def entries_between(partition: Partition, offset: Offset, end: Offset) -> Iterator[StoredEntry]:
    """Records and markers of batches from `offset` on and below `end`, checked. CorruptLog names a batch that has
    changed since it was written: nothing after it can be trusted."""
    while offset < end:
        chunk = read_chunk(partition, offset, end)
        if not chunk:  # compaction has deleted all remaining records
            return
        yield from _entries_of(partition, chunk)
        offset = Offset(max(header.next_offset for _, header in iter_headers(chunk)))


def read_chunk(partition: Partition, offset: Offset, end: Offset) -> bytes:
    """The next batches from `offset` on and below `end`; empty if there are none."""
    return partition.log.read(offset, READ_BYTES, limit=end)


def records_of(partition: Partition, chunk: bytes) -> Iterator[Record]:
    """The records of a chunk, checked batch by batch. The markers of transactions are not among them."""
    for entry in _entries_of(partition, chunk):
        if isinstance(entry.content, Record):
            yield entry.content


def _entries_of(partition: Partition, chunk: bytes) -> Iterator[StoredEntry]:
    for position, header in iter_headers(chunk):
        try:
            records = read_records(chunk, position)
        except BatchError as wrong:
            reason = f"in the batch of offset {header.base_offset}: {wrong}"
            raise CorruptLog(partition.log.path, position, reason) from None
        producer_id = header.producer_id if header.transactional else NO_PRODUCER_ID
        if not header.control:
            yield from (StoredEntry(record, producer_id) for record in records)
            continue
        marker = read_marker(chunk[position : position + header.size], header)
        if marker is not None:
            yield StoredEntry(marker, producer_id)


def build_records(
    records: Iterable[tuple[bytes | None, bytes | None]],
    stamp_ms: int,
    *,
    producer: Producer | None = None,
    sequence: int = -1,
) -> bytearray:
    """Keys and values as one batch, which is transactional if it has a producer. May run in a thread."""
    rows = [Record(i, stamp_ms, key, value, ()) for i, (key, value) in enumerate(records)]
    if producer is None:
        return bytearray(build_batch(rows))
    return bytearray(
        build_batch(
            rows,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


def append_batch(partition: Partition, batch: bytearray) -> Appended:
    """Appends a batch, which is not committed yet. Raises PenstockError if it is refused."""
    return partition.append(memoryview(batch), check_batch(batch))


def append_records(
    partition: Partition,
    records: Iterable[tuple[bytes | None, bytes | None]],
    stamp_ms: int,
    producer: Producer | None = None,
) -> Appended:
    """Appends keys and values as one batch, which is not committed yet; with a producer, as part of its transaction.
    Raises PenstockError if it is refused."""
    if producer is None:
        return append_batch(partition, build_records(records, stamp_ms))
    sequence = partition.log.producers.next_sequence(producer)
    return append_batch(partition, build_records(records, stamp_ms, producer=producer, sequence=sequence))
