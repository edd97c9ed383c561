"""Turns the strings that clients send into a topic's settings: checked one by one, then together."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from penstock.config.definitions import TOPIC_CONFIGS, Definition
from penstock.config.topic import TopicConfig
from penstock.errors import ErrorCode, KafkaError

QUOTED_MAX = 100
"""Characters of a wrong value that its refusal repeats: the message has room for the rule then."""


def parse_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """A topic's own configs, each known and valid. KafkaError(INVALID_CONFIG) names the first that is not."""
    checked: dict[str, str] = {}
    for name, value in overrides.items():
        if value is None:
            raise invalid_config(f"{name} has no value; send a value, or leave it out to use the default")
        parse_value(name, value)
        checked[name] = value.strip()
    return checked


def parse_value(name: str, value: str) -> object:
    """The value of one topic config, or KafkaError(INVALID_CONFIG) that says what is wrong and what to do."""
    definition = topic_definition(name)
    parsed = parse_text(definition, value)
    if definition.refused and parsed != definition.kind.parse(definition.default):
        raise invalid_config(f"{name}={value} is not supported: {definition.refused}")
    return parsed


def topic_definition(name: str) -> Definition:
    """The definition of a topic config. An unknown name is refused in Kafka's words, because clients compare them."""
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        raise invalid_config(f"Unknown topic config name: {name}")
    return definition


def resolve(overrides: Mapping[str, str], node_defaults: Mapping[str, str]) -> TopicConfig:
    """A topic's complete settings: its own configs over the node's defaults over Kafka's.

    Both mappings use the topic configs' names. A node default that does not parse cannot get here: it was
    refused when the node was configured.
    """
    fields: dict[str, Any] = {}
    merged = {**node_defaults, **overrides}
    # The internal size goes last, so that it wins over segment.bytes: both set one field.
    for name in sorted(merged, key=lambda name: name == "internal.segment.bytes"):
        fields.update(_fields(name, parse_value(name, merged[name])))
    config = TopicConfig(**fields)
    _check_together(config)
    if min(config.min_compaction_lag_ms, config.acked_min_age_ms) < config.dedup_window_ms:
        # A new leader learns message ids from the records: they have to be there for that long.
        window_ms = config.dedup_window_ms
        return replace(
            config,
            min_compaction_lag_ms=max(config.min_compaction_lag_ms, window_ms),
            acked_min_age_ms=max(config.acked_min_age_ms, window_ms),
        )
    return config


def parse_text(definition: Definition, value: str) -> object:
    """A config's text by its rule; KafkaError(INVALID_CONFIG) says what was expected."""
    try:
        return definition.kind.parse(value.strip())
    except ValueError:
        raise invalid_config(
            f"{definition.name}={value[:QUOTED_MAX]} is not valid: expected {definition.kind.expected}"
        ) from None


def _check_together(config: TopicConfig) -> None:
    if config.cleanup_acked and config.cleanup_compact:
        raise invalid_config(
            "cleanup.policy cannot have acked and compact together: compact keeps the last record of each key for "
            "later readers, acked deletes it once all present readers have it; use one of them"
        )
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise invalid_config(
            f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is above max.compaction.lag.ms "
            f"({config.max_compaction_lag_ms}); the minimum must not be above the maximum"
        )


def _fields(name: str, value: Any) -> dict[str, Any]:
    """The fields of TopicConfig that a config sets: the one of the same name, unless _SPECIAL says otherwise."""
    if TOPIC_CONFIGS[name].refused:
        return {}
    special = _SPECIAL.get(name)
    return special(value) if special else {name.replace(".", "_"): value}


_SPECIAL: dict[str, Callable[[Any], dict[str, Any]]] = {
    "cleanup.policy": lambda parts: {
        "cleanup_acked": "acked" in parts,
        "cleanup_compact": "compact" in parts,
        "cleanup_delete": "delete" in parts,
    },
    # Kept whatever the value, as docs/configuration.md says: nothing reads them.
    "file.delete.delay.ms": lambda delay_ms: {},
    "flush.messages": lambda count: {},
    "flush.ms": lambda age_ms: {},
    "internal.segment.bytes": lambda size: {"segment_bytes": size},
    "message.timestamp.type": lambda kind: {"message_timestamp_log_append": kind == "LogAppendTime"},
    "penstock.acked.min.age.ms": lambda age_ms: {"acked_min_age_ms": age_ms},
    "penstock.producer.exclusive": lambda exclusive: {"exclusive_producer": exclusive},
    "penstock.retention.keep.undone": lambda keeps: {"keep_undone": keeps},
    "penstock.table": lambda table: {"table": table == "delta"},
    "penstock.storage": lambda storage: {"memory": storage == "memory"},
    # Every negative size means "no limit" to Kafka; TopicConfig knows one of them.
    "retention.bytes": lambda size: {"retention_bytes": max(size, -1)},
}


def invalid_config(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)
