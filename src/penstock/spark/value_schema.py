"""The schema of decoded values: as given by valueSchema, or inferred from the first records of the topics."""

from collections.abc import Generator
from typing import Final

from pyspark.sql.types import StructType

from penstock.batch import iter_headers, read_records
from penstock.client.wire import fetch_range
from penstock.errors import ConfigError
from penstock.spark.options import SourceOptions
from penstock.spark.payloads import given_schema, infer_schema, registered_type
from penstock.spark.planner import Planner
from penstock.spark.values import registry_of

MOST_SAMPLE_BYTES: Final = 256 << 20
"""The most bytes that are read of one partition: this happens while the query is planned."""


def value_schema(options: SourceOptions) -> StructType | None:
    """None: the value is not decoded."""
    payload = options.payload
    if payload.value_format == "raw" or "value" not in options.columns:
        return None
    given = given_schema(payload)
    if given is not None:
        return given
    if payload.registry_url is not None:
        return _registered(options)
    if options.queue is not None:
        raise ConfigError("valueSchema", None, "a schema, since none is inferred from the jobs of a queue")
    values = _sample(options)
    if not values:
        raise ConfigError("valueSchema", None, "a schema, since there is no record yet to infer one from")
    return infer_schema(payload.value_format, values, payload)


def _registered(options: SourceOptions) -> StructType:
    """The type of the newest schema of the topic's values."""
    subject = options.payload.registry_subject
    if subject is None:
        topics = options.subscription.wanted_topics() or ()
        if len(topics) != 1:
            raise ConfigError(
                "valueSchema", None, "a schema, or schemaRegistrySubject, unless the query reads one topic"
            )
        subject = f"{next(iter(topics))}-value"
    from penstock.schema_registry.registry import RegistryError, UnknownSubject  # few readers need it

    try:
        return registered_type(registry_of(options.payload).latest(subject))
    except UnknownSubject as unknown:
        raise RegistryError(f"{unknown}: name it by schemaRegistrySubject, or give valueSchema") from None


def _sample(options: SourceOptions) -> list[bytes]:
    """Values from the start of each partition, an equal share from each."""
    planner = Planner(options)
    try:
        topic_partitions = planner.layout(require_all=True).topic_partitions
        starts, ends = planner.earliest(topic_partitions), planner.latest(topic_partitions)
        filled = [tp for tp in topic_partitions if ends[tp] > starts[tp]]
        share = -(-options.payload.infer_sample_size // max(1, len(filled)))
        values: list[bytes] = []
        for tp in filled:
            chunks = fetch_range(
                planner.cluster, tp, starts[tp], ends[tp], fetch_bytes=1 << 20, isolation=options.isolation
            )
            values += _first_values(chunks, share)
        return values[: options.payload.infer_sample_size]
    finally:
        planner.close()


def _first_values(chunks: Generator[bytes, None, None], most: int) -> list[bytes]:
    values: list[bytes] = []
    seen_bytes = 0
    try:
        for chunk in chunks:
            seen_bytes += len(chunk)
            if seen_bytes > MOST_SAMPLE_BYTES:  # tombstones only, or huge records
                break
            for position, header in iter_headers(chunk):
                if not header.control:
                    values += [each.value for each in read_records(chunk, position) if each.value is not None]
                if len(values) >= most:
                    return values[:most]
    finally:
        chunks.close()
    return values
