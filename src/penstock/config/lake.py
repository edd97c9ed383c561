"""Settings of tables that a node writes by itself, for topics with `penstock.table`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.fields import check_fields

MEGABYTE = 1 << 20


class LakeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Without `root`, the node writes no tables, whatever the configs of topics say."""

    root: Annotated[str, Meta(max_length=4096)] = ""
    """The folder (or `s3://BUCKET/PATH`) below which the node writes the tables of topics with penstock.table=delta.
    In a cluster all nodes need the same place. Empty: the node writes none."""
    interval_ms: Annotated[int, Meta(ge=100, le=86_400_000)] = 10_000
    """How long the writer waits after it has written all records. More: fewer and larger files."""
    batch_bytes: Annotated[int, Meta(ge=MEGABYTE, le=1024 * MEGABYTE)] = 64 * MEGABYTE
    """About the most bytes of records of a commit, headers too. The writer takes five times as much
    memory, and 100 MB."""
    client_config: Annotated[str, Meta(max_length=4096)] = ""
    """A file with settings of a Kafka client (security.protocol, sasl.*, ssl.*), one in a line, by which the writer
    logs in. Needed with `require_login`; its user must be allowed to read the topics."""

    def validate(self) -> None:
        check_fields(self, "lake.")
