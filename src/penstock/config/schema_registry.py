"""The schema registry by which a node shows values of Avro and Protobuf."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from penstock.config.fields import check_fields
from penstock.errors import ConfigError


class SchemaRegistrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Without `url`, values are shown as they are stored."""

    url: Annotated[str, Meta(max_length=2048)] = ""
    """The address of a schema registry (Confluent's REST API, which others have too), such as
    `https://registry.example.org:8081`. The console and `/v1/browse` then show Avro, Protobuf and JSON Schema values
    by their schemas. Empty: as they are stored."""
    user_info_file: Annotated[str, Meta(max_length=4096)] = ""
    """A file with `USER:PASSWORD`, by which the node logs in to the registry. Empty: it does not."""

    @property
    def is_set(self) -> bool:
        return bool(self.url)

    def validate(self) -> None:
        check_fields(self, "schema_registry.")
        if not self.is_set:
            if self.user_info_file:
                expected = "schema_registry.url as well: without it, there is no registry to log in to"
                raise ConfigError("schema_registry.user_info_file", self.user_info_file, expected)
            return
        try:
            parts = urlsplit(self.url)
        except ValueError:
            parts = urlsplit("")
        if parts.username is not None or parts.password is not None:
            expected = "no login in it: schema_registry.user_info_file names a file that has it"
            raise ConfigError("schema_registry.url", parts.hostname, expected)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError("schema_registry.url", self.url, "an address such as https://host:8081")
