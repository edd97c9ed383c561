"""Ready-made pipelines for common jobs of data engineers.

    archive     topics to Parquet by topic and date, exactly once, small files merged
    replay      an archive back into topics, in order
    history     an archive and what came since as one DataFrame
    aggregate   counts and sums by key and window, to a topic or a table

Each is a function that takes a SparkSession, and `penstock pipeline run NAME`. Drivers load this package, executors
do not.
"""

from penstock.spark.pipelines.aggregating import Aggregation, aggregate
from penstock.spark.pipelines.archiving import Archived, archive
from penstock.spark.pipelines.compaction import Compaction, compact_archive
from penstock.spark.pipelines.problems import AnotherWriter, ArchiveError, PipelineError
from penstock.spark.pipelines.progress import BatchProgress
from penstock.spark.pipelines.reading import read_archive
from penstock.spark.pipelines.replaying import Replayed, Selection, replay
from penstock.spark.pipelines.running import Schedule, Totals
from penstock.spark.pipelines.tail import history

__all__ = [
    "Aggregation",
    "AnotherWriter",
    "ArchiveError",
    "Archived",
    "BatchProgress",
    "Compaction",
    "PipelineError",
    "Replayed",
    "Schedule",
    "Selection",
    "Totals",
    "aggregate",
    "archive",
    "compact_archive",
    "history",
    "read_archive",
    "replay",
]
