"""Topics of another Kafka cluster into this one, and the offsets of consumer groups with them.

Records keep partition, key, value, headers and timestamp, and their order; a micro-batch is one transaction. Their
offsets are others, so a group that moves from the other cluster to this one needs a translation. After each
micro-batch the mirror knows one for each partition, a *sync point*:

    all records before source offset S are before target offset T, and all others will be at T or behind it

because no other program writes the target. A group that has committed C at the source continues at the T of the last
sync point with S <= C: it misses nothing, and reads again at most what came between S and C. Only sync points of this
run are known, and a group's offset here never goes back, so that one that is behind all of them stays where it is.
"""

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.client import ClientError
from penstock.client.wire import LATEST, Cluster
from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.pipelines.groups import group_options
from penstock.spark.pipelines.reading import require_classic, topic_names, with_defaults
from penstock.spark.pipelines.running import ALL_NOW, Schedule, Totals, run
from penstock.spark.pipelines.topic_stream import check_raw, in_order, once_options
from penstock.spark.pipelines.writer import ARROW_BYTES
from penstock.spark.planner import Layout, Planner
from penstock.spark.problems import PipelineError
from penstock.spark.read_bounds import parse_topics
from penstock.spark.sink_options import SinkOptions
from penstock.types import Isolation, TopicPartition

log = logging.getLogger("penstock.spark")

