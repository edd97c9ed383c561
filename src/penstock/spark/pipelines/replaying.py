"""An archive back into topics, in order.

Every partition is written by one task, sorted by offset, to the same partition, with the same key, value, headers and
timestamp. Spark moves the rows of a partition to its task in one shuffle; sorting spills to disk where it must. The
records go in steps, each of them a transaction, and a replay that was killed continues after the last one
(`replay_state.py`): exactly once, where the brokers can do it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.client.wire import Cluster
from penstock.errors import ConfigError
from penstock.spark.lake.folder import ArchiveState, known_tables, state_of
from penstock.spark.pipelines.per_partition import per_partition
from penstock.spark.pipelines.progress import BatchProgress
from penstock.spark.pipelines.reading import check_classic, committed, topic_names
from penstock.spark.pipelines.replay_state import ReplayState, StateFile, new_state, state_folder
from penstock.spark.pipelines.running import ALL_NOW, Schedule
from penstock.spark.pipelines.selection import EVERYTHING, Selection
from penstock.spark.pipelines.table_columns import columns_in
from penstock.spark.pipelines.writer import ARROW_BYTES
from penstock.spark.problems import PipelineError
from penstock.spark.read_bounds import EARLIEST, LATEST, parse_topics
from penstock.spark.sink_options import SinkOptions
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.spark.lake.topic_table import TopicTable

FOR_EVER: Final = {"retention.ms": "-1"}
"""The config of topics that a replay creates: otherwise retention would delete the old records at once."""
STEP_OFFSETS: Final = 1_000_000
"""Offsets of each partition in one step: the most that runs again after a crash, and that readers of committed records
wait for."""
MAX_TASKS: Final = 800
"""Tasks of one step, each of which writes one or more partitions. A coordinator lends at most 900 producers to a
version, also to tasks that are tried again."""
TXN_PREFIX: Final = "penstock-replay-"
SINK_COLUMNS: Final = ("key", "value", "partition", "timestamp", "headers")

Function = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The result of a replay."""

    topics: Mapping[str, str]
    """The name of the new topic for each archived one."""
    created: tuple[str, ...]
    rows: int
    """In all, with those of runs that were interrupted."""
    rows_by_topic: Mapping[str, int]
    """The same for each new topic."""
    resumed: bool
    """Whether this continued an earlier run."""
    finished: bool
    """False if it was stopped: the same replay continues there."""


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
    checkpoint: str | None = None,
    step_offsets: int = STEP_OFFSETS,
    schedule: Schedule = ALL_NOW,
    catalog: str | None = None,
) -> Replayed:
    """Writes an archive's records (of these topics, or all) to topics, each partition in its old order.

    The topics have their old names, or `to_topic` where there is one, or the old name and `suffix`. Missing ones are
    made with as many partitions as there were; a topic that already has records is refused unless `append`. `options`
    are those of the sink (kafka.compression.type and the like).

    A replay that was killed continues when it is called again in the same way. Until it is done, `checkpoint` (by
    default a folder in the archive) has a file that says how far it has come. `schedule` reports and stops after steps.
    """
    root = check_classic(spark, path)
    tables = chosen_tables(root, topics, catalog)
    _check_values(tables)
    targets = _targets(tuple(tables), to_topic, suffix)
    return write_again(
        spark,
        Rewriting(root=root, tables=tables, targets=targets, selection=selection),
        bootstrap_servers=bootstrap_servers,
        append=append,
        topic_configs=topic_configs,
        options=options or {},
        checkpoint=checkpoint,
        step_offsets=step_offsets,
        schedule=schedule,
    )


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """The records that are written, and where to."""

    root: str
    tables: "Mapping[str, TopicTable]"
    targets: Mapping[str, str]
    """The name of the new topic for each archived one."""
    selection: Selection
    function: Function | None = None
    """Applied to the records of each step; None: they are written as they are."""

    @property
    def asked(self) -> dict[str, Any]:
        """Two replays with the same answer are the same replay."""
        chosen = self.selection
        bounds = (chosen.from_time, chosen.to_time, chosen.from_offset, chosen.to_offset)
        name = "" if self.function is None else f"{self.function.__module__}:{self.function.__qualname__}"
        return {
            "topics": {name: table.topic_id for name, table in self.tables.items()},
            "targets": dict(self.targets),
            "selection": [str(bound) for bound in bounds],
            **({"function": name} if name else {}),
        }


