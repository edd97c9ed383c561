"""Ready-made steps in a declarative pipeline.

orders (topic) -> without those that came twice -> with the customer's row of the topic customers -> orders-full (topic)
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import Deduplication, Enrichment

BOOTSTRAP = os.environ.get("PENSTOCK_BOOTSTRAP", "127.0.0.1:9092")

spark = SparkSession.active()

dp.create_sink("orders_full", "penstock", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "orders-full"})


@dp.append_flow(target="orders_full")
def to_orders_full() -> DataFrame:
    """One run reads the table as it is then."""
    orders = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    customers = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "customers")
        .load()
    )
    once = Deduplication(id="id", watermark="1 hour").applied(orders)
    full = Enrichment(table="customers", key="customer", field="customer_row").applied(once, customers)
    return full.select("key", "value")
