"""Records with a field more: the value that a compacted topic has for their key.

The topic is read as a table: the newest value of each key counts, and a key whose newest record has no value is not
there. The table is that of the start of a micro-batch. It is read again before a micro-batch if records have come to
it, and otherwise kept. Each record is written once (`topic_stream.py`): a micro-batch that is tried again may find
a newer table, but only one of its attempts counts.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.json_merge import with_field
from penstock.spark.options import SourceOptions
from penstock.spark.pipelines.json_fields import check_field, key_or_field
from penstock.spark.pipelines.running import ALL_NOW, Schedule, Totals
from penstock.spark.pipelines.topic_stream import topic_stream
from penstock.spark.planner import Planner
from penstock.spark.problems import PipelineError
from penstock.spark.read_bounds import parse_topics
from penstock.spark.security_options import security_options
from penstock.types import TopicPartition

TABLE_KEY: Final = "__penstock_key"
TABLE_VALUE: Final = "__penstock_value"
JOIN_KEY: Final = "__penstock_join"
ISOLATION: Final = "kafka.isolation.level"
NEW_FIELD: Final = re.compile(r"[A-Za-z0-9_ .-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Enrichment:
    """Which table, by which key, under which name."""

    table: str
    """A topic, compacted or not: the newest value of a key counts."""
    key: str | None = None
    """The field of JSON values that has the table's key (a dot selects an inner field); None: the record's key."""
    field: str | None = None
    """The name of the new field; None: that of the table."""
    required: bool = False
    """Whether records without a row in the table are left out. Otherwise their new field is null."""

    def validate(self) -> None:
        parse_topics("table", self.table)
        check_field("key", self.key)
        if self.field is not None and not NEW_FIELD.fullmatch(self.field):
            raise ConfigError("field", self.field, "a name for a field, without quotes")

    def applied(self, records: DataFrame, table: DataFrame) -> DataFrame:
        """The records with the columns that they have. `table` has the records of the table's topic."""
        return self.joined(records, rows_of(table))

    def joined(self, records: DataFrame, rows: DataFrame) -> DataFrame:
        marked = records.withColumn(JOIN_KEY, key_or_field(self.key))
        how = "inner" if self.required else "left"
        both = marked.join(rows, F.col(JOIN_KEY) == F.col(TABLE_KEY), how)
        added = F.udf(with_field, BinaryType(), useArrow=True)
        name = F.lit(self.field or self.table)
        changed = both.withColumn("value", added(F.col("value"), name, F.col(TABLE_VALUE)))
        # Not by the names of columns: a declarative pipeline must not ask for the schema of a stream.
        return changed.drop(JOIN_KEY, TABLE_KEY, TABLE_VALUE)


def rows_of(table: DataFrame) -> DataFrame:
    """The newest value of each key, as text. All records of a key are in one partition."""
    newest = table.where("key is not null").groupBy(F.col("key").cast("string").alias(TABLE_KEY))
    values = newest.agg(
        F.max_by(F.col("value").cast("string"), F.struct("partition", "offset")).alias(TABLE_VALUE)
    )
    return values.where(F.col(TABLE_VALUE).isNotNull())


def enrich(
    spark: SparkSession,
    topics: str | Sequence[str],
    enrichment: Enrichment,
    *,
    bootstrap_servers: str,
    to_topic: str,
    checkpoint: str,
    options: Mapping[str, str] | None = None,
    schedule: Schedule = ALL_NOW,
) -> Totals:
    """Writes the records of topics to another topic, each with a field more, from a table; each partition in its order.

    A target that does not exist is created with as many partitions as the topics have. `checkpoint` keeps the offsets:
    one folder per pipeline. `options` are those of the source; it begins at the first record unless startingOffsets
    says else.
    """
    enrichment.validate()
    if enrichment.table == to_topic:
        raise ConfigError("to_topic", to_topic, "another topic than the table")
    stream = topic_stream(
        "enrich",
        topics,
        bootstrap_servers=bootstrap_servers,
        to_topic=to_topic,
        checkpoint=checkpoint,
        options=options,
    )
    table = _Table(enrichment.table, stream.options)
    try:
        table.check()
        return stream.run(
            spark,
            lambda records: records,
            schedule,
            lambda batch: enrichment.joined(batch, table.rows(batch)),
        )
    finally:
        table.close()


class _Table:
    """The rows of a topic, read again when it has new records."""

    def __init__(self, topic: str, options: Mapping[str, str]) -> None:
        isolation = {name: value for name, value in options.items() if name.lower() == ISOLATION}
        servers = {"kafka.bootstrap.servers": options["kafka.bootstrap.servers"]}
        self._options = {**security_options(options), **isolation, **servers, "subscribe": topic}
        parsed: SourceOptions = source_options.parse(self._options, streaming=False)
        self._topic = topic
        self._planner = Planner(parsed)
        self._ends: dict[TopicPartition, int] | None = None
        self._rows: DataFrame | None = None

    def check(self) -> None:
        if self._topic not in self._planner.cluster.topics([self._topic]):
            raise PipelineError(f"the table {self._topic} is a topic, and does not exist")

    def rows(self, batch: DataFrame) -> DataFrame:
        """As of now."""
        ends = self._planner.latest(self._planner.layout(require_all=True).topic_partitions)
        if self._rows is None or ends != self._ends:
            self._drop()
            reader = batch.sparkSession.read.format("penstock").options(
                **self._options, endingOffsets=_json(ends)
            )
            self._rows = rows_of(reader.load()).persist()
            self._ends = ends
        return self._rows

    def close(self) -> None:
        self._drop()
        self._planner.close()

    def _drop(self) -> None:
        if self._rows is not None:
            self._rows.unpersist()
            self._rows = None


def _json(ends: Mapping[TopicPartition, int]) -> str:
    nested: dict[str, dict[str, int]] = {}
    for tp, end in ends.items():
        nested.setdefault(tp.topic, {})[str(tp.partition)] = end
    return json.dumps(nested)
