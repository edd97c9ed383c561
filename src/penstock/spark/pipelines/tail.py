"""Archive plus live tail as one DataFrame, without a gap or an overlap.

A snapshot of a topic's table has its files and the next offset of each partition. Spark's own Parquet reader reads the
files. The rest comes from the brokers: from that offset to the end of the partition when the DataFrame was made.
Both halves are fixed at that moment, so a record is in exactly one of them, however far the topic and the archive have
moved when the query runs.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.data_loss import report
from penstock.spark.lake.folder import ArchiveState, Lake, state_of
from penstock.spark.pipelines.reading import check_classic, committed, topic_names
from penstock.spark.pipelines.selection import EVERYTHING, Selection
from penstock.spark.pipelines.table_columns import RAW, TableColumns, columns_in
from penstock.spark.planner import Planner
from penstock.spark.problems import ArchiveError
from penstock.spark.read_limits import OffsetRange
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.spark.lake.topic_table import TopicTable

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
    selection: Selection = EVERYTHING,
    with_source: bool = False,
    catalog: str | None = None,
) -> DataFrame:
    """All records of the topics (default: those of the archive): from Parquet what is archived, the rest live.

    Columns are those of `read_archive`; `with_source` adds `source`, which is "archive" or "live". A `selection` leaves
    whole files out, by their statistics. `options` are those of the source (minPartitions, failOnDataLoss, kafka.*).
    Where records were deleted before they were archived, this is an error; failOnDataLoss=false goes on without them.
    """
    selection.validate()
    names = topic_names(topics)
    tables = Lake(check_classic(spark, path), catalog=catalog).tables(names)
    names = names or tuple(sorted(tables))
    if not names:
        raise ConfigError("path", path, "an archive, or topics: this one is empty and names none")
    columns = _common_columns(names, tables)
    given = _source_options(names, bootstrap_servers, options or {}) | dict(columns.options)
    ranges = live_ranges(state_of(tables), names, given)
    archived = committed(spark, tables, selection)
    if with_source:
        archived = archived.withColumn("source", F.lit("archive"))
    if not ranges:
        return archived
    live = selection.applied(_live(spark, given, ranges, columns))
    if with_source:
        live = live.withColumn("source", F.lit("live"))
    return archived.unionByName(live, allowMissingColumns=True)


def _common_columns(names: Sequence[str], tables: "Mapping[str, TopicTable]") -> TableColumns:
    """How the live records are to be decoded, so that they have the columns of the tables."""
    found = {name: columns_in(tables[name]) if name in tables else RAW for name in names}
    first = found[names[0]]
    for name, columns in found.items():
        if columns.options != first.options:
            raise ConfigError(
                "topics",
                name,
                f"topics whose values are archived as those of {names[0]} are: read them apart",
            )
    return first


def live_ranges(state: ArchiveState, names: Sequence[str], given: Mapping[str, str]) -> list[OffsetRange]:
    """The offsets that are not archived, by partition; without partitions that are archived completely."""
    planner = Planner(source_options.parse(given, streaming=False))
    try:
        layout = planner.layout(require_all=False)
        _check_topics(state, names, layout.topic_ids)
        earliest, latest = planner.earliest(layout.topic_partitions), planner.latest(layout.topic_partitions)
    finally:
        planner.close()
    fail = given.get("failOnDataLoss", "true").lower() != "false"
    reached = state.positions
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


def _check_topics(state: ArchiveState, names: Sequence[str], there: Mapping[str, str]) -> None:
    for name in names:
        known = state.topics.get(name)
        if known is None and name not in there:
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
    spark: SparkSession, given: Mapping[str, str], ranges: Sequence[OffsetRange], columns: TableColumns
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
    return columns.of(spark.read.format("penstock").options(**options).load())
