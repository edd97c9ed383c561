"""Sends Arrow batches to a producer: chooses topic and partition, and cuts batches to the right size.

Rows of one key keep their order: rows are grouped by partition without changing it, and a partition's batches leave in
order. Rows without a key or partition go to one partition per Arrow batch, the next batch to the next, as Kafka's
producer does with its batches.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from penstock.batch.producing import Column, RowColumns, encode_columns, group_rows, partition_of_keys
from penstock.client.wire.producer import BatchProducer
from penstock.spark.payloads import Encoder
from penstock.spark.sink_rows import (
    column_of,
    header_column_of,
    partitions_of,
    rows_taken,
    times_of,
    topics_of,
)
from penstock.spark.sink_schema import SinkColumns
from penstock.types import TopicPartition

ALL: Final = b""
"""No selection: every row."""
GATHERED_BYTES: Final = 2 << 20
"""Small Arrow batches are joined up to this, so that a topic of many partitions gets fewer and larger batches."""
PACKED_OVERHEAD_BYTES: Final = 128
"""The bytes of a record and its batch around a packed value."""


class RowSender:
    """Sends rows and counts them."""

    def __init__(
        self,
        producer: BatchProducer,
        columns: SinkColumns,
        *,
        topic: str | None,
        encoder: Encoder | None,
        packs: bool,
    ) -> None:
        self._producer = producer
        self._columns = columns
        self._topic = topic
        self._encoder = encoder
        self._packs = packs
        self._keyless: Counter[str] = Counter()
        self._start = random.randrange(1 << 16)  # many tasks must not all begin with the same partition
        self.rows_by_topic: Counter[str] = Counter()

    def send(self, batch: pa.RecordBatch) -> None:
        """Queues all rows of a batch with the producer."""
        if not batch.num_rows:
            return
        if self._packs:
            rows = RowColumns(batch.num_rows, Column(), Column())
        else:
            rows = self._row_columns(batch)
        for topic, selected in self._by_topic(batch):
            self.rows_by_topic[topic] += len(selected) // 4 if selected else batch.num_rows
            for partition, mine in self._by_partition(batch, rows.keys, topic, selected):
                tp = TopicPartition(topic, partition)
                if self._packs:
                    self._send_packed(batch, tp, mine)
                else:
                    self._send_rows(rows, tp, mine)

    def _row_columns(self, batch: pa.RecordBatch) -> RowColumns:
        value = batch.column("value")
        if self._encoder is not None:
            value = self._encoder.encode(value)
        columns = self._columns
        return RowColumns(
            batch.num_rows,
            column_of(batch.column("key")) if columns.key else Column(),
            column_of(value),
            header_column_of(batch.column("headers")) if columns.headers else None,
            times_of(batch.column("timestamp"), _now_ms()) if columns.timestamp else b"",
        )

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
        if self._topic is not None:
            yield self._topic, ALL
            return
        topics, which = topics_of(batch.column("topic"))
        if len(topics) == 1:
            yield topics[0], ALL
            return
        yield from zip(topics, group_rows(which, ALL, len(topics)), strict=True)

    def _by_partition(
        self, batch: pa.RecordBatch, keys: Column, topic: str, rows: bytes
    ) -> Iterator[tuple[int, bytes]]:
        count = self._producer.partitions_of(topic)
        keyless = (self._start + self._keyless[topic]) % count
        self._keyless[topic] += 1
        if not self._columns.partition and (count == 1 or not keys.offsets):
            yield keyless, rows
            return
        chosen = partition_of_keys(keys, rows, batch.num_rows, count, keyless)
        if self._columns.partition:
            chosen = partitions_of(batch.column("partition"), chosen, rows, topic, count)
        for partition, mine in enumerate(group_rows(chosen, rows, count)):
            if mine:
                yield partition, mine

    def _send_rows(self, columns: RowColumns, tp: TopicPartition, rows: bytes) -> None:
        total = len(rows) // 4 if rows else columns.rows
        start = 0
        now_ms = _now_ms()
        while start < total:
            encoded = encode_columns(columns, rows, start, self._producer.batch_bytes(tp.topic), now_ms)
            self._producer.send(tp, encoded)
            start += encoded.rows

    def _send_packed(self, batch: pa.RecordBatch, tp: TopicPartition, rows: bytes) -> None:
        assert self._encoder is not None
        limit = max(1, self._producer.batch_bytes(tp.topic) - PACKED_OVERHEAD_BYTES)
        packed = self._encoder.pack(rows_taken(batch.column("value"), rows), limit)
        values = column_of(pa.array(packed, pa.binary()))
        self._send_rows(RowColumns(len(packed), Column(), values), tp, ALL)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least GATHERED_BYTES, the last one excepted."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= GATHERED_BYTES:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
