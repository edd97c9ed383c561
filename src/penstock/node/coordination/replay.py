"""Reading an internal topic, to rebuild the state that it stands for."""

from collections.abc import Iterator

from penstock.batch import Record, iter_headers, read_records
from penstock.errors import BatchError, CorruptLog
from penstock.node.replication.partition import Partition
from penstock.types import Offset

READ_BYTES = 4 * 1024 * 1024


def stored_records(partition: Partition) -> Iterator[Record]:
    """Every record that is committed, checked."""
    yield from records_between(partition, partition.start_offset, partition.high_watermark)


def records_between(partition: Partition, offset: Offset, end: Offset) -> Iterator[Record]:
    """Records of batches from `offset` on and below `end`, checked. CorruptLog names the batch that is not what it was:
    nothing after it can be trusted."""
    while offset < end:
        chunk = partition.log.read(offset, READ_BYTES, limit=end)
        if not chunk:  # compaction took all that was left
            return
        for position, header in iter_headers(chunk):
            try:
                yield from read_records(chunk, position)
            except BatchError as wrong:
                reason = f"in the batch of offset {header.base_offset}: {wrong}"
                raise CorruptLog(partition.log.path, position, reason) from None
            offset = Offset(header.next_offset)
