"""Formats of record values: JSON, CSV, Avro and Arrow, to rows and back, and Protobuf to rows. Pure functions on Arrow
arrays, no I/O.

`given_schema(...)` and `infer_schema(...)` find the schema, in the options or in a sample. `decoder_for(...)` decodes a
column of values and says which records are bad and why; `encoder_for(...)` goes the other way. `base` describes how a
block is decoded fast and how a bad record in it is found.
"""

from .formats import decoder_for, encoder_for, given_schema, infer_schema, registered_type
from .interfaces import Decoded, Decoder, Encoder, PayloadError
from .options import PAYLOAD_OPTIONS, PayloadOptions

__all__ = [
    "PAYLOAD_OPTIONS",
    "Decoded",
    "Decoder",
    "Encoder",
    "PayloadError",
    "PayloadOptions",
    "decoder_for",
    "encoder_for",
    "given_schema",
    "infer_schema",
    "registered_type",
]
