"""Reads and writes the records of internal topics."""

from collections.abc import Iterable, Iterator

from penstock.batch import Record, build_batch, check_batch, iter_headers, read_records
from penstock.errors import BatchError, CorruptLog
from penstock.log import Appended
from penstock.node.replication.partition import Partition
from penstock.types import Offset

READ_BYTES = 4 * 1024 * 1024


def records_between(partition: Partition, offset: Offset, end: Offset) -> Iterator[Record]:
    """Records of batches from `offset` on and below `end`, checked. CorruptLog names a batch that has changed since it
    was written: nothing after it can be trusted."""
    while offset < end:
        chunk = read_chunk(partition, offset, end)
        if not chunk:  # compaction has deleted all remaining records
            return
        yield from records_of(partition, chunk)
        offset = Offset(max(header.next_offset for _, header in iter_headers(chunk)))


def read_chunk(partition: Partition, offset: Offset, end: Offset) -> bytes:
    """The next batches from `offset` on and below `end`; empty if there are none."""
    return partition.log.read(offset, READ_BYTES, limit=end)


def records_of(partition: Partition, chunk: bytes) -> Iterator[Record]:
    """The records of a chunk, checked batch by batch. The markers of transactions are not among them."""
    for position, header in iter_headers(chunk):
        try:
            records = read_records(chunk, position)
            yield from () if header.control else records
        except BatchError as wrong:
            reason = f"in the batch of offset {header.base_offset}: {wrong}"
            raise CorruptLog(partition.log.path, position, reason) from None


def build_records(records: Iterable[tuple[bytes | None, bytes | None]], stamp_ms: int) -> bytearray:
    """Keys and values as one batch. May run in a thread."""
    rows = [Record(i, stamp_ms, key, value, ()) for i, (key, value) in enumerate(records)]
    return bytearray(build_batch(rows))


def append_batch(partition: Partition, batch: bytearray) -> Appended:
    """Appends a batch, which is not committed yet. Raises PenstockError if it is refused."""
    return partition.append(memoryview(batch), check_batch(batch))


def append_records(
    partition: Partition, records: Iterable[tuple[bytes | None, bytes | None]], stamp_ms: int
) -> Appended:
    """Appends keys and values as one batch, which is not committed yet. Raises PenstockError if it is refused."""
    return append_batch(partition, build_records(records, stamp_ms))
