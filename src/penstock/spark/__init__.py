"""Penstock on Spark: a data source for topics, and ready-made pipelines. A client, nothing more.

Spark finds the data source by itself: `spark.read.format("penstock")`.
"""
