"""`[[topics]]` and `[[queues]]` of the config file, which are created when the cluster starts: `web.api.declarations`
does that."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.config.group import parse_group_overrides, resolve_group
from penstock.config.overrides import parse_overrides, resolve
from penstock.errors import ConfigError, KafkaError

TopicName = Annotated[str, Meta(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
Count = Annotated[int, Meta(ge=1)]
DurationMs = Annotated[int, Meta(ge=0)]

ConfigValue = str | int | float | bool | list[str]
"""TOML has numbers, booleans and lists; Kafka's configs are text."""


class DeclaredTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out have the cluster's defaults, and are not compared."""

    name: TopicName
    partitions: Count | None = None
    replication_factor: Count | None = None
    configs: dict[str, ConfigValue] = {}

    @property
    def config_texts(self) -> dict[str, str]:
        return {name: config_text(value) for name, value in self.configs.items()}

    def check(self) -> None:
        resolve(parse_overrides(self.config_texts), {})


class DeclaredQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic` is the queue's name if it is left out. `partitions` and `replication_factor` are those of a topic that is
    created. Other fields that are left out have the cluster's defaults, and are not compared."""

    name: Annotated[str, Meta(min_length=1, max_length=249)]
    topic: TopicName | None = None
    partitions: Count | None = None
    replication_factor: Count | None = None
    start: Literal["earliest", "latest"] = "earliest"
    point_to_point: bool = False
    dedup_window_ms: DurationMs | None = None
    order: Literal["none", "key"] | None = None
    lease_ms: DurationMs | None = None
    delivery_limit: Annotated[int, Meta(ge=0, le=255)] | None = None
    dead_letters: bool | None = None
    dead_letter_topic: TopicName | None = None
    retry_backoff_ms: DurationMs | None = None
    retry_backoff_max_ms: DurationMs | None = None
    configs: dict[str, ConfigValue] = {}

    @property
    def config_texts(self) -> dict[str, str]:
        return {name: config_text(value) for name, value in self.configs.items()}

    def check(self) -> None:
        resolve_group(parse_group_overrides(self.config_texts))
        if self.point_to_point and self.partitions not in (None, 1):
            expected = "1, or nothing: a point-to-point queue has one partition"
            raise ConfigError(f"partitions of queue {self.name}", self.partitions, expected)


Declared = TypeVar("Declared", DeclaredTopic, DeclaredQueue)


def config_text(value: object) -> str:
    """The value as configs are written."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def read_declared(origin: str, value: object, kind: type[Declared]) -> tuple[Declared, ...]:
    """The tables of one kind; ConfigError names the first that is wrong."""
    if not isinstance(value, list | tuple):
        raise ConfigError(origin, value, "tables: [[topics]] or [[queues]], in the config file only")
    found: dict[str, Declared] = {}
    for number, table in enumerate(value, start=1):
        one = table if isinstance(table, kind) else _converted(f"{origin}, table {number}", table, kind)
        try:
            one.check()
        except KafkaError as problem:
            raise ConfigError(f"{origin}: configs of {one.name}", one.configs, problem.message) from None
        if one.name in found:
            raise ConfigError(origin, one.name, "each name once")
        found[one.name] = one
    return tuple(found.values())


def _converted(origin: str, table: Any, kind: type[Declared]) -> Declared:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as problem:
        raise ConfigError(origin, table, str(problem)) from None
