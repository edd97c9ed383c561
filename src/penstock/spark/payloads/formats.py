"""The table of formats, and the three functions that use it.

A format is imported when it is used: each brings libraries of its own, and most queries need none of them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from .ddl import parse_schema
from .interfaces import Decoder, Encoder, PayloadError, shown
from .options import PayloadOptions

if TYPE_CHECKING:
    from penstock.schema_registry.framing import SchemaKey, WriterSchema

    Lookup = Callable[[SchemaKey], WriterSchema]


def decoder_for(
    value_format: str, schema: StructType, options: PayloadOptions, lookup: "Lookup | None" = None
) -> Decoder:
    """Raises PayloadError, naming the field, if the format cannot carry the schema. raw needs no decoder. `lookup` asks
    the registry, if the options name one."""
    if options.registry_url is not None:
        from .registry import registry_decoder

        assert lookup is not None
        return registry_decoder(schema, options, lookup)
    match value_format:
        case "json":
            from .json_read import JsonDecoder

            return JsonDecoder(schema)
        case "csv":
            from .csv_read import CsvDecoder

            return CsvDecoder(schema, options.csv_delimiter, options.csv_quote)
        case "avro":
            from .avro import avro_decoder

            return avro_decoder(schema, options)
        case "arrow":
            from .arrow_read import ArrowDecoder

            return ArrowDecoder(schema)
    raise _unknown(value_format)


def encoder_for(value_format: str, schema: StructType, options: PayloadOptions) -> Encoder:
    if options.registry_url is not None:
        raise PayloadError(
            "schemaRegistryUrl is an option of readers: a sink writes avroFraming=confluent with the id in avroSchemaId"
        )
    match value_format:
        case "json":
            from .json_write import JsonEncoder

            return JsonEncoder(schema)
        case "csv":
            from .csv_write import CsvEncoder

            return CsvEncoder(schema, options.csv_delimiter, options.csv_quote)
        case "avro":
            from .avro import avro_encoder

            return avro_encoder(schema, options)
        case "arrow":
            from .arrow_write import ArrowEncoder

            return ArrowEncoder(schema)
    raise _unknown(value_format)


def infer_schema(value_format: str, sample: Sequence[bytes], options: PayloadOptions) -> StructType:
    """The schema that a sample shows, all fields nullable; PayloadError says which record of it does not fit."""
    match value_format:
        case "json":
            from .json_infer import infer_json

            return infer_json(sample)
        case "csv":
            from .csv_infer import infer_csv

            return infer_csv(sample, options.csv_delimiter, options.csv_quote)
        case "avro":
            from .avro import infer_avro

            return infer_avro(sample, options)
        case "arrow":
            from .arrow_infer import infer_arrow

            return infer_arrow(sample)
    raise _unknown(value_format)


def given_schema(options: PayloadOptions) -> StructType | None:
    """The schema that the options spell out, None if it is to be inferred."""
    text = options.value_schema
    if text is None:
        return None
    if options.value_format == "avro":
        from .avro import avro_schema

        avro = avro_schema(text)
        if avro is not None:
            return avro
    return parse_schema(text)


def registered_type(schema: "WriterSchema") -> StructType:
    """The type of a column for values of a schema of the registry."""
    from . import registry

    return registry.registered_type(schema)


def _unknown(value_format: str) -> PayloadError:
    if value_format == "raw":
        return PayloadError(
            "valueFormat=raw leaves values as they are: there is nothing to decode, encode or infer"
        )
    return PayloadError(
        f"valueFormat={shown(value_format)!r}: expected one of json, avro, protobuf, csv, arrow"
    )
