"""A streaming read. Runs in one process of the driver for as long as the query does; only `read` runs elsewhere.

Spark calls, in this order: `initialOffset` (several times: the answer must not change), then for each batch
`latestOffset(start)`, `partitions(start, end)`, and `commit(end)` while the next batch runs. `start` in
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
from penstock.client.wire.group_offsets import BROKER_RETENTION
from penstock.errors import ConfigError
from penstock.spark import stream_offset
from penstock.spark.data_loss import HINT_OTHER, report
from penstock.spark.options import SourceOptions
from penstock.spark.planner import Layout, Planner
from penstock.spark.read_limits import OffsetRange, limited, split
from penstock.spark.read_task import ReadTask
from penstock.spark.stream_offset import StreamOffset
from penstock.spark.values import make_dead_letter_topics
from penstock.types import Isolation, TopicPartition

log = logging.getLogger("penstock.spark")

SILENT_AFTER_FAILURE_MS: Final = 60_000
RENEWALS: Final = 10
"""How often a stream without new records commits its progress within the retention of its group."""


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
        self._shown_ms = 0
        self._group = ""
        self._retries_longer = False
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
            starts = self._planner.resolve(self._options.starting, layout.topic_partitions)
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
        self._target = self._planner.latest(self._layout(require_all=False).topic_partitions)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = self._named(stream_offset.from_json(start))
        self._show_progress(done)
        layout = self._layout(require_all=False)
        self._retry_longer()
        self._check_there(done, layout)
        begins, since = self._begins(done, layout)
        ends = self._ends(begins, layout)
        self._latest = done.moved(ends, layout.topic_ids, {})
        taken = self._admitted(begins, ends, limit)
        # A position that has not been used yet keeps its `since`: it is the start of the batch that ends here.
        is_first = done.since == done.positions
        pins = {**(done.since if is_first else {}), **since}
        next_offset = done.moved(taken, layout.topic_ids, pins if taken != done.positions or since else {})
        if next_offset.positions == done.positions and not since:
            return start
        self._last_batch_ms = _now_ms()
        return next_offset.to_json()

    def _retry_longer(self) -> None:
        """A running stream survives a restart of its brokers; a starting one fails early if they are away."""
        if not self._retries_longer:
            self._retries_longer = True
            self._planner.close()
            self._planner = Planner(replace(self._options, driver=self._options.executor))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        last = stream_offset.from_json(end)
        begins = stream_offset.starts(stream_offset.from_json(start), last)
        ranges = [
            OffsetRange(topic_partition=tp, start=begins[tp], end=last.positions[tp])
            for tp in sorted(last.positions)
        ]
        self._make_dead_letter_topics(ranges)
        parts = split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [ReadTask(part.topic_partition, part.start, part.end) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.task import TaskReader  # only executors need it

        return TaskReader(options=self._options, schema=self._schema).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._show_progress(self._named(stream_offset.from_json(end)))

    def stop(self) -> None:
        self._planner.close()
        self._progress.close()

    def _named(self, done: StreamOffset) -> StreamOffset:
        """The offset with a group: the connector's has none, and the option takes precedence over the checkpoint."""
        if self._options.group_name:
            return replace(done, group=self._options.group_name)
        if not done.group:
            self._group = self._group or self._new_group()
            return replace(done, group=self._group)
        return done

    def _new_group(self) -> str:
        return self._options.group_name or f"{self._options.group_id_prefix}-{uuid4().hex[:16]}"

    def _layout(self, *, require_all: bool) -> Layout:
        layout = self._planner.layout(require_all=require_all)
        if require_all and not layout.topic_partitions and not self._options.subscription.pattern:
            which = self._options.subscription
            raise ConfigError(which.option, which.text, "at least one partition")
        return layout

    def _check_there(self, done: StreamOffset, layout: Layout) -> None:
        """Reports partitions and topics that the stream has read from and that were deleted or created again."""
        fail = self._options.fail_on_data_loss
        gone = sorted(set(done.positions) - set(layout.topic_partitions))
        if gone:
            report(
                f"{', '.join(map(str, gone[:10]))} is gone, and the stream was reading it",
                fail=fail,
                hint=HINT_OTHER,
            )
        for topic in sorted(set(done.topic_ids) & set(layout.topic_ids)):
            if stream_offset.is_other_topic(done.topic_ids[topic], layout.topic_ids[topic]):
                report(
                    f"topic {topic} was deleted and created again since the last batch (id {done.topic_ids[topic]}, "
                    f"now {layout.topic_ids[topic]})",
                    fail=fail,
                    hint=HINT_OTHER,
                )

    def _begins(
        self, done: StreamOffset, layout: Layout
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Where each partition continues, and those that are new: they begin at their first record."""
        again = {
            topic
            for topic, known in done.topic_ids.items()
            if stream_offset.is_other_topic(known, layout.topic_ids.get(topic, known))
        }
        known = {
            tp: done.positions[tp]
            for tp in layout.topic_partitions
            if tp in done.positions and tp.topic not in again
        }
        fresh = self._planner.earliest([tp for tp in layout.topic_partitions if tp not in known])
        for tp, offset in sorted(fresh.items()):
            if offset > 0:
                report(
                    f"new partition {tp} begins at offset {offset}: earlier records were deleted unread",
                    fail=self._options.fail_on_data_loss,
                )
        return {**known, **fresh}, fresh

    def _ends(self, begins: dict[TopicPartition, int], layout: Layout) -> dict[TopicPartition, int]:
        ends = self._planner.latest(layout.topic_partitions)
        ends |= self._beyond_open_transactions(begins, ends)
        for tp, end in sorted(ends.items()):
            if end < begins[tp]:
                report(
                    f"{tp} ends at offset {end}, and the stream has read up to {begins[tp]}",
                    fail=self._options.fail_on_data_loss,
                )
        if self._target is None:
            return ends
        # Never past the target; what came to be after it was set waits for the next run.
        targets = {tp: max(self._target.get(tp, begins[tp]), begins[tp]) for tp in ends}
        return {tp: min(end, targets[tp]) for tp, end in ends.items()}

    def _beyond_open_transactions(
        self, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Partitions that the stream, with another isolation level, has read beyond the last stable offset. They are
        not shorter than they were: the stream waits there."""
        if self._options.isolation is Isolation.READ_UNCOMMITTED:
            return {}
        logs = self._planner.log_ends([tp for tp, end in ends.items() if end < begins[tp]])
        return {tp: begins[tp] for tp, end in logs.items() if end >= begins[tp]}

    def _admitted(
        self, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        """How far this batch goes."""
        if isinstance(limit, ReadAllAvailable):
            return ends
        waiting = sum(max(0, end - begins[tp]) for tp, end in ends.items())
        least = self._options.min_offsets_per_trigger
        if least is not None and waiting < least and self._target is None and not self._is_late():
            return {tp: min(begins[tp], ends[tp]) for tp in ends}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return ends if most is None else limited(begins, ends, most)

    def _is_late(self) -> bool:
        return _now_ms() - self._last_batch_ms >= self._options.max_trigger_delay_ms

    def _make_dead_letter_topics(self, ranges: list[OffsetRange]) -> None:
        topics = stream_offset.topics_of(each.topic_partition for each in ranges if each.size)
        make_dead_letter_topics(self._options, self._planner.cluster, topics - self._have_dead_letters)
        self._have_dead_letters |= topics

    def _show_progress(self, done: StreamOffset) -> None:
        """Commits to the consumer group, so that tools show the lag. Only the checkpoint counts, so a failure here
        does not fail the stream."""
        if not self._options.commit_progress or self._is_shown(done) or _now_ms() < self._silent_until_ms:
            return
        try:
            self._progress.cluster.commit(done.group, done.positions, retention_ms=self._retention_ms())
            self._shown, self._shown_ms = done, _now_ms()
        except ClientError as problem:
            # Each try may take as long as planning may; a stream must not pay that for every batch.
            self._silent_until_ms = _now_ms() + SILENT_AFTER_FAILURE_MS
            log.warning("progress of group %s is not shown: %s", done.group, problem)

    def _is_shown(self, done: StreamOffset) -> bool:
        """A stream that waits for records commits the same offsets again, so that its group lives as long as it."""
        age_ms = _now_ms() - self._shown_ms
        return done == self._shown and age_ms < self._options.group_retention_ms // RENEWALS

    def _retention_ms(self) -> int:
        """A group that the user has named is the user's, and kept as others are."""
        return BROKER_RETENTION if self._options.group_id else self._options.group_retention_ms


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
