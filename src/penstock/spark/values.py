"""The value column: raw bytes, or decoded by a format; and how records that do not decode are treated.

A bad record is never dropped silently. It fails the query; or it goes to the dead-letter topic whole, with the reason,
before the rows that follow it are yielded (a task that runs twice may write it there twice); or its row stays, with a
null value.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.batch import Record
from penstock.client.wire import Cluster
from penstock.errors import PenstockError
from penstock.spark.options import DEAD_LETTER_SUFFIX, SourceOptions
from penstock.spark.payloads import Decoded, PayloadOptions, decoder_for
from penstock.spark.schema import arrow_schema
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.schema_registry.registry import SchemaRegistry
    from penstock.spark.columns import Block

log = logging.getLogger("penstock.spark")

ERROR_HEADER: Final = "penstock-error"
TOPIC_HEADER: Final = "penstock-source-topic"
PARTITION_HEADER: Final = "penstock-source-partition"
OFFSET_HEADER: Final = "penstock-source-offset"
TIMESTAMP_HEADER: Final = "penstock-source-timestamp"

DEAD_LETTER_BYTES: Final = 64 << 20
"""A letter is larger than its record, by headers; it must fit where the record did."""


DEAD_LETTER_CONFIGS: Final = {"max.message.bytes": str(DEAD_LETTER_BYTES), "retention.ms": "-1"}
"""A letter has its record's time: with the brokers' default, one that is older than a week would be gone at once."""


class BadRecord(PenstockError):
    """A record whose value does not match valueFormat, in a query that fails on bad records."""


def registry_of(payload: PayloadOptions) -> "SchemaRegistry":
    from penstock.schema_registry.registry import RegistrySettings, SchemaRegistry  # few readers need it

    assert payload.registry_url is not None
    return SchemaRegistry(
        RegistrySettings(
            url=payload.registry_url,
            user_info=payload.registry_user_info,
            schema_type=payload.value_format.upper(),
        )
    )


def dead_letter_topic(options: SourceOptions, topic: str) -> str:
    return options.dead_letter_topic or topic + DEAD_LETTER_SUFFIX


def make_dead_letter_topics(options: SourceOptions, cluster: Cluster, topics: Collection[str]) -> None:
    """Creates those that do not exist. Checks first: a query that need not create topics needs no right to do so."""
    if not options.to_dead_letters or not topics:
        return
    wanted = {dead_letter_topic(options, topic) for topic in topics}
    for name in sorted(wanted - set(cluster.topics(wanted))):
        cluster.create_topic(name, configs=DEAD_LETTER_CONFIGS)


class ValueColumn:
    """Turns blocks into the batches that Spark gets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        value = schema["value"].dataType if "value" in schema.names else None
        self._decoder = None
        if options.payload.value_format != "raw" and isinstance(value, StructType):
            lookup = registry_of(options.payload).schema_of if options.payload.registry_url else None
            self._decoder = decoder_for(options.payload.value_format, value, options.payload, lookup)

    @property
    def needs(self) -> frozenset[str]:
        """Columns that a block must have although Spark may not want them."""
        if self._decoder is None:
            return frozenset()
        if self._options.to_dead_letters:
            return frozenset(["key", "value", "offset", "timestamp", "headers"])
        return frozenset(["value", "offset", *(["headers"] if self._decoder.needs_headers else [])])

    def finish(
        self, cluster: Cluster, tp: TopicPartition, block: "Block", shared: Mapping[str, pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        columns = {**block.columns, **shared}
        if self._decoder is None:
            yield self._batch(columns)
            return
        headers = block.columns["headers"] if self._decoder.needs_headers else None
        for decoded in self._decoder.parts(block.columns["value"], headers):
            if decoded.bad:
                self._set_aside(cluster, tp, block, decoded.bad)
            yield from self._decoded(columns, decoded)

    def _decoded(self, columns: Mapping[str, pa.Array], decoded: Decoded) -> Iterator[pa.RecordBatch]:
        if decoded.rows is not None:
            rest = {name: columns[name].take(decoded.rows) for name in self._schema.names if name != "value"}
            columns = {**rest, "value": decoded.values}
        else:
            columns = {**columns, "value": decoded.values}
        batch = self._batch(columns)
        if decoded.bad and not self._options.bad_as_null:
            gone = {row for row, _ in decoded.bad}
            sources = range(batch.num_rows) if decoded.rows is None else decoded.rows.to_pylist()
            batch = batch.filter(pa.array([row not in gone for row in sources], pa.bool_()))
        if batch.num_rows:
            yield batch

    def _batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _set_aside(
        self, cluster: Cluster, tp: TopicPartition, block: "Block", bad: list[tuple[int, str]]
    ) -> None:
        row, reason = bad[0]
        first = f"{tp}, offset {block.columns['offset'][row].as_py()}"
        if self._options.bad_as_null:
            log.warning(
                "%d values are null because they do not decode; the first: %s: %s", len(bad), first, reason
            )
            return
        if not self._options.to_dead_letters:
            raise BadRecord(
                f"{first}: the value is not {self._options.payload.value_format}: {reason}. badRecords=deadLetter "
                "moves such records to another topic, badRecords=null keeps their rows with a null value"
            )
        from penstock.client.wire.producer import BatchProducer  # few readers ever need it

        topic = dead_letter_topic(self._options, tp.topic)
        there = cluster.topics([topic])
        partitions = there[topic].partitions if topic in there else (0,)
        with BatchProducer(cluster, max_request_bytes=DEAD_LETTER_BYTES) as producer:
            letters = [_letter(tp, block, row, reason) for row, reason in bad]
            producer.send_records(topic, tp.partition % len(partitions), letters)
            producer.flush()


def _letter(tp: TopicPartition, block: "Block", row: int, reason: str) -> Record:
    """The original record, with headers for the reason and for its origin."""
    found = {name: column[row] for name, column in block.columns.items()}
    offset, time_ms = found["offset"].as_py(), found["timestamp"].value // 1000
    headers = tuple((pair["key"], pair["value"]) for pair in found["headers"].as_py() or ())
    return Record(
        0,
        time_ms,
        found["key"].as_py(),
        found["value"].as_py(),
        (
            *headers,
            (ERROR_HEADER, reason.encode()),
            (TOPIC_HEADER, tp.topic.encode()),
            (PARTITION_HEADER, str(tp.partition).encode()),
            (OFFSET_HEADER, str(offset).encode()),
            (TIMESTAMP_HEADER, str(time_ms).encode()),
        ),
    )
