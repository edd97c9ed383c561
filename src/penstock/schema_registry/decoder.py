"""Decodes keys and values of records by the schemas that they name. Pure but for `lookup`, which asks the registry.

A value names its schema in a header, or by a zero byte and the schema's id before it. Bytes that begin with zero and
have nothing to do with a registry look the same: then the registry has no such schema, or they do not fit it, and the
reader is told so.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from .avro_references import inlined
from .avro_values import avro_reader
from .framing import Framed, SchemaKey, WriterSchema, framed, named_schema
from .problems import BadValue, PayloadError, clip, shown
from .registry import characters

MAX_VALUE_BYTES: Final = 1 << 20
"""Longer values are not decoded: a person would not read them, and Protobuf's JSON takes seconds for some."""
MAX_READERS: Final = 200
MAX_READER_CHARACTERS: Final = 16 << 20
"""Schemas that are kept ready, and the texts that they were made of: writers decide how many a topic has."""

Lookup = Callable[[SchemaKey], WriterSchema]
"""BadValue: the schema cannot be had."""


class Decoded(NamedTuple):
    key: SchemaKey
    schema_type: str
    """AVRO, PROTOBUF or JSON; empty if the schema is not known."""
    name: str
    """Of the record or message."""
    value: Any
    """What JSON can have."""
    problem: str
    """Why there is no value; empty if there is one."""


class _Reader(NamedTuple):
    schema_type: str
    name: str
    decode: Callable[[bytes], Any]
    characters: int


class SchemaDecoder:
    """Several threads may use it at once."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._readers: dict[tuple[SchemaKey, tuple[int, ...]], _Reader | str] = {}
        """By schema and message; a text says why a schema cannot be used."""

    def decode(self, data: bytes, header: bytes | None = None) -> Decoded | None:
        """`header` is the one that names the schema, if the record has it. None if the bytes name no schema."""
        key = named_schema(data, header)
        if key is None:
            return None
        schema_type = name = ""
        try:
            schema = self._lookup(key)
            schema_type = schema.schema_type
            if len(data) > MAX_VALUE_BYTES:
                raise BadValue(f"it has {len(data)} bytes; at most {MAX_VALUE_BYTES} are decoded")
            frame = framed(data if header is None else header, indexes=schema_type == "PROTOBUF")
            reader = self._reader(schema, frame)
            name = reader.name
            value = reader.decode(data[frame.start :] if header is None else data)
            return Decoded(key, schema_type, name, value, "")
        except BadValue as problem:
            return Decoded(key, schema_type, name, None, clip(str(problem)))

    def _reader(self, schema: WriterSchema, frame: Framed) -> _Reader:
        key = frame.key, frame.indexes
        found = self._readers.get(key)
        if found is None:
            try:
                found = _reader_of(schema, frame.indexes)
            except PayloadError as problem:
                found = str(problem)
            self._make_room()
            self._readers[key] = found
        if isinstance(found, str):
            raise BadValue(found)
        return found

    def _make_room(self) -> None:
        kept = list(self._readers.values())
        used = sum(len(one) if isinstance(one, str) else one.characters for one in kept)
        if len(kept) >= MAX_READERS or used > MAX_READER_CHARACTERS:
            self._readers.clear()


def _reader_of(schema: WriterSchema, indexes: tuple[int, ...]) -> _Reader:
    """PayloadError says why values of this schema cannot be read here."""
    match schema.schema_type:
        case "AVRO":
            name, decode = avro_reader(inlined(schema.text, schema.references))
        case "PROTOBUF":
            try:
                from .protobuf_values import protobuf_reader
            except ModuleNotFoundError:
                raise PayloadError(
                    "Protobuf is decoded where the node has the package protobuf: pip install 'penstock[protobuf]'"
                ) from None
            name, decode = protobuf_reader(schema, indexes)
        case "JSON":
            name, decode = "", _json
        case other:
            raise PayloadError(f"values of the schema type {shown(other)!r} are not decoded")
    return _Reader(schema.schema_type, clip(name, 200), decode, characters(schema))


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"not JSON: {clip(str(error))}") from None
