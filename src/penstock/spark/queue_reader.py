"""A stream that works off a queue: leases jobs, gives Spark their records, accepts them when the micro-batch is done.

Spark asks `latestOffset(start)` when the micro-batch that ends at `start` is done and Spark has noted it. That is when
its jobs are accepted; then the next ones are received, and their offsets and receipts are the end of the next
micro-batch, which Spark stores before it runs it. Executors read the records from their partitions, as for topics.

    the driver dies                          its jobs
    after receiving, before Spark's note     delivered again when their leases end
    while the micro-batch runs               read again by offset, renewed and accepted by the next driver; if it comes
                                             after the end of the leases, they are delivered again as well
    after the micro-batch, before accepting  accepted by the next driver, or the same

So every job is done at least once, and a micro-batch that is replayed has the rows that it had before.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.jobs_over_http import JobClient, LeasedJob
from penstock.client.wire import ClientSettings
from penstock.errors import PenstockError
from penstock.spark import queue_offset
from penstock.spark.data_loss import HINT_OTHER, report
from penstock.spark.options import SourceOptions
from penstock.spark.planner import Planner
from penstock.spark.queue_leases import Leases
from penstock.spark.queue_offset import QueueOffset
from penstock.spark.queue_options import QueueOptions
from penstock.spark.read_task import ReadTask
from penstock.spark.stream_offset import is_other_topic
from penstock.spark.values import make_dead_letter_topics
from penstock.types import TopicPartition

log = logging.getLogger("penstock.spark")

WAIT_MS: Final = 500
"""For the first job of a micro-batch. Spark asks again at once."""


class NoQueues(PenstockError):
    """The brokers have no queues that can be worked off over HTTP."""


class JobsTask(InputPartition):
    """Jobs of one partition. Pickled to an executor."""

    def __init__(self, tp: TopicPartition, ranges: list[tuple[int, int]]) -> None:
        super().__init__((tuple(tp), ranges))
        self.topic_partition = tp
        self.ranges = ranges


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        assert options.queue is not None
        self._options = options
        self._schema = schema
        self._queue: QueueOptions = options.queue
        self._planner = Planner(options)
        self._initial: QueueOffset | None = None
        self._client: JobClient | None = None
        self._leases: Leases | None = None
        self._accepted = -1
        self._planned = -1
        self._remaining: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get this object for `read`; connections and leases stay here.
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_schema"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = QueueOffset(queue=self._queue.name, consumer=f"spark-{uuid4().hex[:16]}")
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._queue.max_jobs_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        client = JobClient(self._options.driver, self._queue.name, "spark", named=self._queue.http_urls)
        self._remaining = client.waiting()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = queue_offset.from_json(start, self._queue.name)
        self._accept(done)
        jobs, lease_ms = self._receive(done, limit)
        if not jobs:
            return start
        ranges = queue_offset.ranges_of(jobs)
        topics = self._planner.cluster.topics({tp.topic for tp in ranges})
        receipts = tuple(job.receipt for job in jobs)
        self._planned = done.batch + 1
        return replace(
            done,
            batch=done.batch + 1,
            jobs=ranges,
            topic_ids={name: str(topic.topic_id) for name, topic in topics.items()},
            lease_ms=lease_ms,
            receipts=receipts,
        ).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planned = queue_offset.from_json(end, self._queue.name)
        if self._planned != planned.batch:  # by a driver that is gone
            self._planned = planned.batch
            self._held(planned).hold(planned.receipts, planned.lease_ms)
            self._check_topics(planned)
        make_dead_letter_topics(self._options, self._planner.cluster, {tp.topic for tp in planned.jobs})
        return [JobsTask(tp, ranges) for tp, ranges in sorted(planned.jobs.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.task import TaskReader  # only executors need it

        if not isinstance(partition, JobsTask):  # Spark's own, for a plan without partitions
            return
        reader = TaskReader(options=self._options, schema=self._schema)
        for first, last in partition.ranges:
            yield from reader.read(ReadTask(partition.topic_partition, first, last + 1))

    def commit(self, end: dict[str, Any]) -> None:
        self._accept(queue_offset.from_json(end, self._queue.name))

    def stop(self) -> None:
        if self._leases is not None:
            self._leases.close()
        self._planner.close()

    def _accept(self, done: QueueOffset) -> None:
        """Reports the jobs of a micro-batch that is done. May be called again."""
        if done.batch <= self._accepted or not done.receipts:
            return
        over = self._jobs(done).accept(done.receipts)
        self._accepted = done.batch
        if self._planned <= done.batch:
            self._held(done).drop()
        if over:
            log.warning(
                "%d of %d jobs were done after their leases had ended, and may be delivered again",
                len(over),
                len(done.receipts),
            )

    def _receive(self, done: QueueOffset, limit: ReadLimit) -> tuple[list[LeasedJob], int]:
        """Leases jobs, which are renewed from then on."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._queue.max_jobs_per_trigger
        if self._remaining is not None:
            most = min(most, self._remaining)
        jobs: list[LeasedJob] = []
        lease_ms = 0
        while len(jobs) < most:
            some, lease_ms = self._jobs(done).receive(most - len(jobs), 0 if jobs else WAIT_MS)
            if not some:
                break
            jobs += some
            self._held(done).hold([job.receipt for job in jobs], lease_ms)
        if self._remaining is not None:
            self._remaining = self._remaining - len(jobs) if jobs else 0
        return jobs, lease_ms

    def _check_topics(self, planned: QueueOffset) -> None:
        """Reports topics that were created again since a driver that is gone planned this micro-batch."""
        found = self._planner.cluster.topics({tp.topic for tp in planned.jobs})
        for name, known in planned.topic_ids.items():
            if name in found and is_other_topic(known, str(found[name].topic_id)):
                report(
                    f"topic {name} was deleted and created again since its jobs were received",
                    fail=self._options.fail_on_data_loss,
                    hint=HINT_OTHER,
                )

    def _held(self, offset: QueueOffset) -> Leases:
        if self._leases is None:
            self._leases = Leases(lambda: self._connect(offset.consumer, self._options.driver))
        return self._leases

    def _jobs(self, offset: QueueOffset) -> JobClient:
        if self._client is None:
            self._client = self._connect(offset.consumer, self._options.executor)
        return self._client

    def _connect(self, consumer: str, settings: ClientSettings) -> JobClient:
        client = JobClient(settings, self._queue.name, consumer, named=self._queue.http_urls)
        if not client.is_possible():
            raise NoQueues(
                "the brokers announce no HTTP port, which a stream needs to work off a queue: open it, or name it by "
                "httpUrl"
            )
        return client
