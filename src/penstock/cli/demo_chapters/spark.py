"""A Spark pipeline from a topic of JSON to another topic and to a Delta table, and a table of the results."""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.demo_chapters.numbered import send
from penstock.cli.demo_stage import Stage
from penstock.cli.output import table
from penstock.cli.pipeline_session import OnSpark
from penstock.cli.problem import Problem
from penstock.spark.java import why_not

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

TOPIC = "purchases"
LARGE_TOPIC = "large-purchases"
PARTITIONS = 2
CITIES = ("Aarhus", "Bergen", "Cork", "Delft")
LARGE = 90
"""Amounts above this go to the second topic: one in ten."""
TIMEOUT_S = 60.0


def play(stage: Stage) -> None:
    stage.chapter("A pipeline on Spark")
    reason = why_not()
    if reason:
        stage.say(f"skipped: {reason}")
        return
    _produce(stage)
    where = OnSpark(
        bootstrap=stage.connection.bootstrap, master="local[2]", conf={}, options={}, verbose=False
    )
    began = time.perf_counter()
    with ExitStack() as stack:
        with stage.working("starting Spark"):
            spark = stack.enter_context(where.session("demo"))
        stage.say(f"Spark {spark.version} started in {time.perf_counter() - began:.1f} s, with no JAR added")
        _run(stage, spark)


def _produce(stage: Stage) -> None:
    """One purchase for every other message of the demo, as JSON."""
    stage.create_topics(TOPIC, LARGE_TOPIC, partitions=PARTITIONS)
    producer = stage.connection.producer(acks="all", linger_ms=5)
    for number in range(stage.messages // 2):
        purchase = {"city": CITIES[number % len(CITIES)], "amount": number % 100 + 1}
        send(producer, TOPIC, json.dumps(purchase).encode(), str(number % 1000).encode())
    if producer.flush(TIMEOUT_S):
        raise Problem("not every purchase was acknowledged in time")


def _run(stage: Stage, spark: "SparkSession") -> None:
    out = stage.scratch / "purchases"
    with stage.working(f"{TOPIC} to {LARGE_TOPIC} and to a Delta table"):
        seconds = _to_topic(stage, spark) + _to_parquet(stage, spark, out)
    purchases = stage.messages // 2
    stage.say(
        f"{purchases:,} JSON records went from {TOPIC} to {LARGE_TOPIC} and to a Delta table, in {seconds:.1f} s"
    )
    with stage.working("counting"):
        rows = _by_city(stage, spark, out)
    stage.show(table("city", "purchases", "sum", "large", rows=rows, numbers=["purchases", "sum", "large"]))
    _verify(stage, rows, purchases)
    stage.figure("spark_records", "records through Spark, to a topic and to a Delta table", purchases)


def _to_topic(stage: Stage, spark: "SparkSession") -> float:
    """A streaming query that decodes JSON, keeps large purchases and writes them to another topic, exactly once."""
    began = time.perf_counter()
    source = spark.readStream.format("penstock").option("kafka.bootstrap.servers", stage.connection.bootstrap)
    source = source.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    source = source.option("valueFormat", "json").option("valueSchema", "city string, amount bigint")
    large = source.load().where(f"value.amount > {LARGE}").selectExpr("key", "to_json(value) AS value")
    sink = large.writeStream.format("penstock").option("topic", LARGE_TOPIC)
    sink = sink.option("kafka.bootstrap.servers", stage.connection.bootstrap)
    sink = sink.option("checkpointLocation", str(stage.scratch / "checkpoint"))
    sink.trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - began


def _to_parquet(stage: Stage, spark: "SparkSession", out: Path) -> float:
    """The ready-made archive: exactly once."""
    from penstock.spark import archive

    began = time.perf_counter()
    archive(spark, TOPIC, str(out), bootstrap_servers=stage.connection.bootstrap)
    return time.perf_counter() - began


def _by_city(stage: Stage, spark: "SparkSession", out: Path) -> "list[Row]":
    from penstock.spark import read_archive

    read_archive(spark, str(out)).createOrReplaceTempView("archived")
    large = spark.read.format("penstock").option("kafka.bootstrap.servers", stage.connection.bootstrap)
    large.option("subscribe", LARGE_TOPIC).load().createOrReplaceTempView("large")
    return spark.sql(
        """
        WITH bought AS (SELECT from_json(string(value), 'city string, amount bigint') v FROM archived),
             sent AS (SELECT from_json(string(value), 'city string, amount bigint') v FROM large)
        SELECT a.city, a.purchases, a.sum, coalesce(b.large, 0) AS large
        FROM (SELECT v.city, count(*) purchases, sum(v.amount) sum FROM bought GROUP BY v.city) a
        LEFT JOIN (SELECT v.city, count(*) large FROM sent GROUP BY v.city) b ON a.city = b.city
        ORDER BY a.city
        """
    ).collect()


def _verify(stage: Stage, rows: "list[Row]", purchases: int) -> None:
    expected_large = sum(1 for number in range(purchases) if number % 100 + 1 > LARGE)
    found, large = sum(row.purchases for row in rows), sum(row.large for row in rows)
    if (found, large) != (purchases, expected_large):
        raise Problem(
            f"{found:,} purchases and {large:,} large ones: expected {purchases:,} and {expected_large:,}"
        )
    stage.say(f"every purchase is in the Delta table once, and all {large:,} large ones are in {LARGE_TOPIC}")
