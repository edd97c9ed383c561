"""A record of a scan, and its key and value by the schemas that they name, decoded when somebody asks for them."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.batch import Record
from penstock.schema_registry.framing import HEADER, KEY_HEADER

if TYPE_CHECKING:
    from penstock.schema_registry.decoder import Decoded
    from penstock.schema_registry.framing import SchemaKey
    from penstock.web.schema_values import RegistryValues


class BySchema(NamedTuple):
    """A key or a value that names a schema."""

    decoded: "Decoded"
    json: bytes | None
    """None if it could not be decoded."""


class ScannedRecord:
    """Without `schemas`, there is no registry, and nothing is decoded. `missing` gets the schemas that are not
    known."""

    def __init__(self, record: Record, schemas: "RegistryValues | None", missing: "set[SchemaKey]") -> None:
        self.record = record
        self._schemas = schemas
        self._missing = missing

    @cached_property
    def key(self) -> BySchema | None:
        return self._decoded(self.record.key, KEY_HEADER)

    @cached_property
    def value(self) -> BySchema | None:
        return self._decoded(self.record.value, HEADER)

    def _decoded(self, data: bytes | None, header: str) -> BySchema | None:
        if data is None or self._schemas is None:
            return None
        named = next((value for name, value in self.record.headers if name == header), None)
        found = self._schemas.decode(data, named, self._missing)
        if found is None:
            return None
        return BySchema(found, None if found.problem else msgspec.json.encode(found.value))

    def value_as_json(self) -> Any:
        """The value as parsed JSON, or as its schema decodes it. msgspec.DecodeError if it is no JSON."""
        if self.value is not None and not self.value.decoded.problem:
            return self.value.decoded.value
        return msgspec.json.decode(self.record.value or b"")

    def value_contains(self, text: bytes) -> bool:
        return _contains(self.record.value, text) or _contains_json(self.value, text)

    def key_contains(self, text: bytes) -> bool:
        return _contains(self.record.key, text) or _contains_json(self.key, text)


def _contains(data: bytes | None, text: bytes) -> bool:
    return data is not None and text in data


def _contains_json(found: BySchema | None, text: bytes) -> bool:
    return found is not None and _contains(found.json, text)
