"""A Kafka message as the codec sees it: fields, each with the versions in which it is on the wire.

A message has ONE class for all versions. Its SCHEMA lists the fields in wire order; at version v the wire
carries those with `first <= v <= last`, and a field that is not carried keeps its default on decode and is
left out on encode. So handlers ask for the version only where the same fields mean something else in another version:
an empty list of topics in Metadata v0, one group or many in OffsetFetch and FindCoordinator, errors that older clients
do not know.

Conventions that every generated class follows:

- times are plain ints in milliseconds and end in `_ms` (or are called `..._timestamp`); error codes are ints;
- a topic id is always a `UUID`; "none" is NO_UUID, the zero id, as on the wire (decoding gives that very
  object, so `is NO_UUID` holds);
- `records` decode to a view of the frame, without a copy, and encode from one buffer or several;
  other `bytes` are copied, since they are small and outlive the frame;
- nullable strings, bytes and structs default to None; arrays are lists and default to Kafka's default,
  nearly always the empty one. In a version without null, None is written as empty;
- a tagged struct that is absent is None.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview
Records: TypeAlias = Buffer | list[Buffer] | tuple[Buffer, ...]
"""Record batches to send: one buffer, or several that follow each other on the wire."""

NO_UUID: Final = UUID(int=0)

NEVER: Final = 1 << 15
"""A version that no message reaches: versions are 16 bits, signed."""

MAX_STRING_BYTES: Final = 0x7FFF
"""The most that a legacy string can hold; Kafka refuses longer compact ones too."""

BOOL: Final = "bool"
INT8: Final = "int8"
INT16: Final = "int16"
UINT16: Final = "uint16"
INT32: Final = "int32"
INT64: Final = "int64"
FLOAT64: Final = "float64"
UUID16: Final = "uuid"
STRING: Final = "string"
BYTES: Final = "bytes"
RECORDS: Final = "records"
STRUCT: Final = "struct"
ARRAY: Final = "array"

FIXED: Final[Mapping[str, str]] = {
    BOOL: "?",
    INT8: "b",
    INT16: "h",
    UINT16: "H",
    INT32: "i",
    INT64: "q",
    FLOAT64: "d",
    UUID16: "16s",
}
"""Kinds of fixed width, by their letters in the `struct` module."""


class Root(NamedTuple):
    """Facts of the outermost struct of a message."""

    title: str
    first: int
    last: int
    flexible_from: int
    """The first version with compact lengths and tagged fields (KIP-482)."""


class Message(msgspec.Struct, kw_only=True, gc=False):
    """A Kafka message, or a struct inside one. Never part of a cycle, so the collector need not look."""

    SCHEMA: ClassVar["Schema"] = ()
    ROOT: ClassVar[Root | None] = None


class Field(NamedTuple):
    """One field on the wire; versions are inclusive."""

    name: str
    kind: str
    first: int
    last: int
    of: str | type[Message] | None = None
    """The struct of a STRUCT, or what an ARRAY holds."""
    nullable_from: int = NEVER
    tag: int | None = None

    def in_version(self, version: int) -> bool:
        return self.first <= version <= self.last

    @property
    def struct(self) -> type[Message]:
        """The class of a STRUCT, or of an ARRAY's elements."""
        assert isinstance(self.of, type)
        return self.of


Schema: TypeAlias = tuple[Field, ...]


class Api(NamedTuple):
    """Where an API's messages are and which versions they have."""

    module: str
    name: str
    first: int
    last: int
    flexible_from: int


def default_of(cls: type[Message], name: str) -> object:
    """The default of a field."""
    at = cls.__struct_fields__.index(name) - len(cls.__struct_fields__)
    default = cls.__struct_defaults__[at]
    factory = getattr(default, "factory", None)
    return default if factory is None else factory()
