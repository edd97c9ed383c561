"""An archive as a DataFrame: exactly the files that its log names, by Spark's own Parquet reader."""

from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, StructField, StructType

from penstock.errors import ConfigError
from penstock.spark.options import COLUMNS, HEADERS_COLUMN
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import ArchiveLog
from penstock.spark.pipelines.manifest import DataFile, State
from penstock.spark.schema import spark_schema

DATE: Final = "date"
ARCHIVE_COLUMNS: Final = (*COLUMNS, HEADERS_COLUMN, DATE)
ARCHIVE_SCHEMA: Final = StructType([*spark_schema((*COLUMNS, HEADERS_COLUMN)), StructField(DATE, DateType())])

DAY_US: Final = 24 * 3600 * 1_000_000

# The day in UTC whatever the session's time zone is, and in whole numbers: exact for every timestamp.
UTC_DATE: Final = (
    "date_from_unix_date(cast("
    f"(unix_micros(timestamp) - pmod(unix_micros(timestamp), {DAY_US}L)) div {DAY_US}L as int))"
)


def read_archive(spark: SparkSession, path: str, topics: str | Sequence[str] | None = None) -> DataFrame:
    """The records of an archive: the source's columns, headers and `date` (the UTC day of the timestamp).

    A filter on `topic` or `date` leaves whole files out. There is no order among rows of different files: sort by
    topic, partition and offset where it matters. The DataFrame is of the moment it was made: after a compaction, which
    deletes files, make it again.
    """
    files = Files(spark, path)
    state = ArchiveLog(files).load()
    if not state.sequence:
        raise ConfigError(
            "path", path, "an archive. `penstock pipeline run archive TOPIC --to PATH` makes one"
        )
    return committed(spark, files, state.of_topics(_known(state, topics)))


def committed(spark: SparkSession, files: Files, chosen: Sequence[DataFile]) -> DataFrame:
    """These files, and no others that may be in the same folders."""
    if not chosen:
        return spark.createDataFrame([], ARCHIVE_SCHEMA)
    paths = [files.absolute(file.path) for file in chosen]
    found = spark.read.schema(ARCHIVE_SCHEMA).option("basePath", files.root).parquet(*paths)
    return found.select(*ARCHIVE_COLUMNS)


def topic_names(topics: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """One name, several, or several in one text, as `subscribe` has them."""
    if topics is None:
        return None
    return tuple(
        name.strip() for name in (topics.split(",") if isinstance(topics, str) else topics) if name.strip()
    )


def _known(state: State, topics: str | Sequence[str] | None) -> tuple[str, ...] | None:
    names = topic_names(topics)
    there = {*state.through, *state.topics}
    for name in names or ():
        if name not in there:
            raise ConfigError(
                "topics", name, f"topics of the archive: {', '.join(sorted(there)) or 'it has none'}"
            )
    return names
