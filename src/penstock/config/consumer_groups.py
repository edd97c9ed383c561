"""Configs of consumer groups that use the protocol of KIP-848, by Kafka's names: `consumer.*`.

The defaults are settings of the node (`GroupSettings`), which Kafka calls `group.consumer.*`. The ranges are wider than
Kafka's where there is no reason for Kafka's.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.config.definitions import Definition
from penstock.config.kinds import integer
from penstock.config.overrides import invalid_config

PREFIX = "consumer."


class ConsumerGroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group's settings, complete and valid."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


USUAL = ConsumerGroupConfig()


CONSUMER_DEFINITIONS = (
    Definition(
        name="consumer.assignment.interval.ms",
        kind=integer(0, 15_000),
        default="1000",
        doc="The shortest time between two computations of the group's assignment. Only for the consumer protocol "
        "(KIP-848), as the next two.",
    ),
    Definition(
        name="consumer.heartbeat.interval.ms",
        kind=integer(100, 600_000),
        default="5000",
        doc="How often the members of a consumer group send heartbeats.",
    ),
    Definition(
        name="consumer.session.timeout.ms",
        kind=integer(1_000, 1_800_000),
        default="45000",
        doc="How long a member of a consumer group may be silent before it is removed.",
    ),
)

_KINDS = {definition.name: definition.kind for definition in CONSUMER_DEFINITIONS}


def resolve_consumer_group(
    overrides: Mapping[str, str], defaults: ConsumerGroupConfig = USUAL
) -> ConsumerGroupConfig:
    """A group's complete settings: its own configs over the node's. A value that another version has set, and that
    this one does not accept, is left out."""
    fields: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        try:
            if name in overrides:
                fields[name.removeprefix(PREFIX).replace(".", "_")] = kind.parse(overrides[name].strip())
        except ValueError:
            continue
    return msgspec.structs.replace(defaults, **fields)


def check_consumer_group(overrides: Mapping[str, str]) -> None:
    """KafkaError(INVALID_CONFIG) if the configs contradict each other."""
    config = resolve_consumer_group(overrides)
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise invalid_config(
            f"consumer.heartbeat.interval.ms ({config.heartbeat_interval_ms}) is not below "
            f"consumer.session.timeout.ms ({config.session_timeout_ms}): members would be removed before their next "
            "heartbeat; lower it"
        )
