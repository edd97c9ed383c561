"""Kafka's wire format: frames to messages and back, every version, both ends. No I/O, no clock.

schema.py has the types of messages and fields; messages/ has the messages, one generated file per API; codec.py reads
and writes frames; decoder.py and encoder.py compile the code that does it.
"""

from penstock.kafka.wire.apis import ApiKey, is_flexible, request_class, response_class, schema_range
from penstock.kafka.wire.codec import (
    RequestHeader,
    decode_message,
    decode_request,
    decode_request_header,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
    join,
)
from penstock.kafka.wire.decoder import TooManyElements
from penstock.kafka.wire.schema import NO_UUID, Message

__all__ = [
    "NO_UUID",
    "ApiKey",
    "Message",
    "RequestHeader",
    "TooManyElements",
    "decode_message",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_message",
    "encode_request",
    "encode_response",
    "is_flexible",
    "join",
    "request_class",
    "response_class",
    "schema_range",
]
