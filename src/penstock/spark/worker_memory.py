"""Keeps Python's garbage collector away from what a worker of Spark's has imported.

Spark collects garbage after every task (`pyspark.daemon`). With PySpark, Arrow and Penstock loaded, a worker holds
90,000 objects that live as long as it does, and looking at all of them takes 20 to 40 ms: in a micro-batch of few
records that is ten times as long as the tasks themselves. After its first task a worker therefore moves all that is
alive to the generation that is never looked at (`gc.freeze`). Objects of later tasks are collected as before.
"""

import gc
import os

from pyspark import TaskContext

_frozen_in: set[int] = set()
"""Process ids: a worker is a fork."""


def freeze_once() -> None:
    """At the end of a task. Has no effect outside of Spark's workers, whose program has a right to its own garbage."""
    if TaskContext.get() is None or os.getpid() in _frozen_in:
        return
    _frozen_in.add(os.getpid())
    gc.collect()  # what is garbage now would stay for ever
    gc.freeze()
