"""Topics full of records, the same bytes on every broker, and the Spark jobs that are timed on them."""

import json
import time
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from penstock.batch import Record
from penstock.batch._rows import encode_rows
from penstock.batch.producing import EncodedRows
from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.producer import BatchProducer
from penstock.types import TopicPartition

PARTITIONS = 4
CODECS = {"none": 0, "zstd": 4}
BATCH_BYTES = 500_000
FIRST_TIME_MS = time.time_ns() // 1_000_000 - 3_600_000
"""An hour ago: what is older than a topic's retention may be gone before it is read."""
STREAM_BATCHES = 5
PATIENCE_S = 1800


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    size_bytes: int
    compression: str

    @property
    def topic(self) -> str:
        return f"bench-{self.records}-{self.size_bytes}-{self.compression}"

    @property
    def label(self) -> str:
        return f"{self.records / 1e6:g} M of {self.size_bytes} B, {self.compression}"


class System(msgspec.Struct, frozen=True, kw_only=True):
    """A Spark format on a broker."""

    name: str
    format: str
    bootstrap: str

    @property
    def options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap}


def fill(bootstrap: str, cell: Cell) -> None:
    """JSON-like text that compresses about as JSON does, with 8-byte keys."""
    rows = BATCH_BYTES // (cell.size_bytes + 18)
    records = [_record(number, cell.size_bytes) for number in range(rows)]
    with Cluster(ClientSettings(bootstrap_servers=bootstrap)) as cluster:
        cluster.create_topic(cell.topic, partitions=PARTITIONS)
        with BatchProducer(cluster, compression=CODECS[cell.compression]) as producer:
            whole = encode_rows(records, 0, FIRST_TIME_MS)
            for number, sent in enumerate(range(0, cell.records, rows)):
                count = min(rows, cell.records - sent)
                payload = whole if count == rows else encode_rows(records[:count], 0, FIRST_TIME_MS)
                place = TopicPartition(cell.topic, number % PARTITIONS)
                producer.send(place, EncodedRows(payload, count, FIRST_TIME_MS, records[count - 1].timestamp))


def _record(number: int, size: int) -> Record:
    words = (
        f'{{"user": {number * 7919 % 100_003}, "page": "/item/{number * 31 % 977}", "ms": {number % 1009}}} '
    )
    value = (words * (size // len(words) + 1))[:size].encode()
    return Record(number, FIRST_TIME_MS + number // 10, b"%08d" % number, value)


def frame(spark: SparkSession, system: System, topic: str) -> DataFrame:
    return spark.read.format(system.format).options(**system.options).option("subscribe", topic).load()


def timed_noop(rows: DataFrame) -> float:
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def timed_count(rows: DataFrame, expected: int) -> float:
    began = time.perf_counter()
    found = rows.count()
    seconds = time.perf_counter() - began
    if found != expected:
        raise RuntimeError(f"{found} rows: expected {expected}")
    return seconds


def timed_stream(spark: SparkSession, system: System, cell: Cell, checkpoint: Path) -> float:
    """The time of all micro-batches; starting and stopping the query is not in it."""
    reader = spark.readStream.format(system.format).options(**system.options).option("subscribe", cell.topic)
    reader = reader.option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", str(-(-cell.records // STREAM_BATCHES)))
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(PATIENCE_S):
        raise RuntimeError(f"the stream of {cell.label} by {system.name} did not end")
    progress = [json.loads(each.json) for each in query.recentProgress]
    rows = sum(each["numInputRows"] for each in progress)
    if rows != cell.records:
        raise RuntimeError(f"{rows} rows in the stream of {system.name}: expected {cell.records}")
    spent_ms: int = sum(each["durationMs"]["triggerExecution"] for each in progress if each["numInputRows"])
    return spent_ms / 1000


def timed_sink(rows: DataFrame, system: System, topic: str, **options: str) -> float:
    with Cluster(ClientSettings(bootstrap_servers=system.bootstrap)) as cluster:
        cluster.create_topic(topic, partitions=PARTITIONS)
    writer = rows.write.format(system.format).options(**system.options).option("topic", topic)
    writer = writer.options(**options)
    began = time.perf_counter()
    writer.mode("append").save()
    return time.perf_counter() - began
