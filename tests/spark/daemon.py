"""Spark's own daemon, which forks Python workers, with all that they need loaded (`spark.python.daemon.module`).

For sessions whose workers tests must find among the children of Spark's processes; others use `Forks`.
"""

import importlib

from pyspark.daemon import manager

from tests.spark.forks import LOADED

if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    manager()
