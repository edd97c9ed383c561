"""A Spark driver as a process of its own, to be killed: `python -m tests.spark.faults.driver ANSWERS SETTINGS`.

Reads one command from each line of its standard input (JSON: the name of a function below and its arguments) and leaves
the answer to the n-th as ANSWERS/n.json, whole or not at all; a query that fails is told of in ANSWERS/failed. SETTINGS
is Spark's configuration, as JSON too.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark.faults.archive_steps import run_archive, start_archive
from tests.spark.faults.gate import failing_first, rows_through, waiting_at
from tests.spark.faults.records import NUMBER
from tests.spark.forks import Forks

Options = dict[str, str]

SPECIFICATIONS = {"deduplication": "Deduplication", "enrichment": "Enrichment"}
"""Arguments of pipelines that are objects, and their classes."""


def hello(spark: SparkSession) -> str:
    """Returns when the session is up: the name of the application, under which its executors have their folders."""
    return spark.sparkContext.applicationId


def executors(spark: SparkSession) -> int:
    """How many are ready to take tasks."""
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of these


def copy(spark: SparkSession, source: Options, sink: Options, gate: str, after_rows: int) -> None:
    """A batch query from topic to topic that can be held in the middle."""
    rows = spark.read.format("penstock").options(**source).load().select("key", "value")
    held = rows.mapInArrow(rows_through(gate, after_rows), rows.schema)
    held.write.format("penstock").options(**sink).mode("append").save()


def copy_failing_first(
    spark: SparkSession, source: Options, sink: Options, gate: str, after_rows: int
) -> None:
    """A batch query from topic to topic, each task of which fails once in the middle."""
    rows = spark.read.format("penstock").options(**source).load().select("key", "value")
    fails = rows.mapInArrow(failing_first(gate, after_rows), rows.schema)
    fails.write.format("penstock").options(**sink).mode("append").save()


def start(
    spark: SparkSession,
    name: str,
    source: Options,
    sink: Options,
    gate: str,
    after_rows: int = 0,
    from_batch: int = 0,
) -> None:
    """A streaming query to a topic (sink has "topic"), or else to Parquet."""
    rows = spark.readStream.format("penstock").options(**source).load().select("key", "value")
    rows = rows.mapInArrow(rows_through(gate, after_rows, from_batch), rows.schema)
    if "topic" in sink:
        writer = rows.writeStream.format("penstock")
    else:
        writer = rows.selectExpr(NUMBER).writeStream.format("parquet")
    begun(writer.options(**sink).queryName(name).start())


def start_by_batches(
    spark: SparkSession, name: str, source: Options, path: str, checkpoint: str, gate: str
) -> None:
    """A streaming query to a folder for each batch, which is overwritten when the batch is run again. The gate is
    before the write."""
    wait = waiting_at(gate)

    def write(rows: DataFrame, batch: int) -> None:
        wait()
        rows.selectExpr(NUMBER).write.mode("overwrite").parquet(f"{path}/batch={batch}")

    rows = spark.readStream.format("penstock").options(**source).load()
    writer: DataStreamWriter = rows.writeStream.foreachBatch(write)
    begun(writer.queryName(name).option("checkpointLocation", checkpoint).start())


def begun(query: StreamingQuery) -> None:
    """Returns when a query has its source. Spark gives the source's process ten seconds to come up, and on a busy
    machine the processes of several queries that start together need longer."""
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.05)


def finish(spark: SparkSession, name: str) -> None:
    """Waits until a query has written all records that existed at the call, and stops it."""
    query = query_named(spark, name)
    query.processAllAvailable()
    query.stop()


def query_named(spark: SparkSession, name: str) -> StreamingQuery:
    found = [query for query in spark.streams.active if query.name == name]
    assert found, f"query {name!r} does not run"
    return found[0]


def pipeline(spark: SparkSession, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Runs a ready-made pipeline to its end; the fields of its result."""
    import penstock.spark

    given = dict(settings)
    for argument, kind in SPECIFICATIONS.items():
        if argument in given:
            given[argument] = getattr(penstock.spark, kind)(**given[argument])
    if "function" in given:
        module, _, function = given["function"].partition(":")
        given["function"] = getattr(import_module(module), function)
    return asdict(getattr(penstock.spark, name)(spark, **given))


def numbers(spark: SparkSession, path: str) -> list[int]:
    """The numbers that readers of a folder see, sorted."""
    return sorted(row.n for row in spark.read.parquet(path).select("n").collect())


COMMANDS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        hello,
        executors,
        copy,
        copy_failing_first,
        start,
        start_by_batches,
        finish,
        pipeline,
        numbers,
        start_archive,
        run_archive,
    )
}


def watch_queries(spark: SparkSession, failed: Path) -> None:
    while True:
        try:
            spark.streams.awaitAnyTermination()
            spark.streams.resetTerminated()
        except StreamingQueryException as problem:
            failed.write_text(str(problem))
            return


def main(answers: Path, settings: dict[str, str]) -> None:
    # Executors start workers of their own, so that a test finds them there.
    forks = Forks(answers) if settings["spark.master"].startswith("local[") else None
    os.environ["PYSPARK_PYTHON"] = str(forks.command) if forks else sys.executable
    builder = SparkSession.builder.appName("penstock-faults")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    threading.Thread(target=watch_queries, args=(spark, answers / "failed"), daemon=True).start()
    for number, line in enumerate(sys.stdin):
        name, arguments = json.loads(line)
        try:
            answer = {"result": COMMANDS[name](spark, **arguments)}
        except Exception:  # noqa: BLE001 - whatever it is, the test is told
            answer = {"error": traceback.format_exc()}
        unfinished = answers / f"{number}.tmp"
        unfinished.write_text(json.dumps(answer))
        unfinished.rename(answers / f"{number}.json")
    spark.stop()
    if forks:
        forks.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
