"""Descriptors of Protobuf messages, from the serialized files that a schema registry has."""

import base64
import binascii
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from .framing import WriterSchema
from .problems import PayloadError, clip

WELL_KNOWN: Final = "google/"


def message_type(schema: WriterSchema, indexes: tuple[int, ...]) -> Descriptor:
    """The message at this path of the file. PayloadError if the schema has none, or is no schema."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for name, text in schema.references.items():
            _add(pool, _file(text, name), set())
        file = _file(schema.text, "")
        _add(pool, file, set())
        names, messages = [file.package] if file.package else [], file.message_type
        for index in indexes:
            names.append(messages[index].name)
            messages = messages[index].nested_type
        return pool.FindMessageTypeByName(".".join(names))
    except IndexError:
        raise PayloadError(f"the schema has no message {'.'.join(map(str, indexes))}") from None
    except (KeyError, TypeError, ValueError, binascii.Error, DecodeError) as error:
        raise PayloadError(
            f"no serialized Protobuf schema, which the registry must give by format=serialized: {clip(str(error))}"
        ) from None


def _file(text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    file.ParseFromString(base64.b64decode(text, validate=True))
    file.name = name or file.name or "main.proto"
    return file


def _add(
    pool: descriptor_pool.DescriptorPool, file: descriptor_pb2.FileDescriptorProto, seen: set[str]
) -> None:
    """Files of Google's that schemas import need not be in the registry."""
    for name in file.dependency:
        if name.startswith(WELL_KNOWN) and name not in seen:
            seen.add(name)
            known = descriptor_pb2.FileDescriptorProto()
            descriptor_pool.Default().FindFileByName(name).CopyToProto(known)
            _add(pool, known, seen)
    pool.Add(file)
