"""The records of a topic that its table does not have yet, as Arrow rows, with a bound on their size. No Spark.

Only committed records are read. Each partition gets an equal share of the bytes, so that none waits for another.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import iter_headers, scan_batch
from penstock.client.wire import EARLIEST, LATEST, Cluster, OffsetGone, fetch_range
from penstock.spark import columns
from penstock.spark.columns import Scanned
from penstock.spark.lake.parquet_files import fitted
from penstock.spark.lake.record_columns import DATE, RECORD_SCHEMA, utc_dates
from penstock.spark.problems import ArchiveError
from penstock.types import Isolation, TopicPartition

log = logging.getLogger("penstock.lake")

FETCH_BYTES: Final = 4 << 20
LEAST_SHARE_BYTES: Final = 64 << 10
"""A limit for one partition, so that a topic of many does not fetch its records one by one."""
VARYING: Final = frozenset(["key", "value", "offset", "timestamp", "timestampType", "headers"])


class Gathered(NamedTuple):
    rows: pa.Table
    """With the columns of a table, in order of date, partition and offset."""
    positions: dict[int, int]
    """The next offset of each partition that was read, past what is no record: markers, and gaps of compaction."""
    has_more: bool


def gather(
    cluster: Cluster, topic: str, partitions: Sequence[int], positions: Mapping[int, int], *, most_bytes: int
) -> Gathered:
    """The next records after `positions`, about `most_bytes` of them."""
    share = max(LEAST_SHARE_BYTES, most_bytes // max(1, len(partitions)))
    parts: list[pa.Table] = []
    reached: dict[int, int] = {}
    has_more = False
    for tp, (start, end) in _open_ranges(cluster, topic, partitions, positions).items():
        rows, position = _read(cluster, tp, start, end, share)
        parts += rows
        reached[tp.partition] = position
        has_more = has_more or position < end
    return Gathered(_in_order(parts), reached, has_more)


def _open_ranges(
    cluster: Cluster, topic: str, partitions: Sequence[int], positions: Mapping[int, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets to read, of partitions that have any."""
    wanted = [TopicPartition(topic, number) for number in partitions]
    ends = cluster.offsets(dict.fromkeys(wanted, LATEST), isolation=Isolation.READ_COMMITTED)
    new = [tp for tp in wanted if tp.partition not in positions]
    begins = cluster.offsets(dict.fromkeys(new, EARLIEST)) if new else {}
    found = {
        tp: (begins[tp].offset if tp in begins else positions[tp.partition], ends[tp].offset) for tp in wanted
    }
    return {tp: bounds for tp, bounds in found.items() if bounds[0] < bounds[1]}


def _read(
    cluster: Cluster, tp: TopicPartition, start: int, end: int, most_bytes: int
) -> tuple[list[pa.Table], int]:
    """Rows from `start` on, and the next offset after them."""
    while True:
        try:
            return _read_there(cluster, tp, start, end, most_bytes)
        except OffsetGone as gone:
            if gone.earliest <= start:
                raise
            log.error(
                "%s: offsets %d to %d were deleted before they were in the table: they are lost for it",
                tp,
                start,
                min(gone.earliest, end) - 1,
            )
            start = min(gone.earliest, end)


def _read_there(
    cluster: Cluster, tp: TopicPartition, start: int, end: int, most_bytes: int
) -> tuple[list[pa.Table], int]:
    found: list[pa.Table] = []
    size_bytes, position = 0, start
    chunks = fetch_range(
        cluster,
        tp,
        start,
        end,
        fetch_bytes=min(FETCH_BYTES, most_bytes),
        isolation=Isolation.READ_COMMITTED,
    )
    try:
        for chunk in chunks:
            for batch, next_offset in _batches(chunk, start, end):
                position = next_offset
                rows = _table(tp, batch, start, end)
                if rows.num_rows:
                    found.append(rows)
                    size_bytes += rows.nbytes
                if size_bytes >= most_bytes:
                    return found, position
    finally:
        chunks.close()
    return found, end


def _batches(chunk: bytes, start: int, end: int) -> Iterator[tuple[Scanned, int]]:
    """Batches with records, and the offset after each."""
    for place, header in iter_headers(chunk):
        if not header.control and header.last_offset >= start and header.base_offset < end:
            yield Scanned.of(*scan_batch(chunk, place)), min(header.last_offset + 1, end)


def _table(tp: TopicPartition, batch: Scanned, start: int, end: int) -> pa.Table:
    try:
        block = columns.to_block(batch, VARYING, start, end)
    except pa.ArrowInvalid as problem:
        raise ArchiveError(
            f"{tp}, offsets {batch.base_offset} to {batch.last_offset}: a timestamp does not fit a table ({problem})"
        ) from None
    varying = {**block.columns, **columns.constants(tp, block.rows)}
    dated = {**varying, DATE: utc_dates(block.columns["timestamp"])}
    return fitted(pa.RecordBatch.from_pydict(dated), RECORD_SCHEMA)


def _in_order(parts: Sequence[pa.Table]) -> pa.Table:
    """Parts are in order of partition and offset. Rows of several dates are sorted, so that each has one file."""
    if not parts:
        return RECORD_SCHEMA.empty_table()
    rows = pa.concat_tables(parts)
    if pc.count_distinct(rows[DATE]).as_py() < 2:
        return rows
    keys = [(name, "ascending") for name in (DATE, "partition", "offset")]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))
