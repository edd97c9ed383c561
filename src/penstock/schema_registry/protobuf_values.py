"""Values of Protobuf as JSON, by proto3's own mapping: whole numbers of 64 bits are strings, bytes base64, fields have
the names of the schema, and those that a message leaves out have their defaults where they have no presence.

Protobuf's parser refuses messages that are nested more than a hundred levels deep.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf import json_format, message_factory
from google.protobuf.message import DecodeError

from .framing import WriterSchema
from .problems import BadValue, clip
from .protobuf_types import message_type


def protobuf_reader(schema: WriterSchema, indexes: tuple[int, ...]) -> tuple[str, Callable[[bytes], Any]]:
    """The name of the message at this path of the file, and the function from its bytes to JSON. PayloadError if the
    schema has no such message, or is no schema."""
    descriptor = message_type(schema, indexes)
    message_class = message_factory.GetMessageClass(descriptor)

    def decode(data: bytes) -> Any:
        message = message_class()
        try:
            message.ParseFromString(data)
            return json_format.MessageToDict(
                message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadValue(f"not a Protobuf message {descriptor.full_name}: {clip(str(error))}") from None
        except (json_format.Error, LookupError, TypeError, ValueError, AttributeError) as error:
            # A Timestamp that is no date, an Any of an unknown type, a file with its own idea of one of Google's types.
            raise BadValue(f"a message {descriptor.full_name} that has no JSON: {clip(str(error))}") from None

    return descriptor.full_name, decode