MAX_SYNC_POINTS: Final = 1_000
"""For each partition. With more, every second one is forgotten: groups that are far behind read more again."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirrored:
    """The result of a run."""

    totals: Totals
    topics: Mapping[str, str]
    """The name here of each topic there."""
    groups: Mapping[str, Mapping[str, int]]
    """The offsets, by `topic-partition` here, that were committed last for each group."""


@dataclass
class SyncPoints:
    """All partitions, in the order of their offsets."""

    sources: dict[TopicPartition, list[int]] = field(default_factory=dict)
    targets: dict[TopicPartition, list[int]] = field(default_factory=dict)

    def add(self, tp: TopicPartition, source: int, target: int) -> None:
        sources, targets = self.sources.setdefault(tp, []), self.targets.setdefault(tp, [])
        if sources and source <= sources[-1]:
            return
        sources.append(source)
        targets.append(target)
        if len(sources) > MAX_SYNC_POINTS:
            del sources[:-1:2], targets[:-1:2]

    def translated(self, tp: TopicPartition, committed: int) -> int | None:
        """Where a group continues here; None if it is behind all that is known."""
        at = bisect_right(self.sources.get(tp, []), committed)
        return self.targets[tp][at - 1] if at else None


def mirror(
    spark: SparkSession,
    topics: str | Sequence[str],
    *,
    from_servers: str,
    bootstrap_servers: str,
    checkpoint: str,
    prefix: str = "",
    groups: Sequence[str] = (),
    from_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    topic_configs: Mapping[str, str] | None = None,
    schedule: Schedule = ALL_NOW,
) -> Mirrored:
    """Copies topics of another cluster to this one, under their names with `prefix` before them.

    `from_options` are those of the source, also its login; `options` are those of the sink. Topics that do not exist
    are created with as many partitions, and with `topic_configs`. `groups` are consumer groups of the other cluster
    whose progress is translated and committed here. `checkpoint` keeps the offsets: one folder per mirror.
    """
    if not checkpoint:
        raise ConfigError("checkpoint", checkpoint, "a folder where offsets are kept between runs")
    require_classic(spark, "a mirror", "this process writes the micro-batches")
    given = _source_options(topics, from_servers, checkpoint, from_options or {})
    parsed = source_options.parse(given, streaming=True)
    check_raw(parsed)
    sink = {**(options or {}), "kafka.bootstrap.servers": bootstrap_servers, "useTimestamps": "true"}
    target = SinkOptions.from_options(sink)
    if target.topic is not None:
        raise ConfigError("topic", target.topic, "no such option: topics keep their names")
    planner, cluster = Planner(parsed), Cluster(target.client)
    try:
        layout = planner.layout(require_all=True)
        names = _names(layout, prefix)
        _prepare(cluster, layout, names, topic_configs or {})
        batches = _Batches(planner, cluster, names, sink, groups, layout)
        own = spark.newSession()
        own.conf.set(*ARROW_BYTES)
        rows = own.readStream.format("penstock").options(**given).load()
        writer = rows.writeStream.foreachBatch(batches.write).option("checkpointLocation", checkpoint)
        totals = run(writer, schedule)
        batches.commit_groups()
    finally:
        planner.close()
        cluster.close()
    return Mirrored(totals=totals, topics=names, groups=batches.committed)


def _source_options(
    topics: str | Sequence[str], servers: str, checkpoint: str, options: Mapping[str, str]
) -> dict[str, str]:
    defaults = {
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **group_options("mirror", checkpoint),
    }
    given = {**with_defaults(options, defaults), "kafka.bootstrap.servers": servers}
    names = topic_names(topics) or ()
    if not names:
        raise ConfigError("topics", "", "one topic or more")
    return {**given, "subscribe": ",".join(names)}


def _names(layout: Layout, prefix: str) -> dict[str, str]:
    names = {topic: prefix + topic for topic in sorted(layout.topic_ids)}
    for name in names.values():
        parse_topics("prefix" if prefix else "topics", name)
    return names


def _prepare(cluster: Cluster, layout: Layout, names: Mapping[str, str], configs: Mapping[str, str]) -> None:
    """The targets are there and are not the topics themselves."""
    widths: dict[str, int] = {}
    for tp in layout.topic_partitions:
        widths[tp.topic] = max(widths.get(tp.topic, 0), tp.partition + 1)
    for topic, name in names.items():
        cluster.create_topic(name, widths[topic], configs)
    for topic, found in ((topic, cluster.topics([name])[name]) for topic, name in names.items()):
        if str(found.topic_id) == layout.topic_ids[topic]:
            raise PipelineError(
                f"{topic} would be copied to itself: both addresses are of one cluster (prefix)"
            )
        if len(found.partitions) < widths[topic]:
            raise PipelineError(
                f"topic {found.name} has {len(found.partitions)} partitions, and there it has {widths[topic]}: "
                f"`penstock topics alter {found.name} --partitions {widths[topic]}`"
            )


class _Batches:
    """Spark calls this with each micro-batch."""

    def __init__(
        self,
        planner: Planner,
        cluster: Cluster,
        names: Mapping[str, str],
        sink: Mapping[str, str],
        groups: Sequence[str],
        layout: Layout,
    ) -> None:
        self._planner = planner
        self._cluster = cluster
        self._names = names
        self._sink = sink
        self._groups = groups
        self._partitions = layout.topic_partitions
        self._points = SyncPoints()
        self.committed: dict[str, dict[str, int]] = {}

    def write(self, batch: DataFrame, batch_id: int) -> None:
        names = " ".join(f"WHEN '{old}' THEN '{new}'" for old, new in sorted(self._names.items()))
        seen = Observation(f"micro-batch {batch_id}")
        ordered = in_order(batch).observe(seen, *self._ends())
        records = ordered.select(
            "key",
            "value",
            "headers",
            "timestamp",
            "partition",
            F.expr(f"CASE topic {names} END").alias("topic"),
        )
        writer = records.write.format("penstock").options(**self._sink, **once_options(batch, batch_id))
        writer.mode("append").save()
        self._note(seen.get)
        self.commit_groups()

    def _ends(self) -> list[Column]:
        """The last offset of each partition in a micro-batch, as metrics of the same query that writes it."""
        return [
            F.max(
                F.when((F.col("topic") == tp.topic) & (F.col("partition") == tp.partition), F.col("offset"))
            ).alias(f"p{at}")
            for at, tp in enumerate(self._partitions)
        ]

    def _note(self, last: Mapping[str, int | None]) -> None:
        """Adds the sync points of a micro-batch that is committed."""
        sources = {tp: last.get(f"p{at}") for at, tp in enumerate(self._partitions)}
        moved = {tp: offset + 1 for tp, offset in sources.items() if offset is not None}
        ends = self._cluster.offsets(
            {self._here(tp): LATEST for tp in moved}, isolation=Isolation.READ_COMMITTED
        )
        for tp, source in moved.items():
            self._points.add(tp, source, ends[self._here(tp)].offset)

    def commit_groups(self) -> None:
        """Commits the translated progress of the groups. A failure is told in the log: the copy goes on."""
        for group in self._groups:
            try:
                self._commit_group(group)
            except ClientError as problem:
                log.warning("the offsets of group %s are not translated: %s", group, problem)

    def _commit_group(self, group: str) -> None:
        there, here = self._planner.cluster.committed(group), self._cluster.committed(group)
        wanted: dict[TopicPartition, int] = {}
        for tp in set(there) & set(self._partitions):
            offset = self._points.translated(tp, there[tp])
            if offset is not None and offset > here.get(self._here(tp), -1):
                wanted[self._here(tp)] = offset
        if wanted:
            self._cluster.commit(group, wanted)
            self.committed.setdefault(group, {}).update({str(tp): offset for tp, offset in wanted.items()})

    def _here(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(self._names[tp.topic], tp.partition)
