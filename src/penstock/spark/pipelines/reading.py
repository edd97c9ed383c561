"""An archive as a DataFrame: exactly the files of a snapshot of each table, by Spark's own Parquet reader where Spark
can reach them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, StructField, StructType

from penstock.errors import ConfigError
from penstock.spark.lake.file_rows import FilesToRows, tasks_of
from penstock.spark.lake.folder import known_tables
from penstock.spark.lake.record_columns import DATE
from penstock.spark.options import COLUMNS, HEADERS_COLUMN
from penstock.spark.pipelines.selection import EVERYTHING, Selection
from penstock.spark.problems import PipelineError
from penstock.spark.schema import arrow_schema, spark_schema

if TYPE_CHECKING:
    from penstock.spark.lake.topic_table import TableFile, TopicTable

ARCHIVE_SCHEMA: Final = StructType([*spark_schema((*COLUMNS, HEADERS_COLUMN)), StructField(DATE, DateType())])


def read_archive(
    spark: SparkSession,
    path: str,
    topics: str | Sequence[str] | None = None,
    *,
    selection: Selection = EVERYTHING,
    catalog: str | None = None,
) -> DataFrame:
    """The records of an archive: the source's columns, headers and `date` (the UTC day of the timestamp).

    A filter on `date` and a `selection` leave whole files out. There is no order among rows of different files: sort by
    topic, partition and offset where it matters. The DataFrame is of the moment it was made.
    """
    tables = _chosen(known_tables(check_classic(spark, path), catalog), topics)
    return committed(spark, tables, selection)


def committed(
    spark: SparkSession, tables: "Mapping[str, TopicTable]", selection: Selection = EVERYTHING
) -> DataFrame:
    """The files of these snapshots that can have a wanted record, and no others that may be in the same folders."""
    frames = [_table(spark, table, selection.holding(table.files())) for table in tables.values()]
    if not frames:
        return spark.createDataFrame([], ARCHIVE_SCHEMA)
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return selection.applied(whole)


def _table(spark: SparkSession, table: "TopicTable", files: "Sequence[TableFile]") -> DataFrame:
    schema = from_arrow_schema(table.schema())
    if not files:
        return spark.createDataFrame([], schema)
    if not table.storage.is_local:
        return _by_tasks(spark, table, schema, files)
    reader = spark.read.schema(schema)
    if not table.has_dates_in_files:
        reader = reader.option("basePath", table.folder)  # so that Spark takes the date from the path
    return reader.parquet(*(file.path for file in files)).select(*schema.names)


def _by_tasks(
    spark: SparkSession, table: "TopicTable", schema: StructType, files: "Sequence[TableFile]"
) -> DataFrame:
    """By pyarrow: Spark would need a JAR to reach the storage."""
    tasks = tasks_of(files, table.folder)
    read = FilesToRows(storage=table.storage, schema=arrow_schema(schema), tasks=tasks)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)


def topic_names(topics: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """One name, several, or several in one text, as `subscribe` has them."""
    if topics is None:
        return None
    return tuple(
        name.strip() for name in (topics.split(",") if isinstance(topics, str) else topics) if name.strip()
    )


def with_defaults(options: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The options, and those of the defaults that are not among them, whatever their case."""
    given = {name.lower() for name in options}
    return {**{name: value for name, value in defaults.items() if name.lower() not in given}, **options}


def check_classic(spark: SparkSession, path: str) -> str:
    """The path; PipelineError if the session's driver is elsewhere."""
    require_classic(spark, "an archive", "this process commits its files")
    return path


def require_classic(spark: SparkSession, what: str, why: str) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise PipelineError(
            f"{what} needs a classic Spark session, since {why}, and this is a Spark Connect session. Start one with "
            "SparkSession.builder.master(...), spark-submit, or `penstock pipeline run --master ...`"
        )


def _chosen(
    tables: "Mapping[str, TopicTable]", topics: str | Sequence[str] | None
) -> "Mapping[str, TopicTable]":
    names = topic_names(topics)
    if names is None:
        return tables
    for name in names:
        if name not in tables:
            raise ConfigError("topics", name, f"topics of the archive: {', '.join(sorted(tables))}")
    return {name: tables[name] for name in names}
