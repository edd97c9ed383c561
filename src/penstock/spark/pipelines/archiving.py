"""Topics to Parquet, exactly once.

Not Spark's checkpoint but the archive's own log says how far the archive goes: each change that adds files also says
the next offset of each partition (`through`), in one atomic step. A batch drops what lies before that. So a batch that
runs again, a checkpoint that is lost, or two that disagree, write nothing twice; and since a run begins at `through`,
nothing is left out. The checkpoint is therefore new for every run, unless one is given.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.data_loss import report
from penstock.spark.options import SourceOptions
from penstock.spark.pipelines.compaction import DEFAULT_COMPACTION, Compaction, compact
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import OWN_FOLDER
from penstock.spark.pipelines.manifest import State, TopicFacts
from penstock.spark.pipelines.problems import ArchiveError, PipelineError
from penstock.spark.pipelines.reading import ARCHIVE_COLUMNS, UTC_DATE, topic_names
from penstock.spark.pipelines.resuming import check_not_ahead, goes_on_at
from penstock.spark.pipelines.running import ALL_NOW, Schedule, Totals, run
from penstock.spark.pipelines.writer import ArchiveWriter
from penstock.spark.planner import Layout, Planner
from penstock.spark.read_bounds import EARLIEST
from penstock.types import TopicPartition

MOST_OFFSETS: Final = 10_000_000
"""Records of one batch, unless maxOffsetsPerTrigger sets another number. After a crash, Spark reads a batch again."""

CHECKPOINTS: Final = f"{OWN_FOLDER}/checkpoints"

OURS: Final = ("assign", "startingOffsetsByTimestamp", "startingTimestamp", "columns")
"""Options of the source that would contradict what an archive is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Archived:
    """The result of a run."""

    totals: Totals
    rows: int
    """Added to the archive; `totals` counts what was read."""
    files_added: int
    files_merged_away: int
    sequence: int
    """The archive's last change."""


def archive(
    spark: SparkSession,
    topics: str | Sequence[str],
    path: str,
    *,
    bootstrap_servers: str,
    options: Mapping[str, str] | None = None,
    compaction: Compaction | None = DEFAULT_COMPACTION,
    checkpoint: str | None = None,
    compression: str = "zstd",
    schedule: Schedule = ALL_NOW,
) -> Archived:
    """Writes topics to Parquet below `path`, in folders topic=NAME/date=YYYY-MM-DD (UTC), each record exactly once.

    Continues where the archive ends, also if another job wrote it. `options` are those of the source: subscribePattern
    (with no topics), maxOffsetsPerTrigger, minPartitions, includeHeaders=false, startingOffsets=latest for topics that
    the archive does not have yet, and so on. `compaction=None` leaves small files alone.
    """
    if compaction is not None:
        compaction.validate()
    writer = ArchiveWriter(Files(spark, path), compression=compression)
    given = _source_options(topics, bootstrap_servers, options or {}, writer.files.root)
    parsed = source_options.parse(given, streaming=True)
    _check(parsed)
    planner = Planner(parsed)
    try:
        layout = planner.layout(require_all=True)
        _check_ids(writer.state, layout)
        _check_new_partitions(writer.state, layout, planner, fail=parsed.fail_on_data_loss)
        writer.claim(_facts(layout), _pinned(writer.state, layout, planner, parsed))
        if checkpoint is not None:
            _check_checkpoint(Files(spark, checkpoint), writer.state, layout, planner)
    finally:
        planner.close()
    given["startingOffsets"] = _starts(writer.state, layout)
    batches = _Batches(spark, writer, compaction, planner)
    try:
        totals = _run(spark, given, batches, checkpoint or _fresh_checkpoint(writer), schedule)
    except PipelineError as problem:
        if not batches.begun and "startingOffsets" in str(
            problem
        ):  # which are ours, so the user could do nothing
            _check_still(layout, planner)
        raise
    finally:
        planner.close()
    if compaction is not None and schedule.every is None and not schedule.is_stopped():
        # Not everything: a run every minute would write the present day's rows over and over.
        batches.merged_away += compact(spark, writer, compaction, everything=False)
    return Archived(
        totals=totals,
        rows=batches.rows,
        files_added=batches.files,
        files_merged_away=batches.merged_away,
        sequence=writer.state.sequence,
    )


class _Batches:
    """Spark calls this with each batch."""

    def __init__(
        self, spark: SparkSession, writer: ArchiveWriter, compaction: Compaction | None, planner: Planner
    ) -> None:
        self._spark = spark
        self.writer = writer
        self._compaction = compaction
        self._planner = planner
        self._since_compaction = 0
        self.begun = False
        self.rows = self.files = self.merged_away = 0
        self.problem: Exception | None = None

    def take(self, batch: DataFrame, batch_id: int) -> None:
        self.begun = True
        try:
            self._take(batch)
        except Exception as problem:
            self.problem = problem  # Spark would only keep its text
            raise

    def _take(self, batch: DataFrame) -> None:
        rows = _unarchived(batch, self.writer.state)
        added = self.writer.add(
            batch.sparkSession, rows, look=lambda: _new_topics(self.writer.state, self._planner)
        )
        self.rows += sum(file.rows for file in added)
        self.files += len(added)
        self._since_compaction += 1
        if self._compaction is not None and self._since_compaction >= self._compaction.every_batches:
            self._since_compaction = 0
            self.merged_away += compact(self._spark, self.writer, self._compaction, everything=False)


def _run(
    spark: SparkSession, given: Mapping[str, str], batches: _Batches, checkpoint: str, schedule: Schedule
) -> Totals:
    stream = spark.readStream.format("penstock").options(**given).load()
    writer = stream.writeStream.foreachBatch(batches.take).option("checkpointLocation", checkpoint)
    try:
        return run(writer, schedule)
    except PipelineError:
        if batches.problem is not None:
            raise batches.problem from None
        batches.writer.check_alone()  # who takes over deletes the checkpoint, and Spark would only say that it is gone
        raise


