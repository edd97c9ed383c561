"""Records without those that come again, by an id, within a time.

Spark keeps each id that it has seen until the watermark has passed it: a record with the id of an earlier one is left
out if it comes within that time. The ids are state in the checkpoint, and a micro-batch is written in a transaction,
so a record is written once whatever is killed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.pipelines.json_fields import check_duration, check_field, key_or_field, time_of
from penstock.spark.pipelines.running import ALL_NOW, Schedule, Totals
from penstock.spark.pipelines.topic_stream import topic_stream

ID: Final = "__penstock_id"
TIME: Final = "__penstock_time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Deduplication:
    """By which id, and for how long."""

    id: str | None = None
    """A field of JSON values (a dot selects an inner field); None: the record's key, as text. A record without one is
    no duplicate of any other."""
    watermark: str = "10 minutes"
    """How long after a record another one with its id is left out, at least."""
    time: str | None = None
    """A field: ISO 8601, or ms since 1970. None, and where a value has no such field: the record's timestamp."""

    def validate(self) -> None:
        check_field("id", self.id)
        check_field("time", self.time)
        check_duration("watermark", self.watermark)

    def applied(self, records: DataFrame) -> DataFrame:
        """The stream without duplicates, with the columns that it has."""
        place = F.concat_ws("-", "topic", "partition", "offset")
        named = F.coalesce(F.concat(F.lit("="), key_or_field(self.id)), place)
        marked = records.withColumn(ID, named).withColumn(TIME, time_of(self.time))
        unique = marked.withWatermark(TIME, self.watermark).dropDuplicatesWithinWatermark([ID])
        return unique.drop(ID, TIME)


def dedupe(
    spark: SparkSession,
    topics: str | Sequence[str],
    deduplication: Deduplication,
    *,
    bootstrap_servers: str,
    to_topic: str,
    checkpoint: str,
    options: Mapping[str, str] | None = None,
    schedule: Schedule = ALL_NOW,
) -> Totals:
    """Writes the records of topics to another topic, without those whose id came before, each partition in its order.

    A target that does not exist is created with as many partitions as the topics have. `checkpoint` keeps the ids and
    the offsets: one folder per pipeline. `options` are those of the source; it begins at the first record unless
    startingOffsets says else.
    """
    deduplication.validate()
    stream = topic_stream(
        "dedupe",
        topics,
        bootstrap_servers=bootstrap_servers,
        to_topic=to_topic,
        checkpoint=checkpoint,
        options=options,
    )
    return stream.run(spark, deduplication.applied, schedule)
