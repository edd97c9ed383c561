"""The Spark session of the comparison, and the CPU time of the Python processes below a session."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def session(jars: list[Path]) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").appName("penstock-bench")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "6g",
        "spark.jars": ",".join(map(str, jars)),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    started = builder.getOrCreate()
    try:
        yield started
    finally:
        started.stop()


def python_cpu_s() -> float:
    """CPU of Spark's Python processes below this one, which stay for later queries. Those that only tell Python's
    version are over, and took 0.02 s each."""
    parents, seconds = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            is_python = b"pyspark." in (entry / "cmdline").read_bytes().partition(b"-m")[2]
        except OSError:  # it has ended
            continue
        parents[int(entry.name)] = int(fields[1])
        if is_python:
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return sum(spent for pid, spent in seconds.items() if _is_below(pid, parents))


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()
