"""The work of an executor: fetch a range of one partition, decode it, yield Arrow batches of about ten thousand rows.

Batches are checked (CRC) and scanned as they come. Small ones are joined, since each batch that is yielded costs Spark
a fixed amount; large ones are cut, since Spark holds each in memory whole.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.batch import iter_headers, scan_batch
from penstock.client import Refused
from penstock.client.wire import Cluster, OffsetGone, fetch_range
from penstock.errors import ErrorCode, PenstockError
from penstock.spark import columns, connections, data_loss
from penstock.spark.columns import Block, Scanned
from penstock.spark.filters import EVERYTHING, Pruning
from penstock.spark.options import SourceOptions
from penstock.spark.read_task import ReadTask
from penstock.spark.schema import arrow_schema
from penstock.spark.values import ValueColumn
from penstock.spark.worker_memory import freeze_once

log = logging.getLogger("penstock.spark")

TARGET_ROWS: Final = 8_000
"""Enough to yield: measured, batches of 10,000 rows give twice the rate of 1,000, and 100,000 nothing more."""
MOST_ROWS: Final = 20_000
TARGET_BYTES: Final = 1_500_000
"""Bytes of keys and values that are enough to yield: large records make batches of fewer rows. The rows of one
fetch are then yielded without being joined to the next; with 16 MB, records of 1 KB took a tenth more CPU."""
MOST_BYTES: Final = 32 << 20


class StrangeRecord(PenstockError):
    """A record that is valid for Kafka and does not fit Spark's types."""


@dataclass(frozen=True, kw_only=True)
class TaskReader:
    """The settings of a task, without its range. Pickled to executors as part of a reader."""

    options: SourceOptions
    schema: StructType
    pruning: Pruning = EVERYTHING

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ReadTask):  # Spark's own, for a plan without partitions
            return
        schema = arrow_schema(self.schema)
        values = ValueColumn(self.options, self.schema)
        with connections.borrowed(self.options.executor) as cluster:
            for block in self._blocks(cluster, partition, values.needs | self._wanted(schema)):
                for piece in _cut(block):
                    shared = columns.constants(partition.topic_partition, piece.rows)
                    yield from values.finish(cluster, partition.topic_partition, piece, shared)
        freeze_once()

    def _wanted(self, schema: pa.Schema) -> frozenset[str]:
        varying = frozenset(schema.names) - {"topic", "partition"}
        # At least one column must give the number of rows.
        return varying | ({"timestamp"} if self.pruning.by_time else set()) or frozenset(["offset"])

    def _blocks(self, cluster: Cluster, task: ReadTask, wanted: frozenset[str]) -> Iterator[Block]:
        waiting: list[Block] = []
        rows = size = 0
        for block in self._scanned(cluster, task, wanted):
            if not block.rows:
                continue
            waiting.append(block)
            rows += block.rows
            size += block.size_bytes
            if rows >= TARGET_ROWS or size >= TARGET_BYTES:
                yield columns.joined(waiting)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield columns.joined(waiting)

    def _scanned(self, cluster: Cluster, task: ReadTask, wanted: frozenset[str]) -> Iterator[Block]:
        for start, chunk in self._chunks(cluster, task):
            for batch in self._runs(chunk, start, task.end, joins="headers" not in wanted):
                try:
                    block = columns.to_block(batch, wanted, start, task.end)
                except pa.ArrowInvalid as problem:
                    raise StrangeRecord(
                        f"{task.topic_partition}, offsets {batch.base_offset} to {batch.last_offset}: a timestamp does "
                        f"not fit Spark's ({problem}). Leave it out with the option columns"
                    ) from None
                if self.pruning.by_time:
                    block = columns.filtered(block, partial(_in_time, self.pruning))
                yield block

    def _runs(self, chunk: bytes, start: int, end: int, *, joins: bool) -> Iterator[Scanned]:
        """The chunk's batches, those that were not compressed as one: each costs Arrow's kernels a call."""
        earliest_ms = self.pruning.from_ms
        run: list[Scanned] = []
        for position, header in iter_headers(chunk):
            if header.control or header.last_offset < start or header.base_offset >= end:
                continue
            if earliest_ms is not None and 0 <= header.max_timestamp < earliest_ms:
                continue
            batch = Scanned.of(*scan_batch(chunk, position))
            if run and not (joins and run[-1].goes_with(batch)):
                yield columns.together(run)
                run = []
            run.append(batch)
        if run:
            yield columns.together(run)

    def _chunks(self, cluster: Cluster, task: ReadTask) -> Iterator[tuple[int, bytes]]:
        """The range's batches, and the first offset that counts in them. If offsets are gone, it fails or continues
        after the gap, by failOnDataLoss."""
        start = task.start
        size, wait_ms = self.options.fetch_bytes, self.options.max_wait_ms
        while start < task.end:
            try:
                for chunk in fetch_range(
                    cluster,
                    task.topic_partition,
                    start,
                    task.end,
                    fetch_bytes=size,
                    max_wait_ms=wait_ms,
                    isolation=self.options.isolation,
                ):
                    yield start, chunk
                return
            except Refused as refusal:
                if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                data_loss.report(
                    f"{task.topic_partition} is gone, and offsets {start} to {task.end - 1} were to be read",
                    fail=self.options.fail_on_data_loss,
                    hint=data_loss.HINT_OTHER,
                )
                return
            except OffsetGone as gone:
                end = min(task.end, gone.earliest if gone.earliest > gone.wanted else task.end)
                data_loss.report(
                    f"{task.topic_partition}: offsets {gone.wanted} to {end - 1} were to be read, and the log has "
                    f"{gone.earliest} to {gone.latest - 1}",
                    fail=self.options.fail_on_data_loss,
                )
                start = end


def _in_time(pruning: Pruning, found: dict[str, pa.Array]) -> pa.Array:
    times = found["timestamp"].view(pa.int64())
    return pc.and_(
        pc.greater_equal(times, max(pruning.time_from_us, -(2**62))),
        pc.less(times, min(pruning.time_to_us, 2**62)),
    )


def _cut(block: Block) -> Iterator[Block]:
    pieces_wanted = max(block.rows / TARGET_ROWS, 2 * block.size_bytes / MOST_BYTES)
    if block.rows <= MOST_ROWS and block.size_bytes <= MOST_BYTES:
        yield block
        return
    step = max(1, int(block.rows / round(pieces_wanted)))
    for first in range(0, block.rows, step):
        rows = min(step, block.rows - first)
        pieces = {name: column.slice(first, rows) for name, column in block.columns.items()}
        yield Block(rows, block.size_bytes * rows // block.rows, pieces)
