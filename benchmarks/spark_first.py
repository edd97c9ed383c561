"""The first query and the first write of a session: each in a new process, with a JVM of its own.

    python spark_first.py TASK      measures one, given as JSON, and prints the result as JSON

A table of another process cannot be warm: everything that a user waits for is in it, but the start of the session.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
from pyspark.sql import DataFrame, SparkSession
from spark_load import System, frame, timed_sink
from spark_session import python_cpu_s, session

from penstock.spark import quick_start

WRITTEN_ROWS = 500_000
LATER_WRITES = 3
PATIENCE_S = 600


class Task(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    """query or write."""
    system: System
    topic: str
    jars: list[str]
    quick: bool = False
    """Whether the session begins with quick_start()."""


class First(msgspec.Struct, frozen=True, kw_only=True):
    first_s: float
    python_cpu_s: float
    """All Python processes of Spark together, in the first query or write."""
    later_s: float


def measured(task: Task) -> First:
    command = [sys.executable, __file__, msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    if done.returncode:
        raise RuntimeError(f"{task.what} by {task.system.name} failed: {done.stderr.decode()[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=First)


def _run(spark: SparkSession, task: Task) -> First:
    if task.what == "query":
        return _timed(lambda _: _query(frame(spark, task.system, task.topic)))
    rows = _rows(spark)
    return _timed(lambda number: timed_sink(rows, task.system, f"{task.topic}-{number}"))


def _query(rows: DataFrame) -> float:
    began = time.perf_counter()
    rows.count()
    return time.perf_counter() - began


def _rows(spark: SparkSession) -> DataFrame:
    """Records of 100 bytes, in memory."""
    key = "lpad(cast(id as string), 8, '0') AS key"
    rows = spark.range(WRITTEN_ROWS).selectExpr(key, "lpad(cast(id as string), 92, 'x') AS value").persist()
    rows.count()
    return rows


def _timed(job: Callable[[int], float]) -> First:
    before_s = python_cpu_s()
    first_s = job(0)
    spent_s = python_cpu_s() - before_s
    later = [job(number) for number in range(1, LATER_WRITES + 1)]
    return First(first_s=first_s, python_cpu_s=spent_s, later_s=median(later))


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=Task)
    if given.quick:
        quick_start()
    with session([Path(jar) for jar in given.jars]) as started:
        print(msgspec.json.encode(_run(started, given)).decode())
