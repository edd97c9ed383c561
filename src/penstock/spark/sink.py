"""The writers behind `format("penstock")`: rows to topics, at least once.

A task sends its rows as they come and reports only when every one of them is acked by all replicas. Within one
attempt nothing is written twice, since the producer is idempotent. A task that is tried again writes its rows again:
Spark has no way to undo those of the first attempt, and its own Kafka sink does the same.

The report (`Written`) names the query, the micro-batch and the attempt that wrote. Nothing uses it yet: exactly-once
writing will need it, once brokers have transactions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.client.wire import ClientSettings
from penstock.spark import sink_producers, sink_schema
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_sender import RowSender, gathered

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets in the tasks of a streaming query. Not documented, and there since 2.0."""


@dataclass(frozen=True, kw_only=True)
class Written(WriterCommitMessage):
    """The report of one attempt of one task: everything is acked."""

    rows: int
    records: int
    """As many as rows, except where one record holds many rows."""
    bytes: int
    """The size of the record batches, compressed."""
    rows_by_topic: dict[str, int] = field(default_factory=dict)
    query_id: str | None = None
    batch_id: int | None = None
    partition_id: int = -1
    """The task's partition of the DataFrame, not a topic's."""
    attempt: int = 0


class _Writer:
    """Common to both writers. It is pickled to the executors, so it holds no open connection."""

    def __init__(self, settings: ClientSettings, schema: StructType, options: SinkOptions) -> None:
        self._columns = sink_schema.check(schema, options)
        self._value_type = schema["value"].dataType
        self._options = replace(options, client=settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends the rows of one task; returns when all are acked."""
        options = self._options
        with sink_producers.borrowed(options) as producer:
            rows_before, bytes_before = producer.acked_rows, producer.acked_bytes
            sender = RowSender(
                producer,
                self._columns,
                topic=options.topic,
                encoder=sink_schema.encoder_of(self._value_type, options),
                packs=options.payload.value_format == "arrow",
            )
            for batch in gathered(iterator):
                sender.send(batch)
            producer.flush()
            return _written(sender, producer.acked_rows - rows_before, producer.acked_bytes - bytes_before)


class PenstockArrowWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a batch query."""


class PenstockStreamArrowWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the rows of a stream's micro-batches. Nothing is to be committed or taken back: rows are seen at once."""


def _written(sender: RowSender, records: int, size: int) -> Written:
    context = TaskContext.get()
    batch_id = context.getLocalProperty(BATCH_ID) if context else None
    return Written(
        rows=sender.rows_by_topic.total(),
        records=records,
        bytes=size,
        rows_by_topic=dict(sender.rows_by_topic),
        query_id=context.getLocalProperty(QUERY_ID) if context else None,
        batch_id=int(batch_id) if batch_id else None,
        partition_id=context.partitionId() if context else -1,
        attempt=context.attemptNumber() if context else 0,
    )
