"""Where Spark looks for data sources: a package named pyspark_* with a DefaultSource. All else is in penstock.spark."""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
