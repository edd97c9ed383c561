"""Avro's entry in the table of formats: which schema applies, and which decoder or encoder belongs to a framing.

With valueSchema in Avro's JSON, that schema is the writer's. With a Spark schema, the writer's schema is the one that
Spark's to_avro makes of it. In a container the writer's schema is in the value.
"""

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from fastavro.schema import SchemaParseException
from pyspark.sql.types import DataType, MapType, StringType, StructType

from .avro_container import AvroContainerDecoder, container_shape, read_header
from .avro_from_spark import avro_of
from .avro_read import AvroDecoder
from .avro_schema import Shape, looks_like_avro, parse_avro
from .avro_write import AvroEncoder
from .interfaces import BadValue, Decoder, Encoder, PayloadError, clip, shown
from .options import PayloadOptions
from .spark_types import check_supported


def avro_refusal(kind: DataType) -> str | None:
    if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
        return "the keys of an Avro map are strings; use map<string,...>"
    return None


def avro_decoder(schema: StructType, options: PayloadOptions) -> Decoder:
    check_supported(schema, "avro", avro_refusal)
    if options.avro_framing == "container":
        return AvroContainerDecoder(schema)
    shape, _ = _writer_schema(schema, options)
    return AvroDecoder(schema, shape, options.avro_framing == "confluent", options.avro_schema_ids)


def avro_encoder(schema: StructType, options: PayloadOptions) -> Encoder:
    check_supported(schema, "avro", avro_refusal)
    shape, written = _writer_schema(schema, options)
    try:
        return AvroEncoder(schema, shape, written, options.avro_framing, options.avro_schema_ids)
    except SchemaParseException as error:
        raise PayloadError(f"the schema is no valid Avro schema: {clip(str(error))}") from None


def _writer_schema(schema: StructType, options: PayloadOptions) -> tuple[Shape, Any]:
    text = options.value_schema
    if text is None or not looks_like_avro(text):
        written = avro_of(schema)
        return parse_avro(json.dumps(written)), written
    shape = parse_avro(text)
    if _bare(shape.spark) != _bare(schema):
        raise PayloadError(
            f"valueSchema is an Avro schema for {shown(shape.spark.simpleString())}, "
            f"but the value column is {shown(schema.simpleString())}; they must be the same"
        )
    return shape, json.loads(text)


def _bare(kind: DataType) -> str:
    """The type as text without nullability, which simpleString leaves out."""
    return kind.simpleString()


def avro_schema(text: str) -> StructType | None:
    """The Spark schema of a valueSchema that is Avro's, None if it is not."""
    if not looks_like_avro(text):
        return None
    found = parse_avro(text).spark
    assert isinstance(found, StructType)
    check_supported(found, "avro", avro_refusal)
    return found


def infer_avro(sample: Sequence[bytes], options: PayloadOptions) -> StructType:
    if options.avro_framing != "container":
        raise PayloadError(
            f"no schema can be inferred: with avroFraming={options.avro_framing} a record does not carry its schema; "
            "give valueSchema (Avro JSON, DDL or Spark JSON), or use avroFraming=container"
        )
    first: StructType | None = None
    for at, value in enumerate(sample):
        found = _inferred(at, value)
        if first is not None and _bare(first) != _bare(found):
            raise PayloadError(
                f"no schema can be inferred: record {at} of the sample has the schema {shown(_bare(found))}, "
                f"the first one {shown(_bare(first))}; give valueSchema"
            )
        first = first or found
    if first is None:
        raise PayloadError("no schema can be inferred: the sample is empty; give valueSchema")
    return first


def _inferred(at: int, value: bytes) -> StructType:
    try:
        found = container_shape(read_header(BytesIO(value)).schema).spark
    except BadValue as error:
        raise PayloadError(
            f"no schema can be inferred: record {at} of the sample: {clip(str(error))}"
        ) from None
    assert isinstance(found, StructType)
    return found
