"""Micro-batches of few records: how long each takes while records come all the time."""

import json
import threading
import time
from pathlib import Path
from statistics import median

import msgspec
from pyspark.sql import SparkSession
from spark_load import PARTITIONS, System

from penstock.batch import Record
from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.producer import BatchProducer

RECORDS = 10
"""Sent together, to one partition after the other."""
PAUSE_S = 0.05
SKIPPED_BATCHES = 10
"""Until the JVM has compiled most of it."""
MEASURED_BATCHES = 40
PATIENCE_S = 180


class MicroBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Medians, in ms."""

    whole_ms: float
    add_batch_ms: float


def of_few_records(spark: SparkSession, system: System, topic: str, checkpoint: Path) -> MicroBatches:
    with Cluster(ClientSettings(bootstrap_servers=system.bootstrap)) as cluster:
        cluster.create_topic(topic, partitions=PARTITIONS)
    stop = threading.Event()
    sender = threading.Thread(target=_send, args=(system.bootstrap, topic, stop))
    sender.start()
    try:
        progress = _progress(spark, system, topic, checkpoint)
    finally:
        stop.set()
        sender.join()
    spent = [each["durationMs"] for each in progress[SKIPPED_BATCHES:]]
    return MicroBatches(
        whole_ms=median(each["triggerExecution"] for each in spent),
        add_batch_ms=median(each["addBatch"] for each in spent),
    )


def _progress(
    spark: SparkSession, system: System, topic: str, checkpoint: Path
) -> list[dict[str, dict[str, int]]]:
    reader = spark.readStream.format(system.format).options(**system.options).option("subscribe", topic)
    rows = reader.option("startingOffsets", "latest").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while True:
            found = [json.loads(each.json) for each in query.recentProgress]
            found = [each for each in found if each["numInputRows"]]
            if len(found) >= SKIPPED_BATCHES + MEASURED_BATCHES:
                return found
            if query.exception() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"the stream of {system.name} had {len(found)} batches: {query.exception()}"
                )
            time.sleep(PAUSE_S)
    finally:
        query.stop()


def _send(bootstrap: str, topic: str, stop: threading.Event) -> None:
    settings = ClientSettings(bootstrap_servers=bootstrap)
    with Cluster(settings) as cluster, BatchProducer(cluster) as producer:
        number = 0
        while not stop.wait(PAUSE_S):
            now_ms = time.time_ns() // 1_000_000
            records = [Record(at, now_ms, b"key", b"x" * 100) for at in range(RECORDS)]
            producer.send_records(topic, number % PARTITIONS, records)
            producer.flush()
            number += 1
