"""Which schema a record was written with, as producers that use a schema registry say it.

    before the value     00 | id (4 bytes, big endian)                 | Protobuf: message indexes | value
    in a header          __value_schema_id: 01 | guid (16 bytes)       | Protobuf: message indexes
                         (or 00 | id, as before the value; __key_schema_id for the key)

The message indexes say which message of the file it is: their number and then each of them, as zigzag varints; the path
0, the first message, is a single 0. They are bounded, since a record's writer decides about them.
"""

from typing import Final, NamedTuple
from uuid import UUID

from .problems import BadValue

HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
ID_BYTES: Final = 4
GUID_BYTES: Final = 16
MAX_INDEXES: Final = 32
"""Levels of nested messages."""
MAX_VARINT_BYTES: Final = 5

SchemaKey = int | UUID


class WriterSchema(NamedTuple):
    """A schema of the registry."""

    schema_type: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    """JSON, or a serialized descriptor in base64."""
    references: dict[str, str]
    """Texts of schemas that it refers to, by name; none refers to a later one."""


class Framed(NamedTuple):
    key: SchemaKey
    indexes: tuple[int, ...]
    start: int
    """Where the frame ends."""


def named_schema(data: bytes, header: bytes | None) -> SchemaKey | None:
    """The schema that a key or a value names: in the record's header for it, or before the bytes. None: none."""
    if header is None and data[:1] != b"\0":
        return None
    try:
        return framed(data if header is None else header, indexes=False).key
    except BadValue:
        return None


def framed(data: bytes, *, indexes: bool) -> Framed:
    """Reads a frame from the start of a value or from a header. BadValue if there is none."""
    match data[:1]:
        case b"\0" if len(data) > ID_BYTES:
            key: SchemaKey = int.from_bytes(data[1 : 1 + ID_BYTES], "big")
            at = 1 + ID_BYTES
        case b"\1" if len(data) > GUID_BYTES:
            key = UUID(bytes=data[1 : 1 + GUID_BYTES])
            at = 1 + GUID_BYTES
        case _:
            found = data[:5].hex() or "nothing"
            raise BadValue(f"expected the id of a schema (a zero byte and 4 bytes), found {found}")
    if not indexes:
        return Framed(key, (), at)
    path, at = _indexes(data, at)
    return Framed(key, path, at)


def _indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = _varint(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_INDEXES:
        raise BadValue(f"the frame has {count} message indexes; at most {MAX_INDEXES} are read")
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        if index < 0:
            raise BadValue(f"the frame has the message index {index}")
        path.append(index)
    return tuple(path), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(MAX_VARINT_BYTES):
        if at >= len(data):
            raise BadValue("the frame ends before its message indexes do")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise BadValue("the frame has a message index that is too large")
