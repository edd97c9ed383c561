"""A stream from topics to a topic: what such pipelines have in common.

Records keep their key, headers, timestamp and partition, and their order in it. A micro-batch is written batch by batch
(foreachBatch), because only then can its rows be sorted, in a transaction named by the query and the number of the
micro-batch: exactly once, where the brokers can do it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.options import SourceOptions
from penstock.spark.pipelines.groups import group_options
from penstock.spark.pipelines.reading import require_classic, topic_names, with_defaults
from penstock.spark.pipelines.running import Schedule, Totals, run
from penstock.spark.pipelines.writer import ARROW_BYTES
from penstock.spark.planner import Planner
from penstock.spark.problems import PipelineError
from penstock.spark.read_bounds import Subscription, parse_topics
from penstock.spark.security_options import security_options
from penstock.spark.sink import OWNER_PREFIX, QUERY_ID
from penstock.spark.sink_options import SinkOptions

MAX_TASKS: Final = 800
"""Tasks of one write. A coordinator lends at most 900 producers to it, also to tasks that are tried again."""

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStream:
    """The topics that are read and the one that is written, checked."""

    name: str
    """The name of the pipeline."""
    options: Mapping[str, str]
    """Options of the source."""
    parsed: SourceOptions
    to_topic: str
    checkpoint: str

    @property
    def sink_options(self) -> dict[str, str]:
        """Results go to the brokers that the records come from, with the same login."""
        return sink_options(self.options, self.to_topic)

    def prepare(self) -> None:
        """The topics are there; the target is created with as many partitions as the widest of them."""
        planner = Planner(self.parsed)
        try:
            layout = planner.layout(require_all=True)
            wanted = max((tp.partition + 1 for tp in layout.topic_partitions), default=1)
            planner.cluster.create_topic(self.to_topic, wanted)
            found = len(planner.cluster.topics([self.to_topic])[self.to_topic].partitions)
        finally:
            planner.close()
        if found < wanted:
            raise PipelineError(
                f"topic {self.to_topic} has {found} partitions, and those that are read have up to {wanted}: records "
                f"stay in their partition. `penstock topics alter {self.to_topic} --partitions {wanted}`"
            )

    def run(
        self,
        spark: SparkSession,
        transform: Transform,
        schedule: Schedule,
        each_batch: Transform | None = None,
    ) -> Totals:
        """`transform` is applied to the stream, `each_batch` to the rows of each micro-batch. The results have the
        columns key, value, headers, timestamp, topic, partition and offset."""
        require_classic(spark, self.name, "this process writes the micro-batches")
        self.prepare()
        own = spark.newSession()
        own.conf.set(*ARROW_BYTES)
        rows = transform(own.readStream.format("penstock").options(**self.options).load())
        target = {**self.sink_options, "useTimestamps": "true"}

        def write(batch: DataFrame, batch_id: int) -> None:
            found = batch if each_batch is None else each_batch(batch)
            ordered = in_order(found).select("key", "value", "headers", "timestamp", "partition")
            once = once_options(batch, batch_id)
            ordered.write.format("penstock").options(**target, **once).mode("append").save()

        writer = rows.writeStream.foreachBatch(write).queryName(f"{self.name} to {self.to_topic}")
        return run(writer.option("checkpointLocation", self.checkpoint), schedule)


def topic_stream(
    name: str,
    topics: str | Sequence[str],
    *,
    bootstrap_servers: str,
    to_topic: str,
    checkpoint: str,
    options: Mapping[str, str] | None,
) -> TopicStream:
    """ConfigError names what cannot be meant."""
    if not checkpoint:
        raise ConfigError("checkpoint", checkpoint, "a folder where state and offsets are kept between runs")
    parse_topics("to_topic", to_topic)
    defaults = {"startingOffsets": "earliest", "includeHeaders": "true", **group_options(name, checkpoint)}
    given = {**with_defaults(options or {}, defaults), "kafka.bootstrap.servers": bootstrap_servers}
    names = topic_names(topics) or ()
    if names:
        given["subscribe"] = ",".join(names)
    parsed = source_options.parse(given, streaming=True)
    check_target(parsed.subscription, to_topic)
    check_raw(parsed)
    if parsed.queue is not None or "headers" not in parsed.columns or len(parsed.columns) < 8:
        raise ConfigError("columns", ", ".join(parsed.columns), "whole records of topics, with headers")
    return TopicStream(name=name, options=given, parsed=parsed, to_topic=to_topic, checkpoint=checkpoint)


def check_target(subscription: Subscription, topic: str) -> None:
    if subscription.pattern:
        is_read = re.fullmatch(subscription.pattern, topic) is not None
    else:
        is_read = topic in (subscription.wanted_topics() or ())
    if is_read:
        raise ConfigError(
            "to_topic", topic, f"a topic that this pipeline does not read, and it reads {subscription}"
        )


def check_raw(options: SourceOptions) -> None:
    if options.payload.value_format != "raw":
        raise ConfigError(
            "valueFormat", options.payload.value_format, "raw: fields are taken from JSON values by name"
        )


def sink_options(given: Mapping[str, str], topic: str) -> dict[str, str]:
    servers = {"kafka.bootstrap.servers": given["kafka.bootstrap.servers"]}
    made = {**security_options(given), **servers, "topic": topic}
    SinkOptions.from_options(made)
    return made


def once_options(batch: DataFrame, batch_id: int) -> dict[str, str]:
    """Options by which a micro-batch is written once, though it is written by a batch query."""
    query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    return {"txnAppId": f"{OWNER_PREFIX}{query_id}", "txnVersion": str(batch_id)} if query_id else {}


def in_order(rows: DataFrame) -> DataFrame:
    """The rows of a partition in one task, in the order in which they were."""
    tasks = rows.repartition("partition")
    return tasks.sortWithinPartitions("topic", "partition", "offset")
