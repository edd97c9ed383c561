"""An archive back into topics, in order.

Every partition is written by one task, sorted by offset, to the same partition, with the same key, value, headers and
timestamp. Spark moves the rows of a partition to its task in one shuffle; sorting spills to disk where it must. A task
that is tried again writes its rows again: at least once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.client.wire import Cluster
from penstock.errors import ConfigError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import ArchiveLog
from penstock.spark.pipelines.manifest import DataFile, State
from penstock.spark.pipelines.problems import PipelineError
from penstock.spark.pipelines.reading import committed, topic_names
from penstock.spark.read_bounds import EARLIEST, LATEST, parse_topics
from penstock.spark.sink_options import SinkOptions
from penstock.types import TopicPartition

FOR_EVER: Final = {"retention.ms": "-1"}
"""The config of topics that a replay creates: otherwise retention would delete the old records at once."""

ARROW_BYTES: Final = ("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
"""With Spark's default, writing a column of arrays takes time that grows with the square of a batch's rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which records are replayed: all that all of these allow."""

    from_time: datetime | None = None
    to_time: datetime | None = None
    """Records before it."""
    from_offset: int | None = None
    to_offset: int | None = None
    """Records before it."""

    def validate(self) -> None:
        for name, moment in (("from_time", self.from_time), ("to_time", self.to_time)):
            if moment is not None and moment.tzinfo is None:
                raise ConfigError(name, moment, "a time with a time zone, such as 2026-01-31T08:00:00Z")
        if self.from_time is not None and self.to_time is not None and self.from_time >= self.to_time:
            raise ConfigError("to_time", self.to_time, f"a time after from_time, which is {self.from_time}")
        if self.from_offset is not None and self.to_offset is not None and self.from_offset >= self.to_offset:
            raise ConfigError(
                "to_offset", self.to_offset, f"more than from_offset, which is {self.from_offset}"
            )

    def applied(self, rows: DataFrame) -> DataFrame:
        if self.from_time is not None:
            rows = rows.where(F.col("timestamp") >= F.lit(self.from_time))
        if self.to_time is not None:
            rows = rows.where(F.col("timestamp") < F.lit(self.to_time))
        if self.from_offset is not None:
            rows = rows.where(F.col("offset") >= self.from_offset)
        if self.to_offset is not None:
            rows = rows.where(F.col("offset") < self.to_offset)
        return rows


EVERYTHING: Final = Selection()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The result of a replay."""

    topics: Mapping[str, str]
    """The name of the new topic for each archived one."""
    created: tuple[str, ...]
    rows: int | None
    """None with a selection: the number is unknown."""


def replay(
    spark: SparkSession,
    path: str,
    topics: str | Sequence[str] | None = None,
    *,
    bootstrap_servers: str,
    to_topic: str | None = None,
    suffix: str = "",
    selection: Selection = EVERYTHING,
    append: bool = False,
    topic_configs: Mapping[str, str] = FOR_EVER,
    options: Mapping[str, str] | None = None,
) -> Replayed:
    """Writes an archive's records (of these topics, or all) to topics, each partition in its old order.

    The topics have their old names, or `to_topic` where there is one, or the old name and `suffix`. Missing ones are
    made with as many partitions as there were; a topic that already has records is refused unless `append`. `options`
    are those of the sink (kafka.compression.type and the like).
    """
    selection.validate()
    files = Files(spark, path)
    state = ArchiveLog(files).load()
    names = _names(state, topics, path)
    targets = _targets(names, to_topic, suffix)
    given = {**(options or {}), "kafka.bootstrap.servers": bootstrap_servers, "useTimestamps": "true"}
    with Cluster(SinkOptions.from_options(given).client) as cluster:
        created = _prepare(cluster, state, targets, append=append, configs=topic_configs)
    chosen = _holding(state.of_topics(names), selection)
    if chosen:
        own = spark.newSession()
        own.conf.set(*ARROW_BYTES)
        rows = selection.applied(committed(own, files, chosen))
        _in_order(rows, chosen, targets).write.format("penstock").options(**given).mode("append").save()
    counted = sum(file.rows for file in chosen) if selection == EVERYTHING else None
    return Replayed(topics=targets, created=created, rows=counted)


