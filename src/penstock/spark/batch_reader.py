"""A batch read: offsets are resolved when the query is planned, and every task reads a fixed range."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.filters import Pruning, prune
from penstock.spark.options import SourceOptions
from penstock.spark.planner import Planner
from penstock.spark.read_limits import OffsetRange, split
from penstock.spark.read_task import ReadTask
from penstock.spark.values import make_dead_letter_topics
from penstock.types import TopicPartition


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pruning = Pruning()
        # Spark refuses a reader that overrides pushFilters where the session has filter pushdown switched off, which
        # is its default. So this reader does not override it: it has one of its own that looks as if it did not.
        self.pushFilters = PushFilters(self)  # type: ignore[method-assign]

    def push(self, filters: list[Filter]) -> list[Filter]:
        # Only on request. Spark 4.3 keeps what was pushed with the DataFrame that load() gave, and lets the next query
        # on it see no more than that: one frame counted 100 rows, then 10 with a filter, then 10 without it.
        if not self._options.push_filters:
            return filters
        self._pruning, left = prune(filters)
        return left

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self._options)
        try:
            return list(self._plan(planner))
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.task import TaskReader  # only executors need it

        return TaskReader(options=self._options, schema=self._schema, pruning=self._pruning).read(partition)

    def _plan(self, planner: Planner) -> list[ReadTask]:
        options, pruning = self._options, self._pruning
        layout = planner.layout(require_all=True)
        if not layout.topic_partitions:
            which = options.subscription
            raise ConfigError(which.option, which.text, "at least one topic that matches")
        starts = planner.resolve(options.starting, layout.topic_partitions)
        ends = planner.resolve(options.ending, layout.topic_partitions)
        kept = tuple(tp for tp in layout.topic_partitions if pruning.allows(tp))
        times = _first_at(planner, pruning, kept)
        ranges = []
        for tp in kept:
            start = max(starts[tp], pruning.offset_from, times.get(tp, 0))
            ranges.append(OffsetRange(topic_partition=tp, start=start, end=min(ends[tp], pruning.offset_to)))
        make_dead_letter_topics(options, planner.cluster, {tp.topic for tp in kept})
        parts = split(
            ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )
        return [ReadTask(part.topic_partition, part.start, part.end) for part in parts]


def _first_at(
    planner: Planner, pruning: Pruning, topic_partitions: tuple[TopicPartition, ...]
) -> dict[TopicPartition, int]:
    """The first offset at or after the wanted time; no record before it can be wanted."""
    if pruning.from_ms is None or not topic_partitions:
        return {}
    found = planner.cluster.offsets(dict.fromkeys(topic_partitions, pruning.from_ms))
    latest = planner.latest([tp for tp, answer in found.items() if answer.offset < 0])
    return {tp: latest.get(tp, answer.offset) for tp, answer in found.items()}


class PushFilters:
    """`pushFilters` of one reader."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters  # where Spark looks to see whether it was overridden

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.push(filters)
