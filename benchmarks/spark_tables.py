"""Archives beside what Spark does by itself: its Parquet writer on the same rows, and its reader on the same files."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from spark_load import Cell, System, frame, timed_noop

from penstock.spark import archive, history

DAY = "cast(timestamp AS date) AS date"


def of_archiving(
    spark: SparkSession, system: System, cell: Cell, folder: Path, rounds: int
) -> dict[str, float]:
    """Rows a second. Both read the topic, and write one folder for each date with the same compression; the archive
    also keeps headers, flushes its files to the disk, and commits them to a table."""

    def archived(number: int) -> None:
        path = str(folder / f"archive-{cell.topic}-{number}")
        archive(spark, cell.topic, path, bootstrap_servers=system.bootstrap)

    def written(number: int) -> None:
        rows = frame(spark, system, cell.topic).selectExpr("*", DAY)
        path = str(folder / f"parquet-{cell.topic}-{number}")
        rows.write.partitionBy("date").option("compression", "zstd").parquet(path)

    return _rates(cell, rounds, {"archive": archived, "parquet": written})


def of_history(
    spark: SparkSession, system: System, cell: Cell, folder: Path, rounds: int
) -> dict[str, float]:
    """Archive plus live tail, against reading the archive's files directly. There must be an archive."""
    path = str(folder / f"archive-{cell.topic}-0")
    jobs: dict[str, Callable[[], DataFrame]] = {
        "history": lambda: history(spark, path, bootstrap_servers=system.bootstrap),
        "parquet": lambda: spark.read.parquet(*DeltaTable(f"{path}/{cell.topic}").file_uris()),
    }
    return _rates(cell, rounds, {name: _read_by(rows) for name, rows in jobs.items()})


def _read_by(rows: Callable[[], DataFrame]) -> Callable[[int], object]:
    return lambda _: timed_noop(rows())


def _rates(cell: Cell, rounds: int, jobs: dict[str, Callable[[int], object]]) -> dict[str, float]:
    """In turns; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job(number)
            if number:
                seconds[name].append(time.perf_counter() - began)
    return {name: cell.records / median(times) for name, times in seconds.items()}
