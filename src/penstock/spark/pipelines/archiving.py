"""Topics to Delta or Iceberg tables, exactly once.

Not Spark's checkpoint but the tables say how far the archive goes: a commit that adds files also moves the next offset
of each partition, in one atomic step (`lake/topic_table.py`). A batch drops what lies before that. So a batch that runs
again, a checkpoint that is lost, or two that disagree, write nothing twice; and since a run begins at these offsets,
nothing is left out. The checkpoint is therefore new for every run, unless one is given.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.data_loss import report
from penstock.spark.lake.folder import ICEBERG, ArchiveState, Lake, TopicFacts
from penstock.spark.lake.maintenance import DEFAULT_COMPACTION, Compaction
from penstock.spark.options import SourceOptions
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.groups import group_options
from penstock.spark.pipelines.per_partition import per_partition
from penstock.spark.pipelines.reading import check_classic, topic_names, with_defaults
from penstock.spark.pipelines.resuming import check_not_ahead, goes_on_at
from penstock.spark.pipelines.running import ALL_NOW, Schedule, Totals, run
from penstock.spark.pipelines.table_columns import TableColumns, check_for_iceberg, columns_of
from penstock.spark.pipelines.writer import ArchiveWriter
from penstock.spark.planner import Layout, Planner
from penstock.spark.problems import ArchiveError, PipelineError
from penstock.spark.read_bounds import EARLIEST
from penstock.types import TopicPartition

MOST_OFFSETS: Final = 10_000_000
"""Records of one batch, unless maxOffsetsPerTrigger sets another number. After a crash, Spark reads a batch again."""

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
    versions: Mapping[str, int]
    """The newest version of each topic's table."""


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
    table_format: str | None = None,
    catalog: str | None = None,
    schedule: Schedule = ALL_NOW,
) -> Archived:
    """Writes each topic to a table, `path`/TOPIC, partitioned by `date` (UTC), each record exactly once.

    Tables are Delta tables, or with `table_format="iceberg"` Iceberg tables; `catalog` is the URI of their catalog, if
    it is not the file of SQLite in `path`.

    Continues where the archive ends, also if another job wrote it. `options` are those of the source: subscribePattern
    (with no topics), maxOffsetsPerTrigger, minPartitions, includeHeaders=false, startingOffsets=latest for topics that
    the archive does not have yet, and so on. With valueFormat and valueSchema the fields of the value are columns of
    the table. `compaction=None` leaves small files alone.
    """
    if compaction is not None:
        compaction.validate()
    lake = Lake(check_classic(spark, path), table_format=table_format, catalog=catalog)
    writer = ArchiveWriter(lake, compression=compression)
    given = _source_options(topics, bootstrap_servers, options or {}, writer.lake.storage.url)
    parsed = source_options.parse(given, streaming=True)
    _check(parsed)
    columns = columns_of(given)
    if lake.format_name == ICEBERG:
        check_for_iceberg(columns)
    planner = Planner(parsed)
    try:
        layout = planner.layout(require_all=True)
        _check_ids(writer.state, layout)
        _check_new_partitions(writer.state, layout, planner, fail=parsed.fail_on_data_loss)
        writer.begin(_facts(layout), _pinned(writer.state, layout, planner, parsed), columns)
        if checkpoint is not None:
            _check_checkpoint(Files(spark, checkpoint), writer.state, layout, planner)
    finally:
        planner.close()
    given["startingOffsets"] = _starts(writer.state, layout)
    batches = _Batches(writer, columns, compaction, planner)
    try:
        totals = _run(spark, given, batches, checkpoint, schedule)
    except PipelineError as problem:
        if not batches.begun and "startingOffsets" in str(
            problem
        ):  # which are ours, so the user could do nothing
            _check_still(layout, planner)
        raise
    finally:
        planner.close()
    if compaction is not None and schedule.every is None and not schedule.is_stopped():
        batches.merged_away += writer.optimize(compaction)
    return Archived(
        totals=totals,
        rows=batches.rows,
        files_added=batches.files,
        files_merged_away=batches.merged_away,
        versions=writer.versions(),
    )