def _unarchived(batch: DataFrame, state: State) -> DataFrame:
    """The batch's rows that the archive does not have, with their date."""
    rows = batch.selectExpr(
        *(name for name in ARCHIVE_COLUMNS if name in batch.columns), f"{UTC_DATE} AS date"
    )
    if not state.through:
        return rows
    cases = " ".join(
        f"WHEN '{topic}' THEN get(array({_by_partition(numbers)}), partition)"
        for topic, numbers in sorted(state.through.items())
    )
    return rows.where(f"offset >= coalesce(CASE topic {cases} END, 0L)")


def _by_partition(numbers: Mapping[str, int]) -> str:
    last = max(int(number) for number in numbers)
    return ", ".join(f"{numbers.get(str(number), 0)}L" for number in range(last + 1))


def _source_options(
    topics: str | Sequence[str], bootstrap_servers: str, options: Mapping[str, str], root: str
) -> dict[str, str]:
    names = topic_names(topics) or ()
    lower = {name.lower() for name in options}
    for name in OURS:
        if name.lower() in lower:
            raise ConfigError(
                name, options.get(name, ""), "no such option: an archive keeps whole records, in order"
            )
    group = f"penstock-archive-{hashlib.sha256(root.encode()).hexdigest()[:12]}"
    defaults = {
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(MOST_OFFSETS),
        "kafka.group.id": group,
        "startingOffsets": "earliest",
    }
    found = {name: value for name, value in defaults.items() if name.lower() not in lower}
    found |= {**options, "kafka.bootstrap.servers": bootstrap_servers}
    return found | ({"subscribe": ",".join(names)} if names else {})


def _check(options: SourceOptions) -> None:
    if options.payload.value_format != "raw":
        raise ConfigError(
            "valueFormat", options.payload.value_format, "raw: an archive keeps records as they are"
        )
    if options.starting.everywhere is None:
        raise ConfigError(
            "startingOffsets", "offsets", "earliest or latest, for topics that are new to the archive"
        )


def _check_ids(state: State, layout: Layout) -> None:
    for topic, topic_id in sorted(layout.topic_ids.items()):
        known = state.topics.get(topic)
        if known is not None and known.topic_id != topic_id:
            raise ArchiveError(
                f"topic {topic} was deleted and created again since it was archived (id {known.topic_id}, now "
                f"{topic_id}), so its offsets mean other records. Archive it to another path"
            )


def _new_topics(state: State, planner: Planner) -> dict[str, TopicFacts]:
    """Topics that the archive does not know yet, such as those that came in mid-run. ArchiveError where one that it
    knows was made again, whatever failOnDataLoss says: its records would be taken for old ones."""
    layout = planner.layout(require_all=False)
    _check_ids(state, layout)
    return {topic: facts for topic, facts in _facts(layout).items() if topic not in state.topics}


def _check_new_partitions(state: State, layout: Layout, planner: Planner, *, fail: bool) -> None:
    """A partition that was added since the last run, and has already lost records."""
    new = [
        tp
        for tp in layout.topic_partitions
        if tp.topic in state.topics and tp.partition >= state.partitions_of(tp.topic)
    ]
    for tp, earliest in planner.earliest(new).items():
        if earliest > 0:
            report(
                f"{tp} is new and begins at offset {earliest}: earlier records were deleted before they were archived",
                fail=fail,
            )


def _check_checkpoint(checkpoint: Files, state: State, layout: Layout, planner: Planner) -> None:
    expected = {**planner.earliest(layout.topic_partitions), **state.positions()}
    check_not_ahead(goes_on_at(checkpoint), expected, checkpoint.root)


def _facts(layout: Layout) -> dict[str, TopicFacts]:
    counts: dict[str, int] = {}
    for tp in layout.topic_partitions:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return {
        topic: TopicFacts(topic_id=topic_id, partitions=counts[topic])
        for topic, topic_id in layout.topic_ids.items()
    }


def _pinned(
    state: State, layout: Layout, planner: Planner, options: SourceOptions
) -> dict[str, dict[str, int]]:
    """Where topics begin that are new and are to begin at their end: kept with the claim, since the end moves on."""
    if options.starting.everywhere == EARLIEST:
        return {}
    known = {
        *state.topics,
        *state.through,
    }  # a topic that came in mid-run is archived from its first record on
    return _nested(planner.latest(tp for tp in layout.topic_partitions if tp.topic not in known))


def _starts(state: State, layout: Layout) -> str:
    """`through` where the archive has it, and else the first record there is."""
    if not layout.topic_partitions:  # a pattern that matches nothing yet
        return "earliest"
    reached = state.positions()
    return json.dumps(_nested({tp: reached.get(tp, EARLIEST) for tp in layout.topic_partitions}))


def _check_still(planned: Layout, planner: Planner) -> None:
    """A stream needs the start of every partition, so it fails if partitions are added or removed in this moment."""
    now = planner.layout(require_all=False)
    odd = sorted(set(now.topic_partitions) ^ set(planned.topic_partitions))
    if odd:
        raise PipelineError(
            f"{', '.join(map(str, odd[:10]))} was added or deleted while the archive was starting, and nothing was "
            "read yet: run it again"
        ) from None


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        out.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return out


def _fresh_checkpoint(writer: ArchiveWriter) -> str:
    """A new checkpoint for this run alone; those of earlier runs are deleted."""
    writer.files.delete(CHECKPOINTS)
    return writer.files.absolute(f"{CHECKPOINTS}/{writer.state.sequence:020d}")
