"""Ready-made pipelines for common jobs of data engineers.

    archive     topics to Delta tables by date, exactly once, small files merged
    replay      an archive back into topics, in order
    history     an archive and what came since as one DataFrame
    aggregate   counts and sums by key and window, to a topic or a table
    dedupe      topics to a topic, without records whose id came before
    enrich      topics to a topic, each record with a field more, from a compacted topic as a table
    mirror      topics of another Kafka cluster into this one, with the offsets of groups
    reprocess   an archive through a function of the user's into a new topic

Each is a function that takes a SparkSession, and `penstock pipeline run NAME`. Drivers load this package, executors
do not.
"""

from penstock.spark.lake.conversion import convert_archive
from penstock.spark.lake.maintenance import Compaction, optimize_archive, vacuum_archive
from penstock.spark.pipelines.aggregating import Aggregation, aggregate
from penstock.spark.pipelines.archiving import Archived, archive
from penstock.spark.pipelines.deduplicating import Deduplication, dedupe
from penstock.spark.pipelines.enriching import Enrichment, enrich
from penstock.spark.pipelines.mirroring import Mirrored, mirror
from penstock.spark.pipelines.progress import BatchProgress
from penstock.spark.pipelines.reading import read_archive
from penstock.spark.pipelines.replaying import Replayed, replay
from penstock.spark.pipelines.reprocessing import reprocess
from penstock.spark.pipelines.running import Schedule, Totals
from penstock.spark.pipelines.selection import Selection
from penstock.spark.pipelines.tail import history
from penstock.spark.problems import AnotherWriter, ArchiveError, PipelineError

__all__ = [
    "Aggregation",
    "AnotherWriter",
    "ArchiveError",
    "Archived",
    "BatchProgress",
    "Compaction",
    "Deduplication",
    "Enrichment",
    "Mirrored",
    "PipelineError",
    "Replayed",
    "Schedule",
    "Selection",
    "Totals",
    "aggregate",
    "archive",
    "convert_archive",
    "dedupe",
    "enrich",
    "history",
    "mirror",
    "optimize_archive",
    "read_archive",
    "replay",
    "reprocess",
    "vacuum_archive",
]
