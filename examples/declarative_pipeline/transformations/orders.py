"""Spark Declarative Pipelines with Penstock as source and sink.

orders (topic, JSON) -> orders_clean (streaming table) -> totals (materialised view)
                                                       -> orders-large (topic)
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import sum as sum_of

BOOTSTRAP = os.environ.get("PENSTOCK_BOOTSTRAP", "127.0.0.1:9092")

spark = SparkSession.active()


@dp.table
def orders_clean() -> DataFrame:
    """Every order, decoded while it is read; those that are no orders go to the topic orders.dlq."""
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "id bigint, customer string, amount double")
        .option("badRecords", "deadLetter")
        .load()
        .selectExpr("value.id", "value.customer", "value.amount", "timestamp")
    )


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("orders_clean").groupBy("customer").agg(sum_of("amount").alias("total"))


dp.create_sink("large_orders", "penstock", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "orders-large"})


@dp.append_flow(target="large_orders")
def to_large_orders() -> DataFrame:
    rows = spark.readStream.table("orders_clean").where("amount >= 100")
    return rows.selectExpr("customer AS key", "to_json(struct(id, amount)) AS value")
