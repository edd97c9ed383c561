"""Which format is which: the one table, and the three ways in."""

from collections.abc import Sequence

from pyspark.sql.types import StructType

from .arrow_infer import infer_arrow
from .arrow_read import ArrowDecoder
from .arrow_write import ArrowEncoder
from .avro import avro_decoder, avro_encoder, avro_schema, infer_avro
from .base import Decoder, Encoder, PayloadError, shown
from .csv_infer import infer_csv
from .csv_read import CsvDecoder
from .csv_write import CsvEncoder
from .ddl import parse_schema
from .json_infer import infer_json
from .json_read import JsonDecoder
from .json_write import JsonEncoder
from .options import PayloadOptions


def decoder_for(value_format: str, schema: StructType, options: PayloadOptions) -> Decoder:
    """Raises PayloadError, naming the field, if the format cannot carry the schema. raw needs no decoder."""
    match value_format:
        case "json":
            return JsonDecoder(schema)
        case "csv":
            return CsvDecoder(schema, options.csv_delimiter, options.csv_quote)
        case "avro":
            return avro_decoder(schema, options)
        case "arrow":
            return ArrowDecoder(schema)
    raise _unknown(value_format)


def encoder_for(value_format: str, schema: StructType, options: PayloadOptions) -> Encoder:
    match value_format:
        case "json":
            return JsonEncoder(schema)
        case "csv":
            return CsvEncoder(schema, options.csv_delimiter, options.csv_quote)
        case "avro":
            return avro_encoder(schema, options)
        case "arrow":
            return ArrowEncoder(schema)
    raise _unknown(value_format)


def infer_schema(value_format: str, sample: Sequence[bytes], options: PayloadOptions) -> StructType:
    """The schema that a sample shows, all fields nullable; PayloadError says which record of it does not fit."""
    match value_format:
        case "json":
            return infer_json(sample)
        case "csv":
            return infer_csv(sample, options.csv_delimiter, options.csv_quote)
        case "avro":
            return infer_avro(sample, options)
        case "arrow":
            return infer_arrow(sample)
    raise _unknown(value_format)


def given_schema(options: PayloadOptions) -> StructType | None:
    """The schema that the options spell out, None if it is to be inferred."""
    text = options.value_schema
    if text is None:
        return None
    avro = avro_schema(text) if options.value_format == "avro" else None
    return parse_schema(text) if avro is None else avro


def _unknown(value_format: str) -> PayloadError:
    if value_format == "raw":
        return PayloadError(
            "valueFormat=raw leaves values as they are: there is nothing to decode, encode or infer"
        )
    return PayloadError(f"valueFormat={shown(value_format)!r}: expected one of json, avro, csv, arrow")