def chosen_tables(
    root: str, topics: str | Sequence[str] | None, catalog: str | None
) -> "dict[str, TopicTable]":
    """The tables of these topics, or all."""
    tables = known_tables(root, catalog)
    return {name: tables[name] for name in _names(state_of(tables), topics)}


def write_again(
    spark: SparkSession,
    job: Rewriting,
    *,
    bootstrap_servers: str,
    append: bool,
    topic_configs: Mapping[str, str],
    options: Mapping[str, str],
    checkpoint: str | None,
    step_offsets: int,
    schedule: Schedule,
) -> Replayed:
    job.selection.validate()
    _check_step(step_offsets, schedule)
    whole = state_of(job.tables)
    file = StateFile(state_folder(job.root, checkpoint), job.asked)
    given = {**options, "kafka.bootstrap.servers": bootstrap_servers}
    parsed = SinkOptions.from_options(given)
    with Cluster(parsed.client) as cluster:
        before = _resumed(file, cluster)
        created: tuple[str, ...] = ()
        if before is None:
            created = _prepare(cluster, whole, job.targets, append=append, configs=topic_configs)
            found = cluster.topics(set(job.targets.values()))
            ids = {name: str(topic.topic_id) for name, topic in found.items()}
    state = before or _begun(file, whole, job.tables, job.selection, ids, step_offsets)
    run = _Run(spark, job, given, once=parsed.exactly_once != "false")
    state = _steps(run, file, state, schedule)
    return Replayed(
        topics=job.targets,
        created=created,
        rows=sum(state.rows.values()),
        rows_by_topic=state.rows,
        resumed=before is not None,
        finished=state.steps_done >= state.steps,
    )


def _check_step(step_offsets: int, schedule: Schedule) -> None:
    if step_offsets < 1:
        raise ConfigError("step_offsets", step_offsets, "at least 1")
    if schedule.every is not None:
        raise ConfigError("every", schedule.every, "none: a replay ends when the archive does")


def _resumed(file: StateFile, cluster: Cluster) -> ReplayState | None:
    """The state of an interrupted run, if the topics that it wrote to are still there."""
    state = file.load()
    if state is None:
        return None
    found = cluster.topics(list(state.target_ids))
    same = all(
        name in found and str(found[name].topic_id) == known for name, known in state.target_ids.items()
    )
    return state if same else None


def _begun(
    file: StateFile,
    state: ArchiveState,
    tables: "Mapping[str, TopicTable]",
    selection: Selection,
    target_ids: Mapping[str, str],
    step_offsets: int,
) -> ReplayState:
    most = selection.to_offset
    ends = {
        name: {
            str(tp.partition): end if most is None else min(end, most)
            for tp, end in state.positions.items()
            if tp.topic == name
        }
        for name in tables
    }
    files = [each for table in tables.values() for each in table.files()]
    begins = [0 if each.offsets is None else each.offsets[0] for each in files]
    first = max(min(begins, default=0), selection.from_offset or 0)
    made = new_state(target_ids=target_ids, ends=ends, first=first, step_offsets=step_offsets)
    file.save(made)
    return made


def _steps(run: "_Run", file: StateFile, state: ReplayState, schedule: Schedule) -> ReplayState:
    while state.steps_done < state.steps and not schedule.is_stopped():
        began, at = time.monotonic(), datetime.now(UTC)
        step = state.steps_done
        rows = run.write(state, step)
        state = state.advanced(rows)
        if rows:
            file.save(state)
        if rows and schedule.on_batch is not None:
            schedule.on_batch(
                _progress(step, at, sum(rows.values()), time.monotonic() - began, state.remaining())
            )
    if state.steps_done >= state.steps:
        file.delete()
    return state


def _progress(step: int, at: datetime, rows: int, took_s: float, lag: int) -> BatchProgress:
    return BatchProgress(
        batch_id=step,
        at=at.isoformat(timespec="milliseconds"),
        rows=rows,
        rows_per_second=rows / took_s if took_s else 0.0,
        duration_ms=round(took_s * 1000),
        lag=lag,
        steps_ms={},
    )