class _Batches:
    """Spark calls this with each batch."""

    def __init__(
        self, writer: ArchiveWriter, columns: TableColumns, compaction: Compaction | None, planner: Planner
    ) -> None:
        self._writer = writer
        self._columns = columns
        self._compaction = compaction
        self._planner = planner
        self._since_compaction = 0
        self.begun = False
        self.rows = self.files = self.merged_away = 0
        self.problem: Exception | None = None

    def take(self, batch: DataFrame, batch_id: int) -> None:
        self.begun = True
        try:
            self._take(batch, batch_id)
        except Exception as problem:
            self.problem = problem  # Spark would only keep its text
            raise

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        rows = _unarchived(self._columns.of(batch), self._writer.state)
        files = self._writer.write(rows, self._columns.schema)
        # Asked when all rows have been read, so that it knows of all that happened before.
        self._writer.begin(_new_topics(self._writer.state, self._planner), {}, self._columns)
        self._writer.commit(files, note=f"batch {batch_id}")
        self.rows += sum(file.rows for file in files)
        self.files += len(files)
        self._since_compaction += 1
        if self._compaction is not None and self._since_compaction >= self._compaction.every_batches:
            self._since_compaction = 0
            self.merged_away += self._writer.optimize(self._compaction)


def _run(
    spark: SparkSession,
    given: Mapping[str, str],
    batches: _Batches,
    checkpoint: str | None,
    schedule: Schedule,
) -> Totals:
    stream = spark.readStream.format("penstock").options(**given).load()
    writer = stream.writeStream.foreachBatch(batches.take)
    # Only the driver reads and writes the checkpoint of a stream without state.
    with tempfile.TemporaryDirectory(prefix="penstock-archive-", ignore_cleanup_errors=True) as own:
        try:
            return run(writer.option("checkpointLocation", checkpoint or f"file:{own}"), schedule)
        except PipelineError:
            if batches.problem is not None:
                raise batches.problem from None
            raise


def _unarchived(rows: DataFrame, state: ArchiveState) -> DataFrame:
    """The rows that the archive does not have."""
    return rows.where(f"offset >= coalesce({per_partition(state.positions)}, 0L)")


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
    defaults = {
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(MOST_OFFSETS),
        **group_options("archive", root),
        "startingOffsets": "earliest",
    }
    found = {**with_defaults(options, defaults), "kafka.bootstrap.servers": bootstrap_servers}
    return found | ({"subscribe": ",".join(names)} if names else {})


def _check(options: SourceOptions) -> None:
    if options.starting.everywhere is None:
        raise ConfigError(
            "startingOffsets", "offsets", "earliest or latest, for topics that are new to the archive"
        )


def _check_ids(state: ArchiveState, layout: Layout) -> None:
    for topic, topic_id in sorted(layout.topic_ids.items()):
        known = state.topics.get(topic)
        if known is not None and known.topic_id != topic_id:
            raise ArchiveError(
                f"topic {topic} was deleted and created again since it was archived (id {known.topic_id}, now "
                f"{topic_id}), so its offsets mean other records. Archive it to another path"
            )


def _new_topics(state: ArchiveState, planner: Planner) -> dict[str, TopicFacts]:
    """Topics that the archive does not know yet, such as those that came in mid-run. ArchiveError where one that it
    knows was made again, whatever failOnDataLoss says: its records would be taken for old ones."""
    layout = planner.layout(require_all=False)
    _check_ids(state, layout)
    return {topic: facts for topic, facts in _facts(layout).items() if topic not in state.topics}


def _check_new_partitions(state: ArchiveState, layout: Layout, planner: Planner, *, fail: bool) -> None:
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


def _check_checkpoint(checkpoint: Files, state: ArchiveState, layout: Layout, planner: Planner) -> None:
    expected = {**planner.earliest(layout.topic_partitions), **state.positions}
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
    state: ArchiveState, layout: Layout, planner: Planner, options: SourceOptions
) -> dict[TopicPartition, int]:
    """Where topics begin that are new and are to begin at their end: kept with the table, since the end moves on. A
    topic that came in mid-run has a table, and is archived from its first record on."""
    if options.starting.everywhere == EARLIEST:
        return {}
    return planner.latest(tp for tp in layout.topic_partitions if tp.topic not in state.topics)


def _starts(state: ArchiveState, layout: Layout) -> str:
    """The archive's next offset where it has one, and else the first record there is."""
    if not layout.topic_partitions:  # a pattern that matches nothing yet
        return "earliest"
    reached = state.positions
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
