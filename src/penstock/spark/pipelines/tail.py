"""Archive plus live tail as one DataFrame, without a gap or an overlap.

The archive's log names, in one step, its files and the next offset of each partition. Spark's own Parquet reader reads
the files. The rest comes from the brokers: from that offset to the end of the partition when the DataFrame was made.
Both halves are fixed at that moment, so a record is in exactly one of them, however far the topic and the archive have
moved when the query runs.
"""

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.data_loss import report
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import ArchiveLog
from penstock.spark.pipelines.manifest import State
from penstock.spark.pipelines.problems import ArchiveError
from penstock.spark.pipelines.reading import ARCHIVE_COLUMNS, UTC_DATE, committed, topic_names
from penstock.spark.planner import Planner
from penstock.spark.read_limits import OffsetRange
from penstock.types import TopicPartition

OURS = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "columns",
    "valueFormat",
)
"""Options of the source that the boundary decides."""


def history(
    spark: SparkSession,
    path: str,
    topics: str | Sequence[str] | None = None,
    *,
    bootstrap_servers: str,
    options: Mapping[str, str] | None = None,
    with_source: bool = False,
) -> DataFrame:
    """All records of the topics (default: those of the archive): from Parquet what is archived, the rest live.

    Columns are those of `read_archive`; `with_source` adds `source`, which is "archive" or "live". `options` are those
    of the source (minPartitions, failOnDataLoss, kafka.*). Where records were deleted before they were archived, this
    is an error; failOnDataLoss=false goes on without them.
    """
    files = Files(spark, path)
    state = ArchiveLog(files).load()
    names = topic_names(topics) or tuple(sorted({*state.topics, *state.through}))
    if not names:
        raise ConfigError("path", path, "an archive, or topics: this one is empty and names none")
    given = _source_options(names, bootstrap_servers, options or {})
    ranges = live_ranges(state, names, given)
    archived = committed(spark, files, state.of_topics(names))
    if with_source:
        archived = archived.withColumn("source", F.lit("archive"))
    if not ranges:
        return archived
    return archived.unionByName(_live(spark, given, ranges, with_source=with_source))


def live_ranges(state: State, names: Sequence[str], given: Mapping[str, str]) -> list[OffsetRange]:
    """The offsets that are not archived, by partition; without partitions that are archived completely."""
    planner = Planner(source_options.parse(given, streaming=False))
    try:
        layout = planner.layout(require_all=False)
        _check_topics(state, names, layout.topic_ids)
        earliest, latest = planner.earliest(layout.topic_partitions), planner.latest(layout.topic_partitions)
    finally:
        planner.close()
    fail = given.get("failOnDataLoss", "true").lower() != "false"
    reached = state.positions()
    found = [
        _range(tp, reached.get(tp), earliest[tp], latest[tp], fail=fail) for tp in layout.topic_partitions
    ]
    return [each for each in found if each.size > 0]


def _range(tp: TopicPartition, reached: int | None, earliest: int, latest: int, *, fail: bool) -> OffsetRange:
    start = earliest if reached is None else reached
    if start < earliest:
        report(f"{tp} is archived up to offset {start - 1}, and the log begins at {earliest}", fail=fail)
    if start > latest:
        report(f"{tp} is archived up to offset {start - 1}, and the log ends at {latest - 1}", fail=fail)
    return OffsetRange(topic_partition=tp, start=min(max(start, earliest), latest), end=latest)


def _check_topics(state: State, names: Sequence[str], there: Mapping[str, str]) -> None:
    for name in names:
        known = state.topics.get(name)
        if known is None and name not in state.through and name not in there:
            raise ConfigError(
                "topics", name, "topics that the archive or the broker has. `penstock topics list`"
            )
        if known is not None and there.get(name, known.topic_id) != known.topic_id:
            raise ArchiveError(
                f"topic {name} was deleted and created again since it was archived (id {known.topic_id}, now "
                f"{there[name]}), so offsets in the two mean different records. Read them apart: read_archive, and "
                'format("penstock")'
            )


def _source_options(
    names: Sequence[str], bootstrap_servers: str, options: Mapping[str, str]
) -> dict[str, str]:
    lower = {name.lower(): value for name, value in options.items()}
    for name in OURS:
        if name.lower() in lower:
            raise ConfigError(
                name, lower[name.lower()], "no such option: the archive's end decides what is read live"
            )
    given = {
        name: value
        for name, value in options.items()
        if name.lower() not in ("includeheaders", "failondataloss")
    }
    return {
        **given,
        "failOnDataLoss": lower.get("failondataloss", "true"),
        "includeHeaders": "true",
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": ",".join(names),
    }


def _live(
    spark: SparkSession, given: Mapping[str, str], ranges: Sequence[OffsetRange], *, with_source: bool
) -> DataFrame:
    assign: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for each in ranges:
        topic, number = each.topic_partition
        assign.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = each.start
        ends.setdefault(topic, {})[str(number)] = each.end
    options = {name: value for name, value in given.items() if name != "subscribe"} | {
        "assign": json.dumps(assign),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    rows = spark.read.format("penstock").options(**options).load()
    live = rows.withColumn("date", F.expr(UTC_DATE)).select(*ARCHIVE_COLUMNS)
    return live.withColumn("source", F.lit("live")) if with_source else live