def _in_order(rows: DataFrame, chosen: Sequence[DataFile], targets: Mapping[str, str]) -> DataFrame:
    """One task for each partition of each topic, its rows by offset."""
    topic_partitions = sorted(
        {TopicPartition(file.topic, part.partition) for file in chosen for part in file.ranges}
    )
    number = {tp: index for index, tp in enumerate(topic_partitions)}
    cases = " ".join(
        f"WHEN '{topic}' THEN get(array({_task_numbers(topic, number)}), partition)"
        for topic in sorted({tp.topic for tp in topic_partitions})
    )
    tasks = rows.repartitionById(len(topic_partitions), F.expr(f"CASE topic {cases} END"))
    ordered = tasks.sortWithinPartitions("topic", "partition", "offset")
    names = " ".join(f"WHEN '{old}' THEN '{new}'" for old, new in sorted(targets.items()))
    return ordered.selectExpr(
        "key", "value", f"CASE topic {names} END AS topic", "partition", "timestamp", "headers"
    )


def _task_numbers(topic: str, number: Mapping[TopicPartition, int]) -> str:
    mine = {tp.partition: index for tp, index in number.items() if tp.topic == topic}
    return ", ".join(str(mine.get(partition, 0)) for partition in range(max(mine) + 1))


def _holding(files: Sequence[DataFile], selection: Selection) -> list[DataFile]:
    """Files that can have a wanted record, by their offsets; Parquet's statistics do the same for times."""
    low = 0 if selection.from_offset is None else selection.from_offset
    high = 2**63 if selection.to_offset is None else selection.to_offset
    return [file for file in files if any(part.last >= low and part.first < high for part in file.ranges)]


def _names(state: State, topics: str | Sequence[str] | None, path: str) -> tuple[str, ...]:
    there = tuple(sorted({*state.topics, *state.through}))
    if not there:
        raise ConfigError(
            "path", path, "an archive. `penstock pipeline run archive TOPIC --to PATH` makes one"
        )
    names = topic_names(topics) or there
    for name in names:
        if name not in there:
            raise ConfigError("topics", name, f"topics of the archive: {', '.join(there)}")
    return names


def _targets(names: Sequence[str], to_topic: str | None, suffix: str) -> dict[str, str]:
    if to_topic is not None and suffix:
        raise ConfigError("to_topic", to_topic, "either to_topic or suffix")
    if to_topic is not None and len(names) != 1:
        raise ConfigError(
            "to_topic", to_topic, f"one topic to rename, and there are {len(names)}: use suffix"
        )
    targets = {name: to_topic if to_topic is not None else name + suffix for name in names}
    for target in targets.values():
        parse_topics("suffix" if suffix else "to_topic", target)
    return targets


def _prepare(
    cluster: Cluster, state: State, targets: Mapping[str, str], *, append: bool, configs: Mapping[str, str]
) -> tuple[str, ...]:
    """The topics are there, have enough partitions, and are empty unless they need not be."""
    there = cluster.topics(list(targets.values()))
    created = []
    for old, new in sorted(targets.items()):
        wanted = state.partitions_of(old)
        if new not in there:
            cluster.create_topic(new, max(1, wanted), configs)
            created.append(new)
            continue
        found = there[new].partitions
        if len(found) < wanted:
            raise PipelineError(
                f"topic {new} has {len(found)} partitions, and the archive's {old} has {wanted}: "
                f"`penstock topics alter {new} --partitions {wanted}`, or replay to another topic"
            )
        if not append:
            _check_empty(cluster, [TopicPartition(new, number) for number in found])
    return tuple(created)


def _check_empty(cluster: Cluster, topic_partitions: Sequence[TopicPartition]) -> None:
    earliest = cluster.offsets(dict.fromkeys(topic_partitions, EARLIEST))
    latest = cluster.offsets(dict.fromkeys(topic_partitions, LATEST))
    for tp in topic_partitions:
        if latest[tp].offset > earliest[tp].offset:
            raise PipelineError(
                f"topic {tp.topic} already has records: replay to another topic (to_topic, suffix), or add to it "
                "(append)"
            )
