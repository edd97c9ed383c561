"""What a record's value holds: JSON, CSV, Avro or Arrow, to rows and back. Pure functions on Arrow arrays, no I/O.

`decoder_for(...)` decodes a column of values and says which records are bad and why; `encoder_for(...)` goes the other
way; `infer_schema(...)` reads a sample. `base` tells how a block is decoded fast and how a bad record in it is found.
"""

from .base import Decoded, Decoder, Encoder, PayloadError
from .formats import decoder_for, encoder_for, infer_schema
from .options import PAYLOAD_OPTIONS, VALUE_FORMATS, PayloadOptions

__all__ = [
    "PAYLOAD_OPTIONS",
    "VALUE_FORMATS",
    "Decoded",
    "Decoder",
    "Encoder",
    "PayloadError",
    "PayloadOptions",
    "decoder_for",
    "encoder_for",
    "infer_schema",
]
