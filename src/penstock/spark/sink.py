"""The writers behind `format("penstock")`: rows to topics; streaming queries exactly once, if the brokers can do it.

A task sends its rows as they come and reports only when every one of them is acked by all replicas. Within one
attempt nothing is written twice, since the producer is idempotent. Rows of a failed attempt do not count when the
task is tried again: `sink_attempts.py`. Without that, the rows are written again: Spark has no way to undo those of
the first attempt, and its own Kafka sink does the same.

Spark makes the writer again for each micro-batch, and commits in another process than it plans and writes in. So the
reports of tasks (`Written`) carry everything that the commit needs. The process that commits imports this module too,
and mostly has nothing to do: so the imports of writing are where they are used.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.client.wire.settings import ClientSettings
from penstock.errors import ConfigError
from penstock.spark import sink_schema
from penstock.spark.sink_options import SinkOptions
from penstock.spark.worker_memory import freeze_once

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.attempts import Version
    from penstock.client.wire.producer import BatchProducer
    from penstock.spark.sink_attempts import Attempt

OWNER_PREFIX = "spark-"
"""Begins the names of owners of attempts that are streaming queries."""
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
    written_as: "Attempt | None" = None
    """None: the rows are visible already, or there were none."""


class _Writer:
    """Common to both writers. It is pickled to the executors, so it holds no open connection."""

    def __init__(self, settings: ClientSettings, schema: StructType, options: SinkOptions) -> None:
        self._columns = sink_schema.check(schema, options)
        self._value_type = schema["value"].dataType
        self._options = replace(options, client=settings)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Sends the rows of one task; returns when all are acked."""
        written = self._write(iterator)
        freeze_once()
        return written

    def _write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        from penstock.spark import sink_producers
        from penstock.spark.sink_sender import gathered

        options = self._options
        batches = (batch for batch in gathered(iterator) if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return _written({})
        attempt = self._begin()
        rest = chain([first], batches)
        if attempt is None:
            with sink_producers.borrowed(options) as producer:
                return self._send(producer, rest)
        if attempt.producer is None:
            deque(rest, maxlen=0)  # Spark wants its rows to be read
            return _written({}, attempt=attempt)
        with sink_producers.of_attempt(options, attempt.producer) as producer:
            return self._send(producer, rest, attempt)

    def _begin(self) -> "Attempt | None":
        version = self._version()
        if version is None:
            return None
        from penstock.spark import sink_attempts

        return sink_attempts.begin(self._options, version)

    def _send(
        self,
        producer: "BatchProducer",
        batches: "Iterable[pa.RecordBatch]",
        attempt: "Attempt | None" = None,
    ) -> Written:
        from penstock.spark.sink_sender import RowSender

        options = self._options
        rows_before, bytes_before = producer.acked_rows, producer.acked_bytes
        sender = RowSender(
            producer,
            self._columns,
            topic=options.topic,
            encoder=sink_schema.encoder_of(self._value_type, options),
            packs=options.payload.value_format == "arrow",
        )
        rows_sent = _signs_of_life(options, attempt)
        for batch in batches:
            sender.send(batch)
            rows_sent()
        producer.flush()
        records, size = producer.acked_rows - rows_before, producer.acked_bytes - bytes_before
        return _written(dict(sender.rows_by_topic), records, size, attempt)

    def _version(self) -> "Version | None":
        """The version that this task writes a part of; None if it has no name."""
        raise NotImplementedError

    def _commit(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        attempts = _attempts(messages)
        if attempts:
            from penstock.spark import sink_attempts

            sink_attempts.commit(self._options, attempts)

    def _roll_back(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        attempts = _attempts(messages)
        if attempts:
            from penstock.spark import sink_attempts

            sink_attempts.roll_back(self._options, attempts)


class PenstockArrowWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a batch query: exactly once with `txnAppId` and `txnVersion`, else at least once."""

    def __init__(self, settings: ClientSettings, schema: StructType, options: SinkOptions) -> None:
        super().__init__(settings, schema, options)
        if options.exactly_once == "true" and options.txn_app_id is None:
            expected = "also txnAppId and txnVersion, which name what a batch query writes once"
            raise ConfigError("exactlyOnce", "true", expected)

    def _version(self) -> "Version | None":
        """As in Delta, a version counts once for each table: a job may write several topics."""
        app_id, topic = self._options.txn_app_id, self._options.topic
        if app_id is None or self._options.txn_version is None:
            return None
        from penstock.client.attempts import Version

        return Version(app_id if topic is None else f"{app_id}:{topic}", self._options.txn_version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._roll_back(messages)


class PenstockStreamArrowWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the rows of a stream's micro-batches."""

    def __init__(self, settings: ClientSettings, schema: StructType, options: SinkOptions) -> None:
        super().__init__(settings, schema, options)
        if options.txn_app_id is not None:
            expected = "no such option: a streaming query has an id and numbers of its own"
            raise ConfigError("txnAppId", options.txn_app_id, expected)

    def _version(self) -> "Version | None":
        query_id, batch_id = _micro_batch()
        if query_id is None or batch_id is None:
            return None
        from penstock.client.attempts import Version

        return Version(OWNER_PREFIX + query_id, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._roll_back(messages)


def _micro_batch() -> tuple[str | None, int | None]:
    """The streaming query and the micro-batch that this task belongs to."""
    context = TaskContext.get()
    if context is None:
        return None, None
    batch_id = context.getLocalProperty(BATCH_ID)
    return context.getLocalProperty(QUERY_ID), int(batch_id) if batch_id else None


def _attempts(messages: Iterable[WriterCommitMessage | None]) -> "list[Attempt]":
    reports = (one for one in messages if isinstance(one, Written))
    return [one.written_as for one in reports if one.written_as is not None]


def _signs_of_life(options: SinkOptions, attempt: "Attempt | None") -> Callable[[], None]:
    """To be called while rows are sent."""
    if attempt is None:
        return lambda: None
    from penstock.spark.sink_attempts import SignsOfLife

    return SignsOfLife(options, attempt).rows_sent


def _written(
    rows_by_topic: dict[str, int], records: int = 0, size: int = 0, attempt: "Attempt | None" = None
) -> Written:
    context = TaskContext.get()
    query_id, batch_id = _micro_batch()
    return Written(
        rows=sum(rows_by_topic.values()),
        records=records,
        bytes=size,
        rows_by_topic=rows_by_topic,
        query_id=query_id,
        batch_id=batch_id,
        partition_id=context.partitionId() if context else -1,
        attempt=context.attemptNumber() if context else 0,
        written_as=attempt,
    )
