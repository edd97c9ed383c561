"""Settings of all share groups (queues): the defaults of their configs, and the range in which these may be set.

Kafka's `group.share.*`: a field's name with dots for underscores. As in Kafka, they change with the config file and a
restart. Every node of a cluster should have the same; where they differ, a group has those of its coordinator and of
the leaders that it reads from.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.fields import check_fields
from penstock.config.kinds import INT_MAX
from penstock.errors import ConfigError

PREFIX = "group.share."
LIMITED = ("session_timeout_ms", "heartbeat_interval_ms", "record_lock_duration_ms")
"""The settings with a minimum and a maximum for groups that set their own."""

Count = Annotated[int, Meta(ge=1, le=INT_MAX)]


class ShareGroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[share_groups]`. docs/configuration.md quotes the text below each setting."""

    session_timeout_ms: Annotated[int, Meta(ge=1_000, le=1_800_000)] = 45_000
    """How long a member may be silent before it is removed."""
    min_session_timeout_ms: Count = 1_000
    """The shortest that a group may set; Kafka has 45,000."""
    max_session_timeout_ms: Count = 1_800_000
    """The longest; Kafka has 60,000."""
    heartbeat_interval_ms: Annotated[int, Meta(ge=100, le=600_000)] = 5_000
    """How often members send heartbeats."""
    min_heartbeat_interval_ms: Count = 100
    """The shortest that a group may set; Kafka has 5,000."""
    max_heartbeat_interval_ms: Count = 600_000
    """The longest; Kafka has 15,000."""
    record_lock_duration_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 30_000
    """How long a consumer may hold a record before another one may get it."""
    min_record_lock_duration_ms: Count = 1_000
    """The shortest that a group may set; Kafka has 15,000."""
    max_record_lock_duration_ms: Count = 3_600_000
    """The longest; Kafka has 60,000."""
    delivery_count_limit: Annotated[int, Meta(ge=0, le=255)] = 5
    """How often a record is delivered at most before it is dead; 0: without limit."""
    partition_max_record_locks: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """How many records of one partition consumers may hold at once; Kafka has 2,000."""

    def range_of(self, name: str) -> tuple[int, int]:
        """The lowest and the highest value that a group may set for one of LIMITED."""
        return getattr(self, f"min_{name}"), getattr(self, f"max_{name}")

    def validate(self) -> None:
        check_fields(self, "share_groups.")
        for name in LIMITED:
            low, high = self.range_of(name)
            if not low <= getattr(self, name) <= high:
                expected = f"from share_groups.min_{name} ({low}) to share_groups.max_{name} ({high})"
                raise ConfigError(f"share_groups.{name}", getattr(self, name), expected)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            expected = f"less than share_groups.session_timeout_ms ({self.session_timeout_ms})"
            raise ConfigError("share_groups.heartbeat_interval_ms", self.heartbeat_interval_ms, expected)


def broker_name(field: str) -> str:
    """The broker config of a setting."""
    return PREFIX + field.replace("_", ".")


def share_group_settings(static: Mapping[str, str]) -> ShareGroupSettings:
    """The settings that a node was started with, from its broker configs."""
    names = {field.name: broker_name(field.name) for field in msgspec.structs.fields(ShareGroupSettings)}
    return ShareGroupSettings(**{field: int(static[name]) for field, name in names.items() if name in static})
