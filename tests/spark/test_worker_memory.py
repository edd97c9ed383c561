"""Workers of Spark's do not look through their imports for garbage after every task."""

import subprocess
import sys

TASKS = """
import gc
from pyspark import TaskContext
from penstock.spark.worker_memory import freeze_once

freeze_once()
print(gc.get_freeze_count())
TaskContext._getOrCreate()
freeze_once()
print(gc.get_freeze_count() > 10_000)
before = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
freeze_once()
print(gc.get_freeze_count() - before)
"""


def test_a_worker_freezes_what_it_has_imported_once_and_other_programs_never() -> None:
    done = subprocess.run([sys.executable, "-c", TASKS], capture_output=True, text=True, check=True)
    outside, in_worker, more_in_the_next_task = done.stdout.split()
    assert outside == "0"
    assert in_worker == "True"
    assert more_in_the_next_task == "0"