class _Run:
    """Writes steps."""

    def __init__(
        self, spark: SparkSession, job: Rewriting, options: Mapping[str, str], *, once: bool
    ) -> None:
        self._spark = spark.newSession()
        self._spark.conf.set(*ARROW_BYTES)
        self._job = job
        self._options = options
        self._once = once

    def write(self, state: ReplayState, step: int) -> dict[str, int]:
        """How many records went to each topic; empty if no file has any of the step."""
        first, end = state.bounds(step)
        wanted = replace(self._job.selection, from_offset=first, to_offset=end)
        if not any(wanted.holding(table.files()) for table in self._job.tables.values()):
            return {}
        rows = committed(self._spark, self._job.tables, wanted)
        ordered = self._in_order(rows.where(f"offset < {per_partition(_flat(state.ends))}"), state)
        counts = Observation(f"step {step}")
        names = sorted(set(self._job.targets.values()))
        counters = [
            F.count(F.when(F.col("topic") == name, 1)).alias(f"n{at}") for at, name in enumerate(names)
        ]
        records = self._records(ordered)
        writer = records.observe(counts, *counters).write.format("penstock").options(**self._options)
        writer = writer.option("useTimestamps", str("timestamp" in records.columns).lower())
        if self._once:
            writer = writer.options(txnAppId=TXN_PREFIX + state.replay_id, txnVersion=str(step))
        writer.mode("append").save()
        found = counts.get
        return {name: int(found[f"n{at}"]) for at, name in enumerate(names)}

    def _in_order(self, rows: DataFrame, state: ReplayState) -> DataFrame:
        """The rows that go to a partition in one task, by topic and offset."""
        targets = self._job.targets
        to = {tp: TopicPartition(targets[tp.topic], tp.partition) for tp in _flat(state.ends)}
        tasks = {tp: at % MAX_TASKS for at, tp in enumerate(sorted(set(to.values())))}
        numbers = {tp: tasks[target] for tp, target in to.items()}
        moved = rows.repartitionById(
            min(max(1, len(tasks)), MAX_TASKS), F.expr(f"CAST({per_partition(numbers)} AS INT)")
        )
        return moved.sortWithinPartitions("topic", "partition", "offset")

    def _records(self, ordered: DataFrame) -> DataFrame:
        """The columns of the sink."""
        function, targets = self._job.function, self._job.targets
        if function is None:
            names = " ".join(f"WHEN '{old}' THEN '{new}'" for old, new in sorted(targets.items()))
            return ordered.select(
                *(name for name in SINK_COLUMNS), F.expr(f"CASE topic {names} END").alias("topic")
            )
        made = function(ordered)
        (target,) = set(targets.values())
        return made.select(
            *(name for name in SINK_COLUMNS if name in made.columns), F.lit(target).alias("topic")
        )


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in nested.items()
        for number, offset in numbers.items()
    }


def _names(state: ArchiveState, topics: str | Sequence[str] | None) -> tuple[str, ...]:
    there = tuple(sorted(state.topics))
    names = topic_names(topics) or there
    for name in names:
        if name not in there:
            raise ConfigError("topics", name, f"topics of the archive: {', '.join(there)}")
    return names


def _check_values(tables: "Mapping[str, TopicTable]") -> None:
    for name, table in tables.items():
        kept = columns_in(table).options
        if kept:
            raise PipelineError(
                f"{name} is archived with the columns of its values (valueFormat={kept.get('valueFormat')}), and not "
                "the values as they were: it cannot be replayed"
            )


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
    cluster: Cluster,
    state: ArchiveState,
    targets: Mapping[str, str],
    *,
    append: bool,
    configs: Mapping[str, str],
) -> tuple[str, ...]:
    """The topics are there, have enough partitions, and are empty unless they need not be."""
    widths: dict[str, int] = {}
    for old, new in targets.items():
        widths[new] = max(widths.get(new, 1), state.partitions_of(old))
    there = cluster.topics(list(widths))
    created = []
    for new, wanted in sorted(widths.items()):
        if new not in there:
            cluster.create_topic(new, wanted, configs)
            created.append(new)
            continue
        found = there[new].partitions
        if len(found) < wanted:
            raise PipelineError(
                f"topic {new} has {len(found)} partitions, and the archive has {wanted}: "
                f"`penstock topics alter {new} --partitions {wanted}`, or write to another topic"
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
