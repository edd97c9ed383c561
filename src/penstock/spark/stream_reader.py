"""A streaming read. Runs in one process of the driver for as long as the query does; only `read` runs elsewhere.

What Spark asks, in this order: `initialOffset` (several times: the answer must not move), then for each batch
`latestOffset(start)`, `partitions(start, end)`, and `commit(end)` while the next batch is at work. `start` in
`latestOffset` is the end of the last batch that is done, so that call is when progress is committed to the consumer
group; `stop` is not reliably called (Spark kills the process).
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client import ClientError
from penstock.errors import ConfigError
from penstock.spark import stream_offset
from penstock.spark.admission import OffsetRange, limited, split
from penstock.spark.data_loss import HINT_OTHER, report
from penstock.spark.options import SourceOptions
from penstock.spark.planner import Layout, Planner
from penstock.spark.read_task import ReadTask
from penstock.spark.stream_offset import StreamOffset
from penstock.spark.values import make_dead_letter_topics
from penstock.types import TopicPartition

log = logging.getLogger("penstock.spark")

SILENT_AFTER_FAILURE_MS: Final = 60_000


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner = Planner(options)
        self._progress = Planner(options)
        self._initial: StreamOffset | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._latest: StreamOffset | None = None
        self._shown: StreamOffset | None = None
        self._group = ""
        self._is_patient = False
        self._silent_until_ms = 0
        self._have_dead_letters: set[str] = set()
        self._last_batch_ms = _now_ms()

    def __getstate__(self) -> dict[str, Any]:
        # Executors get this object for `read`; connections and progress stay here.
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_schema"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            layout = self._layout(require_all=True)
            starts = self._planner.resolve(self._options.starting, layout.places)
            self._initial = StreamOffset(
                positions=starts, group=self._new_group(), topic_ids=layout.topic_ids, since=starts
            )
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.latest(self._layout(require_all=False).places)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = self._named(stream_offset.from_json(start))
        self._show_progress(done)
        layout = self._layout(require_all=False)
        self._be_patient()
        self._check_there(done, layout)
        begins, since = self._begins(done, layout)
        ends = self._ends(begins, layout)
        self._latest = done.moved(ends, layout.topic_ids, {})
        taken = self._admitted(begins, ends, limit)
        # A place that has not been used yet keeps its pins: they are the start of the batch that ends here.
        is_first = done.since == done.positions
        pins = {**(done.since if is_first else {}), **since}
        next_place = done.moved(taken, layout.topic_ids, pins if taken != done.positions or since else {})
        if next_place.positions == done.positions and not since:
            return start
        self._last_batch_ms = _now_ms()
        return next_place.to_json()

    def _be_patient(self) -> None:
        """A stream that runs outlasts a restart of its brokers; one that starts says soon that they are not there."""
        if not self._is_patient:
            self._is_patient = True
            self._planner.close()
            self._planner = Planner(replace(self._options, driver=self._options.executor))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        last = stream_offset.from_json(end)
        begins = stream_offset.starts(stream_offset.from_json(start), last)
        ranges = [
            OffsetRange(place=place, start=begins[place], end=last.positions[place])
            for place in sorted(last.positions)
        ]
        self._make_dead_letter_topics(ranges)
        parts = split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [ReadTask(part.place, part.start, part.end) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.task import TaskReader  # only executors need it

        return TaskReader(options=self._options, schema=self._schema).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._show_progress(self._named(stream_offset.from_json(end)))

    def stop(self) -> None:
        self._planner.close()
        self._progress.close()

    def _named(self, done: StreamOffset) -> StreamOffset:
        """With a group: the connector's places have none, and a name that is given wins over the checkpoint's."""
        if self._options.group_id:
            return replace(done, group=self._options.group_id)
        if not done.group:
            self._group = self._group or self._new_group()
            return replace(done, group=self._group)
        return done

    def _new_group(self) -> str:
        return self._options.group_id or f"{self._options.group_id_prefix}-{uuid4().hex[:16]}"

    def _layout(self, *, require_all: bool) -> Layout:
        layout = self._planner.layout(require_all=require_all)
        if require_all and not layout.places and not self._options.subscription.pattern:
            which = self._options.subscription
            raise ConfigError(which.option, which.text, "at least one partition")
        return layout

    def _check_there(self, done: StreamOffset, layout: Layout) -> None:
        """Partitions and topics that the stream has read from and that are gone, or are others by the same name."""
        fail = self._options.fail_on_data_loss
        gone = sorted(set(done.positions) - set(layout.places))
        if gone:
            report(
                f"{', '.join(map(str, gone[:10]))} is gone, and the stream was reading it",
                fail=fail,
                hint=HINT_OTHER,
            )
        for topic in sorted(set(done.topic_ids) & set(layout.topic_ids)):
            if stream_offset.is_other_topic(done.topic_ids[topic], layout.topic_ids[topic]):
                report(
                    f"topic {topic} was deleted and made again since the last batch (id {done.topic_ids[topic]}, "
                    f"now {layout.topic_ids[topic]})",
                    fail=fail,
                    hint=HINT_OTHER,
                )

    def _begins(
        self, done: StreamOffset, layout: Layout
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Where each partition goes on, and of these the ones that are new: they begin at their first record."""
        again = {
            topic
            for topic, known in done.topic_ids.items()
            if stream_offset.is_other_topic(known, layout.topic_ids.get(topic, known))
        }
        known = {
            place: done.positions[place]
            for place in layout.places
            if place in done.positions and place.topic not in again
        }
        fresh = self._planner.earliest([place for place in layout.places if place not in known])
        for place, offset in sorted(fresh.items()):
            if offset > 0:
                report(
                    f"new partition {place} begins at offset {offset}: what was before is gone unread",
                    fail=self._options.fail_on_data_loss,
                )
        return {**known, **fresh}, fresh

    def _ends(self, begins: dict[TopicPartition, int], layout: Layout) -> dict[TopicPartition, int]:
        ends = self._planner.latest(layout.places)
        for place, end in sorted(ends.items()):
            if end < begins[place]:
                report(
                    f"{place} ends at offset {end}, and the stream has read up to {begins[place]}",
                    fail=self._options.fail_on_data_loss,
                )
        if self._target is None:
            return ends
        # Never past the target; what came to be after it was set waits for the next run.
        targets = {place: max(self._target.get(place, begins[place]), begins[place]) for place in ends}
        return {place: min(end, targets[place]) for place, end in ends.items()}

    def _admitted(
        self, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        """How far this batch goes."""
        if isinstance(limit, ReadAllAvailable):
            return ends
        waiting = sum(max(0, end - begins[place]) for place, end in ends.items())
        least = self._options.min_offsets_per_trigger
        if least is not None and waiting < least and self._target is None and not self._is_late():
            return {place: min(begins[place], ends[place]) for place in ends}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return ends if most is None else limited(begins, ends, most)

    def _is_late(self) -> bool:
        return _now_ms() - self._last_batch_ms >= self._options.max_trigger_delay_ms

    def _make_dead_letter_topics(self, ranges: list[OffsetRange]) -> None:
        topics = stream_offset.topics_of(each.place for each in ranges if each.size)
        make_dead_letter_topics(self._options, self._planner.cluster, topics - self._have_dead_letters)
        self._have_dead_letters |= topics

    def _show_progress(self, done: StreamOffset) -> None:
        """Commits to the consumer group, for those who look at lag. The checkpoint is what counts, so a failure here
        does not fail the stream."""
        if not self._options.commit_progress or done == self._shown or _now_ms() < self._silent_until_ms:
            return
        try:
            self._progress.cluster.commit(done.group, done.positions)
            self._shown = done
        except ClientError as problem:
            # Each try may take as long as planning may; a stream must not pay that for every batch.
            self._silent_until_ms = _now_ms() + SILENT_AFTER_FAILURE_MS
            log.warning("progress of group %s is not shown: %s", done.group, problem)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
