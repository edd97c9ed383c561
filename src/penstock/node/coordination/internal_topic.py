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
        chunk = partition.log.read(offset, READ_BYTES, limit=end)
        if not chunk:  # compaction has deleted all remaining records
            return
        for position, header in iter_headers(chunk):
            try:
                yield from read_records(chunk, position)
            except BatchError as wrong:
                reason = f"in the batch of offset {header.base_offset}: {wrong}"
                raise CorruptLog(partition.log.path, position, reason) from None
            offset = Offset(header.next_offset)


def append_records(
    partition: Partition, records: Iterable[tuple[bytes | None, bytes | None]], stamp_ms: int
) -> Appended:
    """Appends keys and values as one batch, which is not committed yet. Raises PenstockError if it is refused."""
    rows = [Record(i, stamp_ms, key, value, ()) for i, (key, value) in enumerate(records)]
    batch = memoryview(bytearray(build_batch(rows)))
    return partition.append(batch, check_batch(batch))
