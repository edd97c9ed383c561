"""Penstock on Spark: a data source for topics, and ready-made pipelines. It uses the client and never loads the broker.

Spark finds the data source by itself: `spark.read.format("penstock")`. The pipelines are functions of this module
(`from penstock.spark import archive`); docs/pipelines.md describes them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.pipelines import (
        Aggregation,
        AnotherWriter,
        Archived,
        ArchiveError,
        BatchProgress,
        Compaction,
        Deduplication,
        Enrichment,
        Mirrored,
        PipelineError,
        Replayed,
        Schedule,
        Selection,
        Totals,
        aggregate,
        archive,
        convert_archive,
        dedupe,
        enrich,
        history,
        mirror,
        optimize_archive,
        read_archive,
        replay,
        reprocess,
        vacuum_archive,
    )
    from penstock.spark.spark_home import quick_start

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
    "quick_start",
    "read_archive",
    "replay",
    "reprocess",
    "vacuum_archive",
]


def __getattr__(name: str) -> Any:
    # Executors import this package for the data source; only a driver that wants a pipeline loads them.
    if name == "quick_start":
        from penstock.spark.spark_home import quick_start

        return quick_start
    if name in __all__:
        return getattr(import_module("penstock.spark.pipelines"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
